//! Lists the block devices of this machine, and what uses each.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::signature::{Signature, signature};

const SECTOR: u64 = 512;
const CLASS: &str = "/sys/class/block";

/// A block device of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskView {
    /// As `/dev` names it.
    pub path: PathBuf,
    pub size: u64,
    /// What the maker calls it; the file behind a loop device.
    pub model: String,
    /// Bytes that it reads and writes at once.
    pub block: u32,
    pub read_only: bool,
    pub used: Use,
}

/// What uses a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Use {
    Nothing,
    MountedAt(String),
    Swap,
    /// By other devices: md, device mapper.
    Held(Vec<String>),
    /// By a partition of it.
    Partition(String, Box<Use>),
    /// Nothing runs on it now, but it holds something.
    Holds(Signature),
    /// It cannot be read.
    Unknown(String),
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Use::Nothing => f.write_str("nothing"),
            Use::MountedAt(point) => write!(f, "mounted at {point}"),
            Use::Swap => f.write_str("swap"),
            Use::Held(names) => write!(f, "part of {}", names.join(", ")),
            Use::Partition(name, used) => write!(f, "partition {name}: {used}"),
            Use::Holds(signature) => signature.fmt(f),
            Use::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// What the kernel says of the uses of devices.
struct Kernel {
    /// Mount points by `major:minor`.
    mounts: BTreeMap<String, String>,
    swaps: Vec<PathBuf>,
}

impl Kernel {
    fn read() -> Kernel {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mount = |line: &str| {
            let mut words = line.split(' ').skip(2);
            Some((words.next()?.to_owned(), words.nth(1)?.replace("\\040", " ")))
        };
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let swaps = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        Kernel {
            mounts: mounts.lines().filter_map(mount).collect(),
            swaps: swaps.map(PathBuf::from).collect(),
        }
    }
}

/// All block devices with a medium.
///
/// # Errors
/// Where the kernel does not list them.
pub fn list() -> io::Result<Vec<DiskView>> {
    let kernel = Kernel::read();
    let mut names: Vec<_> = fs::read_dir(CLASS)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names.iter().filter_map(|name| view(name, &kernel)).collect())
}

/// What uses a device, named as in `/dev`.
pub(crate) fn used(name: &str) -> Use {
    use_of(name, &Kernel::read())
}

fn attribute(name: &str, attribute: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new(CLASS).join(name).join(attribute)).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn view(name: &str, kernel: &Kernel) -> Option<DiskView> {
    let sectors: u64 = attribute(name, "size")?.parse().ok()?;
    let size = sectors * SECTOR;
    // No medium, or a loop device without a file.
    if size == 0 {
        return None;
    }
    let path = path_of(name);
    let backing = attribute(name, "loop/backing_file");
    let model = backing.or_else(|| attribute(name, "device/model")).unwrap_or_default();
    let block = block_of(name);
    let read_only = attribute(name, "ro").as_deref() == Some("1");
    Some(DiskView { path, size, model, block, read_only, used: use_of(name, kernel) })
}

/// A slash in a device's name is an exclamation mark in the kernel's list.
fn path_of(name: &str) -> PathBuf {
    Path::new("/dev").join(name.replace('!', "/"))
}

/// A partition has the block size of its disk.
pub(super) fn block_of(name: &str) -> u32 {
    let of = |name: &str| attribute(name, "queue/logical_block_size")?.parse().ok();
    of(name).or_else(|| of(&parent(name)?)).unwrap_or(SECTOR as u32)
}

/// The disk of a partition.
fn parent(name: &str) -> Option<String> {
    let path = fs::canonicalize(Path::new(CLASS).join(name)).ok()?;
    path.join("partition").exists().then_some(())?;
    Some(path.parent()?.file_name()?.to_str()?.to_owned())
}

fn use_of(name: &str, kernel: &Kernel) -> Use {
    let own = own_use(name, kernel);
    if own != Use::Nothing {
        return own;
    }
    let inside = partitions(name).into_iter().find_map(|partition| {
        let used = own_use(&partition, kernel);
        (used != Use::Nothing).then(|| Use::Partition(partition, Box::new(used)))
    });
    inside.unwrap_or(Use::Nothing)
}

fn partitions(name: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(Path::new(CLASS).join(name)) else { return Vec::new() };
    let inside = entries.flatten().filter(|entry| entry.path().join("partition").exists());
    let mut names: Vec<_> = inside.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn own_use(name: &str, kernel: &Kernel) -> Use {
    let number = attribute(name, "dev").unwrap_or_default();
    if let Some(point) = kernel.mounts.get(&number) {
        return Use::MountedAt(point.clone());
    }
    let path = path_of(name);
    if kernel.swaps.contains(&path) {
        return Use::Swap;
    }
    let holders = fs::read_dir(Path::new(CLASS).join(name).join("holders"));
    let holders = holders.into_iter().flatten().flatten();
    let holders: Vec<_> = holders.filter_map(|e| e.file_name().into_string().ok()).collect();
    if !holders.is_empty() {
        return Use::Held(holders);
    }
    match signature(&path) {
        Ok(Some(signature)) => Use::Holds(signature),
        Ok(None) => Use::Nothing,
        Err(error) => Use::Unknown(error.to_string()),
    }
}
