//! Leases on inodes: what a client may believe to hold ([`state`]), how leases are given back
//! ([`recall`], [`invalidate`]), leases on ranges of a file ([`range`]), their end when the server
//! is silent ([`expiry`]), and giving up those of a directory's files ([`downgrade`]).

mod downgrade;
mod expiry;
pub(crate) mod invalidate;
pub(crate) mod range;
pub(crate) mod recall;
pub mod state;
