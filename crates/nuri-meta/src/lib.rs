//! The metadata server: the namespace, its leases, its sessions.
//!
//! [`lease`] decides which session may cache what, and [`lock`] which program holds which bytes
//! (both pure). [`namespace`] has a file for each operation. [`server::MetaServer`] runs each
//! operation in one transaction. It checks the [`session`] and the reply slot, recalls conflicting
//! leases, and commits the changes as one batch. The reply leaves when the batch, and everything
//! that was read, are durable ([`executor`]).

mod executor;
pub mod fsck;
pub mod gc;
mod group_use;
pub mod lease;
pub mod lock;
pub mod namespace;
pub mod restored;
pub mod server;
pub mod session;

#[cfg(test)]
mod tests;
