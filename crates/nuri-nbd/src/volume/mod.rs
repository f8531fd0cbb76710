//! The volumes of a space: files of a hidden directory, each of a fixed size.
//!
//! A volume is thin: what was never written costs no room. Whoever serves one holds its lock, so
//! that one server at a time knows all that its clients wrote.

mod catalog;
mod device;
mod memory;

pub use catalog::{Catalog, Shrink, VolumeError, VolumeView};
