//! The local machine: disks, aligned buffers, clocks, seeded randomness.
//!
//! All other crates reach storage through [`disk::Disk`]. So the same store runs on a file, on a
//! block device, and on the simulator's faulty disk.

pub mod announce;
pub mod buf;
pub mod clock;
pub mod daemon;
pub mod disk;
pub mod disk_suite;
pub mod file;
pub mod lock;
pub mod mem;
pub mod paired;
pub mod program;
pub mod rng;
pub mod tcp;
pub mod uring;
