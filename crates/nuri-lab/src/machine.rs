//! Counts what the whole machine was used for: processors and network devices, by all processes
//! together. Also, how much memory this process took.

use serde::{Deserialize, Serialize};

use nuri_netns::Network;

/// Ticks per second in /proc/stat: the same on every Linux.
const TICKS: f64 = 100.0;

/// What was used since the machine started, or between two looks.
#[derive(Clone, Copy, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// Ticks of all processors; busy ones are neither idle, nor waiting for a disk, nor stolen.
    busy: u64,
    stolen: u64,
    total: u64,
    /// Bytes that network devices sent and received, or that the switch of a testbed received.
    pub(crate) wire: u64,
}

impl Usage {
    /// Of the whole machine, with the network of a testbed in place of its own.
    pub(crate) fn now(network: Option<&Network>) -> Usage {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let usage = Usage::of_stat(&read("/proc/stat"));
        let wire = match network {
            Some(network) => network.carried().unwrap_or_default(),
            None => wire(&read("/proc/net/dev")),
        };
        Usage { wire, ..usage }
    }

    /// Only what went over its network.
    pub(crate) fn of_network(self) -> Usage {
        Usage { wire: self.wire, ..Usage::default() }
    }

    /// Of two machines.
    pub(crate) fn and(self, other: Usage) -> Usage {
        Usage {
            busy: self.busy + other.busy,
            stolen: self.stolen + other.stolen,
            total: self.total + other.total,
            wire: self.wire + other.wire,
        }
    }

    pub(crate) fn since(self, earlier: Usage) -> Usage {
        Usage {
            busy: self.busy.saturating_sub(earlier.busy),
            stolen: self.stolen.saturating_sub(earlier.stolen),
            total: self.total.saturating_sub(earlier.total),
            wire: self.wire.saturating_sub(earlier.wire),
        }
    }

    /// The fields of the line `cpu`: user, nice, system, idle, iowait, irq, softirq, steal; later
    /// ones are parts of user and nice.
    fn of_stat(stat: &str) -> Usage {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        let ticks: Vec<u64> = line.split_whitespace().filter_map(|f| f.parse().ok()).collect();
        let tick = |i: usize| ticks.get(i).copied().unwrap_or(0);
        let busy = tick(0) + tick(1) + tick(2) + tick(5) + tick(6);
        Usage { busy, stolen: tick(7), total: ticks.iter().take(8).sum(), wire: 0 }
    }

    #[cfg(test)]
    pub(crate) fn of_tests(busy: u64, wire: u64) -> Usage {
        Usage { busy, wire, ..Usage::default() }
    }

    /// False where nobody looked.
    pub(crate) fn is_known(self) -> bool {
        self.total > 0
    }

    pub(crate) fn cpu_seconds(self) -> f64 {
        self.busy as f64 / TICKS
    }

    /// The share of processor time that the host gave to other machines.
    pub(crate) fn stolen_share(self) -> f64 {
        self.stolen as f64 / self.total.max(1) as f64
    }
}

/// The process's highest memory counts from now on.
pub(crate) fn forget_peak() {
    // Where that is not allowed it counts from the process's start.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Resident memory at most, in KiB.
pub(crate) fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Both directions of every device; loopback once, where what is sent is what is received: nodes
/// of one machine talk over it.
fn wire(net_dev: &str) -> u64 {
    let bytes = |line: &str| {
        let (device, counts) = line.split_once(':')?;
        let counts: Vec<u64> = counts.split_whitespace().filter_map(|f| f.parse().ok()).collect();
        let (received, sent) = (counts.first()?, counts.get(8)?);
        Some(if device.trim() == "lo" { *sent } else { received + sent })
    };
    net_dev.lines().filter_map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_neither_idle_nor_stolen() {
        let before = Usage::of_stat("cpu  100 0 50 1000 20 5 5 10 0 0\ncpu0 1 1 1 1\n");
        let after = Usage::of_stat("cpu  300 0 50 1100 20 5 5 110 0 0\n");
        let used = after.since(before);
        assert_eq!(used.cpu_seconds(), 2.0);
        assert_eq!(used.stolen_share(), 0.25);
        assert_eq!(Usage::default().stolen_share(), 0.0);
    }

    #[test]
    fn the_peak_is_known_and_can_be_forgotten() {
        let large = std::hint::black_box(vec![1u8; 64 << 20]);
        let with = peak_kib();
        assert!(with > 64 << 10, "{with}");
        drop(large);
        forget_peak();
        assert!(peak_kib() < with);
    }

    #[test]
    fn loopback_counts_once() {
        let text = "Inter-|   Receive    |  Transmit
 face |bytes    packets |bytes
    lo: 700 1 0 0 0 0 0 0 700 1 0 0 0 0 0 0
  eth0: 30 1 0 0 0 0 0 0 4 1 0 0 0 0 0 0
";
        assert_eq!(wire(text), 734);
    }
}
