//! What of a file's bytes, size and times is not durable yet, and what makes it so. Pure: events
//! and time go in, and the next step of a sync comes out. The client carries the steps out; the
//! simulator plays the same steps against stores that lose power.
//!
//! WRITEBACK-1 A size is published only after the bytes below it are durable on the targets.
//! WRITEBACK-2 Before bytes beyond the published size leave, the metadata server knows that the
//!    file grows: whoever writes it next cuts off what lies there, where this client dies first.
//! WRITEBACK-3 A sync covers what was written before it began, and ends, however much is written
//!    meanwhile.
//! WRITEBACK-4 What a target answers to a push concerns the bytes of that push only: pushes are
//!    numbered, and what was given up and written again is pushed under another number, when the
//!    push that was given up has ended.
//!
//! Example. A program writes 20,000 bytes to an empty file with parity and syncs it. [`FileSync`]
//! asks for: `Push` of block 0; the push first says that the file grows ([`FileWriteback::grows`]),
//! then the members of the group have the bytes; nothing is left, so `Publish`: size 20,000.
//! On a stripe the targets have the bytes in memory only: `Flush` comes before `Publish`.

mod file;
mod sync;

pub use file::{FileWriteback, Publication, Told};
pub use sync::{FileSync, Goal, Step, SyncScope};
