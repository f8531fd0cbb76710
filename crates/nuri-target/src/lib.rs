//! A storage target: keeps chunks on one disk, checksummed, and serves them.
//!
//! [`store`] is the chunk store; it knows nothing of networks, sessions or groups. On-disk formats
//! are in `docs/disk-format.md`.

pub mod admission;
pub mod epochs;
mod member;
pub mod server;
pub mod store;
pub mod target;
