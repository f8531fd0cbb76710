//! Flow buffers: bulk data moves in calls of at most so many bytes, so many of them at once. Both
//! are the mount's, and may be forced; else the buffers fit themselves to what the path carries
//! ([`path`]).

mod path;

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use nuri_proto::Status;
use nuri_proto::limit::MAX_PAYLOAD;
use parking_lot::Mutex;

use path::Path;

/// Bytes of a flow buffer, at least and at most.
pub const SMALLEST: u32 = 64 << 10;
pub const LARGEST: u32 = MAX_PAYLOAD as u32;
/// Buffers on their way to the targets at once: unless forced, and at most. Measured: with four,
/// the copies of one hide the waiting for another; more only wait for processors.
pub const STREAMS: u8 = 4;
pub const MOST_STREAMS: u8 = 8;

/// What is not left to the mount.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Forced {
    /// Bytes, a power of two from [`SMALLEST`] to [`LARGEST`].
    pub buffer: Option<u32>,
    /// From 1 to [`MOST_STREAMS`].
    pub streams: Option<u8>,
}

/// How data moves now.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowView {
    pub forced: Forced,
    pub streams: u8,
    pub write: PathView,
    pub read: PathView,
}

/// One direction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PathView {
    /// Bytes of a flow buffer.
    pub buffer: u32,
    /// Bytes per second while large transfers were on their way; none before there were.
    pub rate: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Write,
    Read,
}

/// The flows of a mount.
pub(crate) struct Flow {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    forced: Forced,
    write: Path,
    read: Path,
}

impl Default for Flow {
    fn default() -> Flow {
        Flow { start: Instant::now(), state: Mutex::default() }
    }
}

impl State {
    fn path(&mut self, way: Way) -> &mut Path {
        match way {
            Way::Write => &mut self.write,
            Way::Read => &mut self.read,
        }
    }

    fn buffer(&mut self, way: Way) -> u32 {
        let own = self.path(way).buffer();
        self.forced.buffer.unwrap_or(own)
    }
}

impl Forced {
    fn streams_or(&self, streams: u8) -> u8 {
        self.streams.unwrap_or(streams)
    }
}

impl Flow {
    /// Bytes that one call carries at most.
    pub(crate) fn buffer(&self, way: Way) -> u32 {
        self.state.lock().buffer(way)
    }

    /// Calls to write at once.
    pub(crate) fn streams(&self) -> usize {
        usize::from(self.state.lock().forced.streams_or(STREAMS))
    }

    /// Calls of one request to read at once.
    pub(crate) fn reads(&self) -> usize {
        usize::from(self.state.lock().forced.streams_or(MOST_STREAMS))
    }

    /// Runs a transfer of so many bytes, and learns from it where it fills a buffer: smaller ones
    /// tell how long a call takes, not what the path carries.
    pub(crate) fn carry<T>(
        &self,
        way: Way,
        bytes: u64,
        transfer: impl FnOnce() -> Result<T, Status>,
    ) -> Result<T, Status> {
        if bytes < u64::from(SMALLEST) || !self.begin(way, bytes) {
            return transfer();
        }
        let outcome = transfer();
        let (now, carried) = (self.start.elapsed(), if outcome.is_ok() { bytes } else { 0 });
        let mut state = self.state.lock();
        let streams = state.forced.streams_or(STREAMS);
        state.path(way).end(now, carried, streams);
        outcome
    }

    fn begin(&self, way: Way, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let counts = bytes >= u64::from(state.buffer(way));
        if counts {
            state.path(way).begin(self.start.elapsed());
        }
        counts
    }

    pub(crate) fn force(&self, forced: Forced) {
        self.state.lock().forced = forced;
    }

    pub(crate) fn view(&self) -> FlowView {
        let mut state = self.state.lock();
        let mut view = |way| PathView { buffer: state.buffer(way), rate: state.path(way).rate() };
        let (write, read) = (view(Way::Write), view(Way::Read));
        let forced = state.forced;
        FlowView { forced, streams: forced.streams_or(STREAMS), write, read }
    }
}

/// `buffer=BYTES|auto streams=N|auto`; what is not named stays with the mount.
impl FromStr for Forced {
    type Err = Status;

    fn from_str(text: &str) -> Result<Forced, Status> {
        let mut forced = Forced::default();
        for word in text.split_whitespace() {
            match word.split_once('=').ok_or(Status::INVAL)? {
                (_, "auto") => {}
                ("buffer", bytes) => forced.buffer = Some(number(bytes)?),
                ("streams", n) => forced.streams = Some(number(n)?),
                _ => return Err(Status::INVAL),
            }
        }
        let is_good = forced.buffer.is_none_or(is_size) && forced.streams.is_none_or(is_count);
        if is_good { Ok(forced) } else { Err(Status::INVAL) }
    }
}

/// Whether a flow buffer may have so many bytes.
pub fn is_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (SMALLEST..=LARGEST).contains(&bytes)
}

/// Whether so many may be on their way.
pub fn is_count(streams: u8) -> bool {
    (1..=MOST_STREAMS).contains(&streams)
}

fn number<T: FromStr>(text: &str) -> Result<T, Status> {
    text.parse().map_err(|_| Status::INVAL)
}

/// What is forced, as [`Forced`] is read, and how data moves now. Bytes, and bytes per second.
impl fmt::Display for FlowView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Forced { buffer, streams } = self.forced;
        let word = |forced: Option<u32>| forced.map_or("auto".to_string(), |n| n.to_string());
        write!(f, "buffer={} streams={}", word(buffer), word(streams.map(u32::from)))?;
        write!(f, " streams_now={}", self.streams)?;
        for (name, path) in [("write", self.write), ("read", self.read)] {
            write!(f, " {name}_buffer={} {name}_rate=", path.buffer)?;
            match path.rate {
                Some(rate) => write!(f, "{rate}")?,
                None => write!(f, "unknown")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forced_is_read_and_shown() {
        let forced: Forced = "buffer=262144 streams=2".parse().unwrap();
        let flow = Flow::default();
        flow.force(forced);
        assert_eq!((flow.buffer(Way::Read), flow.streams(), flow.reads()), (262_144, 2, 2));
        let shown = flow.view().to_string();
        assert_eq!(shown.split(" streams_now").next().unwrap().parse(), Ok(forced));
        flow.force("buffer=auto streams=auto".parse().unwrap());
        assert_eq!((flow.buffer(Way::Write), flow.streams(), flow.reads()), (256 << 10, 4, 8));
        assert_eq!("streams=8".parse(), Ok(Forced { buffer: None, streams: Some(8) }));
        for odd in ["buffer=1", "buffer=65537", "buffer=2097152", "streams=0", "streams=9", "x"] {
            assert_eq!(odd.parse::<Forced>(), Err(Status::INVAL), "{odd}");
        }
    }

    #[test]
    fn transfers_that_fill_no_buffer_and_those_that_fail_tell_nothing() {
        let flow = Flow::default();
        for _ in 0..1000 {
            flow.carry(Way::Write, 4096, || Ok(())).unwrap();
            flow.carry(Way::Write, (256 << 10) - 1, || Ok(())).unwrap();
            let failed = flow.carry(Way::Read, 1 << 20, || Err::<(), _>(Status::IO));
            assert_eq!(failed, Err(Status::IO));
        }
        let FlowView { write, read, .. } = flow.view();
        assert_eq!(write, PathView { buffer: 256 << 10, rate: None });
        assert_eq!(read, PathView { buffer: SMALLEST, rate: None });
    }
}
