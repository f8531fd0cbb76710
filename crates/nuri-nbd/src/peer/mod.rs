//! Devices of other servers of this project. Requests that came here are forwarded to the server
//! that has the device.
//!
//! [`door`] is the other server's side: which servers may forward to it ([`gates`]), and what is
//! refused. On this side, [`dial`] connects and shakes hands, [`link`] carries requests and their
//! answers, and [`remote`] is the device. [`ways`] finds the device anew when a link is lost.
//! [`until`] says how long a forwarded request may still be served. [`crate::Unanswered`] says when
//! this server may disconnect a client whose requests were forwarded.

mod dial;
mod door;
mod gates;
mod link;
mod remote;
#[cfg(test)]
pub(crate) mod tests;
mod token;
mod until;
mod ways;

pub use dial::{DialError, Dialed, Speaks, dial};
pub use door::Door;
pub use gates::{Gates, Way};
pub use link::{Answer, Link, Lost};
pub use remote::Remote;
pub use token::{Entry, Token};
pub use until::{ServerClock, Until};
pub use ways::{Forwarder, NoLink, NoWay, Ways};
