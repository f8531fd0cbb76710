//! The FUSE front end: a loop of our own on the kernel's protocol.
//!
//! [`mount`] attaches, [`server`] settles the handshake and serves. [`protocol`] has the byte
//! layouts. Requests come by one of two ways of [`transport`], which also tells the kernel what it
//! must no longer cache. [`op`] turns requests into calls of the client library. Large reads and
//! writes of programs that ask for it bypass the kernel: [`bypass`]. [`mount_tuning`] has the
//! settings of a running mount.

mod bypass;
mod growing;
pub mod mount;
mod mount_tuning;
mod op;
pub mod protocol;
pub mod server;
pub mod transport;

pub use bypass::Passed;
pub use mount::{MountError, mount, unmount};
pub use server::{FuseConfig, serve};
pub use transport::Transport;
