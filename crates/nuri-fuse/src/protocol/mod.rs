//! The kernel's FUSE protocol: byte layouts, the content of a request, and the building of a reply.

pub mod abi;
pub mod limits;
pub(crate) mod read_order;
pub(crate) mod reply;
pub(crate) mod request;
