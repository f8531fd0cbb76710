//! Messages between processes of one machine through shared memory.
//!
//! Processes of one user open the ranks of a named session and send each other tagged messages; a
//! receive names a sender and a tag, or any, and takes messages in the order in which MPI would.
//! Each pair of ranks has a ring of short messages and one of long ones for each direction.
//! Waiting sleeps after a short spin; the end of a peer is noticed at once, whatever it was doing.
//!
//! ```
//! use nuri_ipc::{Config, Endpoint, Selector};
//! # let dir = tempfile::tempdir().unwrap();
//! # let config = |rank| Config::new("doc", rank, 2).dir(dir.path().join("ipc"));
//! let a = Endpoint::open(config(0))?;
//! let b = Endpoint::open(config(1))?;
//! let sender = std::thread::spawn(move || a.send(1, 7, b"hello"));
//! let mut bytes = [0; 16];
//! let status = b.recv(Selector::ANY, &mut bytes, None)?;
//! assert_eq!((status.source, status.tag, &bytes[..5]), (0, 7, &b"hello"[..]));
//! # sender.join().unwrap()?;
//! # Ok::<(), nuri_ipc::Error>(())
//! ```

mod arrival;
mod bell;
mod bulk;
mod cma;
pub mod config;
mod copy;
mod distance;
pub mod endpoint;
mod engine;
pub mod error;
mod guard;
pub mod heap;
pub mod info;
pub mod lent_pages;
mod link;
mod matching;
mod region;
mod requests;
mod ring;
mod session;
pub mod single_copy;
mod socket;
mod span;
mod trial;
mod watcher;
pub mod window;

pub use config::{Config, CrossMemory};
pub use distance::Cores;
pub use endpoint::{Endpoint, SingleEndpoint};
pub use error::{Error, Result};
pub use heap::{Lent, Loan};
pub use info::{Info, PeerInfo};
pub use matching::Selector;
pub use requests::{Completion, OPEN_MAX, Request, Status};
pub use window::Window;
