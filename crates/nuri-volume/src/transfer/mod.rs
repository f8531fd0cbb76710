//! Flow buffers: a mount moves bulk data in calls of a bounded size, with a bounded number of calls
//! in flight.
//!
//! Both bounds belong to the mount and may be forced. So may the bytes that the mount reads ahead,
//! and the bytes that it buffers for writing ([`forced`]). Bounds that are not forced fit
//! themselves to what the path carries ([`path`]).

mod forced;
mod links;
mod path;

use std::fmt;
use std::time::Instant;

use nuri_proto::Status;
use parking_lot::Mutex;

pub use forced::{
    AHEAD_STEP, Forced, LARGEST, LEAST_BEHIND, MOST_AHEAD, MOST_BEHIND, MOST_STREAMS, MOST_THREADS,
    READ_AHEAD, SMALLEST, STREAMS, THREADS, WRITE_BEHIND, is_ahead, is_behind, is_count, is_crew,
    is_size,
};
pub use links::{Carries, Link, Links, LinksView, Untold};
use path::Path;

/// The flow buffers in use now.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowView {
    pub forced: Forced,
    pub streams: u8,
    pub write: PathView,
    pub read: PathView,
}

/// One direction of a path.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PathView {
    /// Bytes of a flow buffer.
    pub buffer: u32,
    /// Bytes per second while large transfers were on their way; none before there were.
    pub rate: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Write,
    Read,
}

/// The flows of a mount.
pub struct Flow {
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

impl Flow {
    /// Bytes that one call carries at most.
    pub fn buffer(&self, way: Way) -> u32 {
        self.state.lock().buffer(way)
    }

    /// Calls to write at once.
    pub fn streams(&self) -> usize {
        usize::from(self.forced().streams.unwrap_or(STREAMS))
    }

    /// Calls of one request to read at once.
    pub fn reads(&self) -> usize {
        usize::from(self.forced().streams.unwrap_or(MOST_STREAMS))
    }

    /// Runs a transfer of so many bytes, and learns from it if it fills a buffer. Smaller transfers
    /// tell how long a call takes, not what the path carries.
    pub fn carry<T>(
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
        let streams = state.forced.streams.unwrap_or(STREAMS);
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

    pub fn forced(&self) -> Forced {
        self.state.lock().forced
    }

    pub fn force(&self, forced: Forced) {
        self.state.lock().forced = forced;
    }

    pub fn view(&self) -> FlowView {
        let mut state = self.state.lock();
        let mut view = |way| PathView { buffer: state.buffer(way), rate: state.path(way).rate() };
        let (write, read) = (view(Way::Write), view(Way::Read));
        let forced = state.forced;
        FlowView { forced, streams: forced.streams.unwrap_or(STREAMS), write, read }
    }
}

/// What is forced, as [`Forced`] is read, and how data moves now. Bytes, and bytes per second.
impl fmt::Display for FlowView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Forced { read_ahead, write_behind, threads, .. } = self.forced;
        write!(f, "{} streams_now={}", self.forced, self.streams)?;
        write!(f, " read_ahead_now={}", read_ahead.unwrap_or(READ_AHEAD))?;
        write!(f, " write_behind_now={}", write_behind.unwrap_or(WRITE_BEHIND))?;
        write!(f, " threads_now={}", threads.unwrap_or(THREADS))?;
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
    fn what_is_forced_is_obeyed_and_shown() {
        let forced: Forced = "buffer=262144 streams=2".parse().unwrap();
        let flow = Flow::default();
        flow.force(forced);
        assert_eq!((flow.buffer(Way::Read), flow.streams(), flow.reads()), (262_144, 2, 2));
        let shown = flow.view().to_string();
        assert_eq!(shown.split(" streams_now").next().unwrap().parse(), Ok(forced));
        assert!(shown.contains(" read_ahead_now=2097152 write_behind_now=100663296 threads_now=3"));
        flow.force("buffer=auto streams=auto".parse().unwrap());
        assert_eq!((flow.buffer(Way::Write), flow.streams(), flow.reads()), (256 << 10, 4, 8));
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
