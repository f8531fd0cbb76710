//! The writeback machine: which bytes, size and times of a file are not durable yet, and which step
//! makes them so. Pure: events and time go in, and the next step of a sync comes out. The client
//! carries the steps out. The simulator plays the same steps against stores that lose power.
//!
//! WRITEBACK-1 A size is published only after the bytes below it are durable on the targets.
//! WRITEBACK-2 Before bytes beyond the published size leave the client, the metadata server knows
//!    that the file grows. If this client then dies, the next writer of the file cuts off what lies
//!    there.
//! WRITEBACK-3 A sync covers what was written before it began. It ends, however much is written
//!    meanwhile.
//! WRITEBACK-4 A target's answer to a push concerns the bytes of that push only. So pushes are
//!    numbered. Bytes that were given up and written again are pushed under another number, after
//!    the push that was given up has ended.
//!
//! Example. A program writes 20,000 bytes to an empty file with parity and syncs it. [`FileSync`]
//! first asks for `Push` of block 0. The push says that the file grows ([`FileWriteback::grows`]),
//! and then the members of the group have the bytes. Nothing is left to push, so `Publish` follows:
//! size 20,000. On a stripe the targets have the bytes in memory only: `Flush` comes before
//! `Publish`.

mod file;
mod sync;

pub use file::{FileWriteback, Publication, Told};
pub use sync::{FileSync, Goal, Step, SyncScope};
