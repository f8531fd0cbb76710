//! The FUSE door: our own loop on the kernel's protocol.
//!
//! [`mount`] attaches, [`dispatch`] turns opcodes into calls of the client library, [`notify`]
//! invalidates what the kernel caches. Requests come by one of two transports, as [`transport`]
//! finds: [`classic`] readers of [`device`], or [`rings`] whose entries are in [`uring`]. Byte
//! layouts are in [`abi`]. Large reads and writes of programs that ask for it go past the kernel:
//! [`bypass`]. What may be set of a running mount is in [`steer`].

pub mod abi;
mod bypass;
mod cached;
mod classic;
pub mod device;
mod directory;
mod dispatch;
mod file_ops;
mod lock_ops;
pub mod mount;
mod notify;
mod reads;
mod refresh;
mod reply;
mod request;
mod rings;
pub mod server;
mod steer;
pub mod transport;
mod uring;
mod xattr;

pub use bypass::Passed;
pub use mount::{MountError, mount, unmount};
pub use server::{FuseConfig, serve};
pub use transport::Transport;
