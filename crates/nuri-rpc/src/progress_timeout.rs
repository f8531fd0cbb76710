//! How long a call waits for a peer. A peer that still acknowledges sent bytes is slow, not silent.
//!
//! A wait is cut into slices. After each slice that passed in vain, the caller looks how many sent
//! bytes the peer's kernel has not acknowledged. If they became fewer, the wait begins anew. So a
//! timeout means "nothing moved for so long", however long the cable takes for a call. The wait
//! ends, because the bytes of one call only become fewer.

use std::os::fd::AsFd;
use std::time::Duration;

use nuri_rules::broken;
use rustix::fs::fstat;

const SLICES: u32 = 4;
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// Columns of a line there: bytes not acknowledged and not read, and the socket's inode.
const QUEUES: usize = 4;
const INODE: usize = 9;

/// One wait in slices.
#[derive(Default)]
pub(crate) struct ProgressTimeout {
    in_vain: u32,
    unacknowledged: Option<u64>,
}

impl ProgressTimeout {
    /// Length of a slice of a wait.
    pub(crate) fn slice(wait: Duration) -> Duration {
        (wait / SLICES).max(Duration::from_micros(1))
    }

    /// A slice passed in vain. Whether to wait for another one.
    pub(crate) fn lasts(&mut self, unacknowledged: Option<u64>) -> bool {
        let before = self.unacknowledged;
        // A look may miss the socket where others come and go.
        self.unacknowledged = unacknowledged.or(before);
        let moved = before.zip(unacknowledged).is_some_and(|(before, now)| now < before);
        self.in_vain = if moved && !broken!("slow_is_silent") { 0 } else { self.in_vain + 1 };
        self.in_vain < SLICES
    }
}

/// Sent bytes that the peer's kernel has not acknowledged. From the kernel's table, as it is
/// looked up only where somebody is waited for.
pub(crate) fn unacknowledged(socket: &impl AsFd) -> Option<u64> {
    let inode = fstat(socket).ok()?.st_ino;
    let tables = TABLES.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    tables.filter_map(|table| queued(&table, inode)).next()
}

fn queued(table: &str, inode: u64) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let mut columns = line.split_ascii_whitespace();
        let (sent, _) = columns.nth(QUEUES)?.split_once(':')?;
        let is_it = columns.nth(INODE - QUEUES - 1)?.parse() == Ok(inode);
        is_it.then(|| u64::from_str_radix(sent, 16).ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_silent_peer_is_given_up_after_the_slices() {
        for bytes in [None, Some(0), Some(70_000)] {
            let mut timeout = ProgressTimeout::default();
            let lasted = (0..SLICES).map(|_| timeout.lasts(bytes)).collect::<Vec<_>>();
            assert_eq!(lasted, [true, true, true, false], "{bytes:?}");
        }
    }

    /// Catches `broken!("slow_is_silent")`.
    #[test]
    fn a_slow_peer_is_waited_for_until_it_stops() {
        let mut timeout = ProgressTimeout::default();
        for left in (0..40).rev() {
            assert!(timeout.lasts(Some(left * 1000)), "{left}");
        }
        let after = (0..SLICES).map(|_| timeout.lasts(Some(0))).collect::<Vec<_>>();
        assert_eq!(after, [true, true, true, false]);
    }

    #[test]
    fn the_kernel_tells_what_is_not_acknowledged() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert_eq!(unacknowledged(&sender), Some(0));
            sender.set_nonblocking(true).unwrap();
            let full = std::iter::repeat_with(|| sender.write(&[7; 100_000])).find(Result::is_err);
            assert!(full.is_some());
            assert!(unacknowledged(&sender).unwrap() > 0, "nobody reads");
        }
    }
}
