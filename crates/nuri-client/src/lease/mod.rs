//! Leases on inodes. What a client may believe to hold is in [`state`], how leases are acquired in
//! [`acquire`], when one that is recalled may leave in [`revocation`], and what has to leave before
//! it in [`give_back`]. [`recall`] hears the server, [`invalidate`] empties the kernel's caches.
//! [`range`] has leases on ranges of a file that several clients write, [`expiry`] their end when
//! the server is silent, [`downgrade`] gives up those of a directory's files.

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
