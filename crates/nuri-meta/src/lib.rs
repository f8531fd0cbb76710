//! The metadata server: the namespace, its leases, its sessions.
//!
//! [`lease`] decides who may cache what, [`lock`] which program holds which bytes (both pure).
//! [`op`] holds one operation each, run by [`server::MetaServer`] in one transaction: sessions and
//! reply slots are checked, conflicting leases recalled, changes committed as one batch, and the
//! reply leaves when the batch and all it read are durable. Keys and records are in [`schema`].

mod acl;
mod commit;
mod crowd;
mod deferred_unlink;
mod eviction;
pub mod fsck;
pub mod gc;
pub mod lease;
pub mod lock;
mod locks;
mod op;
mod part;
mod recalls;
mod recent;
pub mod restored;
pub mod schema;
pub mod server;
pub mod session;
mod turns;
pub mod txn;
mod unsettled;
mod waits;

#[cfg(test)]
mod tests;
