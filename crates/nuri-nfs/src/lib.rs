//! A space as an NFS server.
//!
//! [`server`] has connections and threads. [`rpc`] reads and writes the messages on them, and
//! [`protocol`] what is in the messages. [`gateway`] is the service: it takes calls apart, and
//! [`op`] carries them out on the files of the space. [`export`] says which directories clients may
//! mount and what they may do there. [`handle`] has the names by which clients keep files, and
//! [`permission`] says which user may do what. [`floating`] moves an address from one server to
//! another, and [`rpcbind`] tells clients the ports. What a server remembers of its clients' calls
//! is in [`opened`], [`remembered`] and [`repeated`].

#[cfg(feature = "space")]
pub mod export;
#[cfg(feature = "space")]
pub mod floating;
mod fuzz;
#[cfg(feature = "space")]
pub mod gateway;
#[cfg(feature = "space")]
pub mod handle;
#[cfg(feature = "space")]
mod op;
#[cfg(feature = "space")]
mod opened;
#[cfg(feature = "space")]
mod permission;
pub mod protocol;
#[cfg(feature = "space")]
mod remembered;
#[cfg(feature = "space")]
mod repeated;
pub mod rpc;
#[cfg(feature = "space")]
pub mod rpcbind;
pub mod server;

pub use fuzz::fuzz;
