//! The calls of a front end, a file for each kind.

mod access;
pub(crate) mod allocate;
pub(crate) mod file;
mod layout;
pub(crate) mod names;
pub(crate) mod seek;
mod tuning;
pub(crate) mod write;
pub(crate) mod write_payload;
pub(crate) mod xattr;

pub(crate) use access::Accesses;
