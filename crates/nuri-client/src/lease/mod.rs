//! Leases on inodes.
//!
//! [`state`] is what a client may believe to hold. [`acquire`] asks for leases. [`revocation`] says
//! when a recalled lease may leave, and [`give_back`] what has to leave the inode before it.
//! [`recall`] listens to the server, and [`invalidate`] empties the kernel's caches. [`range`] has
//! leases on ranges of a file that several clients write. [`expiry`] ends leases when the server
//! does not answer. [`downgrade`] gives up the leases of a directory's files.

pub(crate) mod acquire;
mod downgrade;
pub(crate) mod drain;
mod expiry;
mod give_back;
pub(crate) mod held_ranges;
pub(crate) mod invalidate;
pub(crate) mod range;
pub(crate) mod recall;
pub mod revocation;
pub mod state;
