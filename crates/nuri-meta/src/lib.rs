//! The metadata server: the namespace, its leases, its sessions.
//!
//! [`lease`] decides who may cache what, [`lock`] which program holds which bytes (both pure).
//! [`op`] holds one operation each, run by [`server::MetaServer`] in one transaction: sessions and
//! reply slots are checked, conflicting leases recalled, changes committed as one batch, and the
//! reply leaves when the batch and all it read are durable. Keys and records are in [`schema`].

mod acl;
mod commit;
mod deferred_unlink;
mod directory_delegation;
mod eviction;
pub mod fsck;
pub mod gc;
pub mod lease;
mod lease_pressure;
pub mod lock;
mod locks;
mod op;
mod part;
mod pending_commits;
mod recalls;
mod recent;
pub mod restored;
pub mod schema;
pub mod server;
pub mod session;
pub mod txn;
mod waits;

#[cfg(test)]
mod tests;
