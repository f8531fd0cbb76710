//! What a space's processes and the device under it were used for.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Counts also processes that ended, as of the last look.
pub(crate) struct Meter {
    /// `stat` of the block device.
    device_stat: PathBuf,
    /// Bytes that cases read and wrote, and bytes that the device says it read and wrote.
    pub(crate) asked: [u64; 2],
    pub(crate) device: [u64; 2],
    /// Processor seconds of them.
    pub(crate) cpu: [f64; 2],
    /// By pid: its role, processor seconds and highest memory in MiB.
    processes: BTreeMap<String, (String, f64, u64)>,
}

impl Meter {
    /// Of the device that holds `dir`.
    pub(crate) fn of(dir: &Path) -> Meter {
        let dev = std::fs::metadata(dir).map_or(0, |m| m.dev());
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        let device_stat = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
        Meter {
            device_stat,
            asked: [0; 2],
            device: [0; 2],
            cpu: [0.0; 2],
            processes: BTreeMap::new(),
        }
    }

    /// Bytes read and written since the machine started.
    pub(crate) fn device_bytes(&self) -> [u64; 2] {
        let text = std::fs::read_to_string(&self.device_stat).unwrap_or_default();
        let fields: Vec<u64> = text.split_whitespace().filter_map(|f| f.parse().ok()).collect();
        let sectors = |i: usize| fields.get(i).copied().unwrap_or(0) * 512;
        [sectors(2), sectors(6)]
    }

    /// Notes what the processes of the space in `space` have used by now.
    pub(crate) fn look(&mut self, space: &Path) {
        let Ok(locks) = std::fs::read_dir(space.join("run")) else { return };
        for lock in locks.flatten() {
            let pid = std::fs::read_to_string(lock.path()).unwrap_or_default().trim().to_string();
            let role = lock.path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
            self.look_at(pid, role);
        }
    }

    /// Notes what this process has used by now.
    pub(crate) fn look_at(&mut self, pid: String, role: String) {
        if let (Some(cpu), Some(peak)) = (cpu_seconds(&pid), peak_mib(&pid)) {
            self.processes.insert(pid, (role, cpu, peak));
        }
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.processes.values().map(|(_, cpu, _)| cpu).sum()
    }

    /// The highest of each role.
    pub(crate) fn peaks(&self) -> String {
        let mut roles: BTreeMap<&str, u64> = BTreeMap::new();
        for (role, _, peak) in self.processes.values() {
            let highest = roles.entry(role).or_default();
            *highest = (*highest).max(*peak);
        }
        let text = roles.iter().map(|(role, peak)| format!("{role} {peak}"));
        text.collect::<Vec<_>>().join(", ")
    }
}

fn cpu_seconds(pid: &str) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<_> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}

fn peak_mib(pid: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? >> 10)
}
