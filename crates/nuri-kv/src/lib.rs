//! An ordered transactional store for metadata.
//!
//! [`engine::Engine`] is the interface. Batches become visible at once and in order, and durable
//! together later. A caller that must not reply before its batch is durable waits for the batch's
//! number. [`embedded::Embedded`] keeps a group-commit log of its own in front of redb tables
//! (`docs/adr/0006-metadata-engine.md`).

pub mod embedded;
pub mod engine;
pub mod log;
mod memtable;
mod tables;

#[cfg(test)]
mod tests;
