//! The binary as a user runs it: real processes, real mounts, real kills. Needs root and FUSE;
//! what is missing fails the test, it is never skipped.

#![allow(clippy::unwrap_used)]

mod bad_input;
mod bytes;
mod calls;
mod coherence;
mod convert;
mod crash;
mod daemons;
mod fencing;
mod flow;
mod full;
mod full_host;
mod handles;
mod helper;
mod hostile;
mod lifecycle;
mod locks;
mod log;
mod memory;
mod metadata_copy;
mod moving;
mod network;
mod operate;
mod parts;
mod places;
mod posix;
mod preload;
mod redundancy;
mod repair;
mod report;
mod reserve;
mod rights;
mod scrub;
mod shaped;
mod shapes;
mod stopwatch;
mod support;
mod tagged;
mod testbed;
mod times;
mod transport;
mod trim;
mod turns;
mod wire;
