//! Names, inodes and their attributes. [`op`] has one file for each kind of operation. Each
//! operation runs in one transaction ([`txn`]) over the keys and records of [`schema`].

pub(crate) mod deferred_unlink;
pub(crate) mod op;
pub(crate) mod recent_names;
pub mod schema;
pub mod txn;
