//! The kernel's FUSE protocol: byte layouts, what a request carries, how a reply is built.

pub mod abi;
pub mod limits;
pub(crate) mod read_order;
pub(crate) mod reply;
pub(crate) mod request;
