//! Whole disks, partitions, optical drives and loop devices of this machine.
//!
//! A disk is served only where nothing else uses it. The kernel refuses a second exclusive opener,
//! which covers mounts, swap, md, LVM and running targets. While these do not run, their marks on a
//! disk are looked for in its first and last bytes.
//!
//! [`given`] opens disks for NBD servers on other machines; there they are [`remote`].

mod device;
mod disks;
mod given;
mod list;
mod remote;
mod signature;

pub use device::{OpenError, Writes};
pub use disks::Disks;
pub use given::{Allowed, GiveError, Given, GivenDisks, NoPath};
pub(crate) use list::used as used_by;
pub use list::{DiskView, Use, list};
pub use remote::{NodeError, OpenThere, OpenedThere, RemoteDisk, RemoteError};
