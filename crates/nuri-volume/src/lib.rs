//! Bytes on targets, without names and without leases: the lower half of every client.
//!
//! [`Cluster`] knows the map of the space and keeps the connections. [`DataPlane`] reads, writes,
//! flushes and deletes ranges of objects by their layout. [`group`] writes, reads, repairs and
//! proves redundant stripes. [`transfer`] decides how large the calls are, and how many of them are
//! in flight. Nodes, the simulator and the laboratory use this crate without the client.

mod data_plane;
pub mod group;
mod map_cache;
pub mod punch;
pub mod transfer;

pub use data_plane::{DataPlane, stripe_of};
pub use map_cache::{Cluster, ConnectError};
