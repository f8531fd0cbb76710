//! Names, inodes and their attributes: one operation a file in [`op`], each run in one transaction
//! ([`txn`]) over the keys and records of [`schema`].

pub(crate) mod deferred_unlink;
pub(crate) mod op;
pub(crate) mod recent_names;
pub mod schema;
pub mod txn;
