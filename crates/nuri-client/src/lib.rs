//! The client library behind every front end: files and directories of a space under leases.
//!
//! [`Client`] is the API. [`node`] holds what is known of one inode: its lease, its attributes,
//! its buffered data. [`writeback`] pushes, flushes and publishes; [`recall`] gives leases back;
//! [`session`] talks to the metadata server; the crate `nuri-volume` to the targets.

mod access;
mod ahead;
mod allocate;
mod brought;
mod budget;
mod buffer;
mod charge;
mod cost;
mod crew;
mod file;
mod found;
mod fs;
pub mod hold;
mod invalidate;
mod layout;
mod linger;
mod lock;
mod lock_record;
mod log;
mod names;
mod node;
mod part;
mod push_row;
mod range;
mod recall;
mod reserve;
mod room;
mod seek;
mod session;
mod share;
mod suspend;
mod through;
mod trim;
mod tuning;
mod write;
mod writeback;
mod xattr;

pub use allocate::Allocate;
pub use brought::{Brought, OwnBlock};
pub use file::{Access, Position, Sync};
pub use fs::{Client, ClientConfig, Entry, Listing, ListingEntry};
pub use lock::LockPlace;
pub use log::queue;
pub use recall::KernelCache;
pub use seek::Seek;
pub use write::Wrote;
pub use xattr::{Caller, Privileges};
