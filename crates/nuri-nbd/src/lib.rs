//! Volumes of a space as network block devices: a server of the NBD protocol, and what it serves.
//!
//! [`server`] listens. [`handshake`] is the machine that agrees with a client on an export.
//! [`connection`] serves the export's requests, and [`order`] keeps overlapping requests in order.
//! [`export`] is what the server asks of a device. [`volume`] has the devices that a space keeps,
//! as files of a hidden directory; [`disk`] has those of this machine. [`protocol`] has the numbers
//! and layouts of the wire.

mod age;
pub mod attach;
mod client;
mod connection;
pub mod disk;
pub mod export;
mod handshake;
mod input;
mod order;
pub mod peer;
mod protocol;
pub mod server;
mod socket;
#[cfg(feature = "tls")]
pub mod tls;
mod unanswered;
#[cfg(feature = "volume")]
pub mod volume;

pub use age::{AGE, Age, is_over};
pub use handshake::fuzz;
pub use order::{Arrivals, Order, Use};
pub use protocol::Errno;
pub use unanswered::Unanswered;
