//! A node of a space: its services, and its work in the background.
//!
//! [`bootstrap`] starts it: the first node with the authority and the metadata server, the others
//! with their targets only. [`services`] answers calls. Beside them run the [`heartbeat`], the
//! garbage collection ([`gc`]), the [`resync`] of targets that were away, the [`scrub`], and the
//! copies of the metadata ([`metadata_copy`]). [`directory`] says what lies in a node's directory.

pub mod any_path;
pub mod bootstrap;
pub mod directory;
pub mod disk_reserve;
pub mod disks;
pub mod failure;
mod gc;
mod heartbeat;
pub mod joining;
pub mod metadata_copy;
mod news;
mod resync;
mod scrub;
mod services;
pub mod targets;
