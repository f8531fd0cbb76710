//! Whole disks, partitions, optical drives and loop devices of this machine.
//!
//! A disk is served only where nothing else uses it. The kernel refuses a second exclusive opener,
//! which covers mounts, swap, md, LVM and targets that run. What they left on a disk while they do
//! not run is looked for in its first and last bytes.

mod device;
mod list;
mod signature;

pub use device::{Disks, OpenError, Writes};
pub use list::{DiskView, Use, list};
