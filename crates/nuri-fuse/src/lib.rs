//! The FUSE door: our own loop on the kernel's protocol.
//!
//! [`mount`] attaches, [`device`] reads requests and writes replies, [`dispatch`] turns opcodes
//! into calls of the client library, [`notify`] invalidates what the kernel caches. Byte layouts
//! are in [`abi`].

pub mod abi;
pub mod device;
mod directory;
mod dispatch;
mod file_ops;
pub mod mount;
mod notify;
mod reply;
mod request;
pub mod server;

pub use mount::{MountError, mount, unmount};
pub use server::{FuseConfig, serve};
