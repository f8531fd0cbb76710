//! The monotonic clock that all processes of a machine share.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started; the same for every process on it.
pub fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monotonic_clock_goes_on() {
        let before = monotonic();
        assert!(monotonic() >= before);
    }
}
