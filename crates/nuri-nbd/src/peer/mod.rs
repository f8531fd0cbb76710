//! The client's side of the protocol, towards another server of this project: requests that came
//! here are forwarded to the server that owns the volume.
//!
//! [`dial`] connects and shakes hands, [`link`] carries requests and their answers, [`until`] says
//! how long a forwarded request may still be served.

mod dial;
mod link;
#[cfg(test)]
mod tests;
mod until;

pub use dial::{DialError, Dialed, dial};
pub use link::{Answer, Link, Lost};
pub use until::{AGE, ServerClock, Until, is_too_old};
