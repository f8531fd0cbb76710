//! The client library behind every front end: files and directories of a space under leases.
//!
//! [`Client`] is what a front end calls; its calls are in [`api`]. [`inode`] holds what is known of
//! one inode: its lease, its attributes, its buffered data. [`lease`] acquires, recalls and expires
//! leases. [`writeback`] buffers what is written, pushes it to the targets, flushes and publishes
//! it. [`reservation`] keeps the account of space that targets promised. [`journal`] answers
//! operations in directories that the client holds exclusively. [`lock`] asks for the locks of
//! programs. [`session`] talks to the metadata server. The crate `nuri-volume` talks to the
//! targets.

mod api;
mod client;
mod housekeeping;
mod inode;
mod journal;
pub mod lease;
mod lock;
mod readahead;
mod reservation;
mod session;
mod thread_pool;
mod writeback;

pub use api::allocate::Allocate;
pub use api::block::Kept;
pub use api::file::{Access, Sync};
pub use api::names::{Listing, ListingEntry, Made};
pub use api::seek::Seek;
pub use api::unwritten::Unwritten;
pub use api::xattr::{Caller, Privileges};
pub use client::{Client, ClientConfig};
pub use inode::Entry;
pub use journal::queue;
pub use lease::invalidate::KernelCache;
pub use lock::{LockClient, LockPlace, delegation, record};
pub use writeback::payload::{OwnBlock, Position, WritePayload, WriteResult};
pub use writeback::{buffer, machine};
