//! Volumes as devices of this machine, `/dev/nbd0` and so on, by the kernel's NBD client.
//!
//! The kernel gets a connected socket for each server ([`device`]). While one of them lives,
//! requests go on; while none does, they wait. A [`Keeper`] connects anew to servers that were lost
//! and gives the kernel the new sockets.

mod device;
mod keeper;
mod netlink;

pub use device::{AttachError, Attached, attached, detach};
pub use keeper::Keeper;
