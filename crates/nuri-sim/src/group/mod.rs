//! Redundant stripes under faults: the real engine of `nuri-volume`, the real servers and stores
//! of `nuri-target` and the real authority, from one seed.
//!
//! Clients and workers are threads, of which one runs at a time ([`baton`]); each of their calls is
//! an event of the [`world`]. Nodes crash, freeze and are cut off ([`faults`]), packets are lost,
//! doubled and late ([`net`]). The checker ([`history`]) knows what was written, read and
//! acknowledged, and nothing of the code.

mod actors;
pub mod attacks;
mod baton;
mod compare;
mod faults;
mod ground;
mod harm;
mod history;
mod locks;
mod members;
mod net;
mod node;
mod port;
mod report;
mod run;
mod script;
mod trace;
mod world;

pub use faults::{Fault, Plan};
pub use report::Report;
pub use run::{play, run, run_leased, run_racing};
