//! The metadata server: the namespace, its leases, its sessions.
//!
//! [`lease`] decides who may cache what, [`lock`] which program holds which bytes (both pure).
//! [`namespace`] holds one operation each, run by [`server::MetaServer`] in one transaction: the
//! [`session`] and its reply slots are checked, conflicting leases recalled, changes committed as
//! one batch, and the reply leaves when the batch and all it read are durable ([`executor`]).

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
