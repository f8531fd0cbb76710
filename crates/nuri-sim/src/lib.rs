//! The whole system on one thread from one seed: real stores, a real metadata server, simulated
//! disks, network and clock.
//!
//! [`world::run`] plays one seed to its end. The checkers ([`check`]) know nothing of the code.
//! They know only what was written, what was acknowledged and what was flushed. A failure names the
//! seed, which plays the same again. The program: `cargo sim [SEED]`, `--seeds N`, `--minutes M`.

pub mod check;
mod client;
pub mod devices;
pub mod group;
pub mod logged;
mod meta;
mod names;
mod target;
pub mod world;
