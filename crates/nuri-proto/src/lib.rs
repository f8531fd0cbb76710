//! What Nuri's nodes say to each other: ids, units, limits, statuses, frames and calls.
//!
//! Pure: no I/O, no clock, no threads. Every byte that arrives from a network is parsed here, with
//! every length checked against [`limit`] before anything is allocated. Byte tables are in
//! `docs/wire-format.md`.

pub mod acl;
pub mod change;
pub mod checksum;
pub mod clock;
pub mod codec;
pub mod header;
pub mod id;
pub mod layout;
pub mod limit;
pub mod map;
pub mod op;
pub mod range_map;
pub mod size;
pub mod status;
pub mod stripe;
pub mod version;
pub mod xattr;

pub use status::Status;
