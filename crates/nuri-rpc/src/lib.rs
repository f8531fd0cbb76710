//! Calls between nodes over TCP: handshake, frames, a server, pooled client connections.
//!
//! Blocking sockets and one thread per connection: a request costs one hand-over per process
//! (`docs/adr/0002-threads.md`). A connection carries one call at a time; parallel calls use
//! parallel connections of a bounded pool. Nothing is parsed before the peer proved the space's
//! secret.

mod awake;
mod conn;
mod frame;
mod handshake;
mod near;
mod peer;
mod progress_timeout;
mod reception;
mod secret;
mod server;
mod stream;
mod traffic;

pub use awake::{Awake, lock_within};
pub use conn::{CallContext, Conn, Pending};
pub use handshake::HandshakeError;
pub use peer::{Deadline, Peer, Reached, Started};
pub use secret::{Secret, SecretError};
pub use server::{Reply, Request, Server, Service, reply_to};
pub use traffic::Carried;

#[cfg(test)]
mod tests;
