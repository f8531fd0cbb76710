//! Facts about the machine, from /proc and the kernel.

use std::path::{Path, PathBuf};

use crate::record::Host;

/// Of this machine and of what holds `dir`.
pub fn facts(dir: &Path) -> Host {
    let system = rustix::system::uname();
    let text = |c: &std::ffi::CStr| c.to_string_lossy().into_owned();
    let (file_system, device) = mount_of(&read("/proc/self/mountinfo"), &whole(dir));
    Host {
        name: text(system.nodename()),
        cpu: field(&read("/proc/cpuinfo"), "model name"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_mib: memory_mib(&read("/proc/meminfo")),
        kernel: format!("{} {}", text(system.sysname()), text(system.release())),
        file_system,
        device,
        nodes: Vec::new(),
    }
}

fn read(path: &str) -> String {
    // Mount points may be any bytes.
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn whole(dir: &Path) -> PathBuf {
    dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf())
}

/// The first `name : value`.
fn field(text: &str, name: &str) -> String {
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let found = fields.into_iter().find(|(key, _)| key.trim() == name);
    found.map(|(_, value)| value.trim().to_string()).unwrap_or_default()
}

fn memory_mib(meminfo: &str) -> u64 {
    let total = field(meminfo, "MemTotal");
    total.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10
}

/// Kind and source of the mount that holds a path: the innermost, and of several at one place the
/// last, which covers the others.
fn mount_of(mountinfo: &str, path: &Path) -> (String, String) {
    let mut found = (0, String::new(), String::new());
    for line in mountinfo.lines() {
        let Some((place, mounted)) = line.split_once(" - ") else { continue };
        let point = unescaped(place.split(' ').nth(4).unwrap_or_default());
        let mut mounted = mounted.split(' ').map(unescaped);
        if path.starts_with(&point) && point.len() >= found.0 {
            let kind = mounted.next().unwrap_or_default();
            found = (point.len(), kind, mounted.next().unwrap_or_default());
        }
    }
    (found.1, found.2)
}

/// Undoes the octal escapes of blanks, tabs, line ends and backslashes.
fn unescaped(text: &str) -> String {
    let pairs = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    pairs.iter().fold(text.to_string(), |text, (code, letter)| text.replace(code, letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:40 / /mnt/a\\040b rw - fuse.nuri nuri rw
31 21 0:41 / /data rw - tmpfs tmpfs rw
32 31 0:42 / /data rw shared:2 master:1 - xfs /dev/vdb rw
";

    #[test]
    fn the_innermost_last_mount_holds_a_path() {
        let cases = [
            ("/etc", ("ext4", "/dev/vda")),
            ("/mnt/a b/c", ("fuse.nuri", "nuri")),
            ("/mnt/a bc", ("ext4", "/dev/vda")),
            ("/data/x", ("xfs", "/dev/vdb")),
        ];
        for (path, (kind, source)) in cases {
            let held = mount_of(MOUNTS, Path::new(path));
            assert_eq!(held, (kind.to_string(), source.to_string()), "{path}");
        }
    }

    #[test]
    fn this_machine_has_facts() {
        let host = facts(Path::new("/proc"));
        assert_eq!(host.file_system, "proc");
        assert!(host.cores > 0 && host.memory_mib > 0 && host.kernel.starts_with("Linux "));
    }
}
