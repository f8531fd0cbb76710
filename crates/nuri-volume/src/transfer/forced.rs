//! The settings of a mount that may be forced, their bounds, and their form as text: the value of
//! the attribute `nuri.flow`. Pure.
//!
//! The front end parses the value that is set. `nuri fs tune` and `nuri lab tune` write it.

use std::fmt;
use std::str::FromStr;

use nuri_proto::Status;
use nuri_proto::limit::MAX_PAYLOAD;

/// Bytes of a flow buffer, at least and at most.
pub const SMALLEST: u32 = 64 << 10;
pub const LARGEST: u32 = MAX_PAYLOAD as u32;
/// Buffers in flight to the targets at once: the default, and the most. Measured: with four,
/// copying one buffer hides the wait for another. More buffers only wait for processors.
pub const STREAMS: u8 = 4;
pub const MOST_STREAMS: u8 = 8;
/// Bytes that the kernel reads ahead of a program: the default, the step, and the most (as the
/// handshake with the kernel says). Measured: two requests ahead feed the stream. More only evicts
/// data from the processors' caches.
pub const READ_AHEAD: u32 = 2 << 20;
pub const AHEAD_STEP: u32 = 64 << 10;
pub const MOST_AHEAD: u32 = 8 << 20;
/// Bytes that a mount buffers for writing: the default, the least and the most. The mount must
/// flush buffered bytes before it gives a recalled lease back, so more would only wait there.
pub const WRITE_BEHIND: u64 = 96 << 20;
pub const LEAST_BEHIND: u64 = 4 << 20;
pub const MOST_BEHIND: u64 = 256 << 20;
/// Threads that read ahead for programs that bypass the kernel's cache: the default, and the most.
pub const THREADS: u8 = 3;
pub const MOST_THREADS: u8 = 8;

/// The forced settings of a mount; `None` is left to the mount.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Forced {
    /// Bytes, a power of two from [`SMALLEST`] to [`LARGEST`].
    pub buffer: Option<u32>,
    /// From 1 to [`MOST_STREAMS`].
    pub streams: Option<u8>,
    /// Bytes, a multiple of [`AHEAD_STEP`] up to [`MOST_AHEAD`]; 0 for none.
    pub read_ahead: Option<u32>,
    /// Bytes, from [`LEAST_BEHIND`] to [`MOST_BEHIND`].
    pub write_behind: Option<u64>,
    /// From 1 to [`MOST_THREADS`].
    pub threads: Option<u8>,
}

/// Whether a flow buffer may have so many bytes.
pub fn is_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (SMALLEST..=LARGEST).contains(&bytes)
}

/// Whether so many buffers may be in flight.
pub fn is_count(streams: u8) -> bool {
    (1..=MOST_STREAMS).contains(&streams)
}

/// Whether so many bytes may be read ahead.
pub fn is_ahead(bytes: u32) -> bool {
    bytes <= MOST_AHEAD && bytes.is_multiple_of(AHEAD_STEP)
}

/// Whether so many bytes may be buffered.
pub fn is_behind(bytes: u64) -> bool {
    (LEAST_BEHIND..=MOST_BEHIND).contains(&bytes)
}

/// Whether so many threads may read ahead.
pub fn is_crew(threads: u8) -> bool {
    (1..=MOST_THREADS).contains(&threads)
}

/// `NAME=NUMBER|auto` for each; what is not named stays with the mount.
impl FromStr for Forced {
    type Err = Status;

    fn from_str(text: &str) -> Result<Forced, Status> {
        let mut forced = Forced::default();
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').ok_or(Status::INVAL)?;
            match name {
                "buffer" => forced.buffer = wish(value, is_size)?,
                "streams" => forced.streams = wish(value, is_count)?,
                "read_ahead" => forced.read_ahead = wish(value, is_ahead)?,
                "write_behind" => forced.write_behind = wish(value, is_behind)?,
                "threads" => forced.threads = wish(value, is_crew)?,
                _ => return Err(Status::INVAL),
            }
        }
        Ok(forced)
    }
}

fn wish<T: FromStr + Copy>(text: &str, is_good: fn(T) -> bool) -> Result<Option<T>, Status> {
    match text {
        "auto" => Ok(None),
        _ => text.parse().ok().filter(|n| is_good(*n)).map(Some).ok_or(Status::INVAL),
    }
}

impl fmt::Display for Forced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Forced { buffer, streams, read_ahead, write_behind, threads } = *self;
        let words = [
            ("buffer", buffer.map(u64::from)),
            (" streams", streams.map(u64::from)),
            (" read_ahead", read_ahead.map(u64::from)),
            (" write_behind", write_behind),
            (" threads", threads.map(u64::from)),
        ];
        words.iter().try_for_each(|(name, forced)| match forced {
            Some(number) => write!(f, "{name}={number}"),
            None => write!(f, "{name}=auto"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forced_is_read_as_it_is_written() {
        let all = "buffer=262144 streams=2 read_ahead=0 write_behind=4194304 threads=8";
        let forced: Forced = all.parse().unwrap();
        assert_eq!((forced.read_ahead, forced.threads), (Some(0), Some(8)));
        assert_eq!(forced.to_string(), all);
        let some: Forced = "streams=8 write_behind=auto".parse().unwrap();
        assert_eq!(some, Forced { streams: Some(8), ..Forced::default() });
        assert_eq!(some.to_string().parse(), Ok(some));
    }

    #[test]
    fn what_has_no_bound_is_refused() {
        let buffers = ["buffer=1", "buffer=65537", "buffer=2097152", "buffer=x", "size=auto", "x"];
        let counts = ["streams=0", "streams=9", "threads=0", "threads=9", "threads=-1"];
        let bytes =
            ["read_ahead=1", "read_ahead=8454144", "write_behind=0", "write_behind=4194303"];
        let more = ["write_behind=268435457", "write_behind=99999999999999999999"];
        for odd in buffers.iter().chain(&counts).chain(&bytes).chain(&more) {
            assert_eq!(odd.parse::<Forced>(), Err(Status::INVAL), "{odd}");
        }
    }
}
