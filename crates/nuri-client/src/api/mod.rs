//! The calls that a front end makes, one file for each kind of call.

pub(crate) mod allocate;
pub(crate) mod block;
pub(crate) mod file;
mod fill;
mod layout;
pub(crate) mod names;
pub(crate) mod seek;
mod tuning;
pub(crate) mod unwritten;
pub(crate) mod write;
pub(crate) mod xattr;
