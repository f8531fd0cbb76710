//! Calls about ranges of a file that several sessions write at the same time.

use serde::{Deserialize, Serialize};

use super::call;
use super::meta::{FileRecord, InodeReply};
use crate::id::Ino;
use crate::range_map::Span;

/// Asks to write some bytes of a file. The answer is the write lease of the whole file or, where
/// several sessions write it, of these bytes only. The holder of such a range knows neither size
/// nor times, and reads nothing under it. A session that asks for the whole file gives up its
/// ranges before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AcquirePart {
    pub ino: Ino,
    pub need: Span,
    pub ahead: Ahead,
    /// The file's record is known already.
    pub known: bool,
}
call!(AcquirePart => AcquirePartReply);

/// The bytes that the client will likely ask for next: spans of `len` bytes, each `step` after the
/// one before.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Ahead {
    pub start: u64,
    pub len: u64,
    pub step: u64,
    pub count: u32,
}

impl Ahead {
    /// The spans that lie within the largest possible file.
    pub fn spans(self) -> impl Iterator<Item = Span> {
        let span = move |n: u32| {
            let start = self.start.checked_add(self.step.checked_mul(n.into())?)?;
            let span = Span { start, end: start.checked_add(self.len.checked_sub(1)?)? };
            span.is_valid().then_some(span)
        };
        (0..self.count).map_while(span)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AcquirePartReply {
    pub inode: InodeReply,
    pub part: Option<PartGrant>,
    /// A write takes a capability away from it.
    pub has_capability: bool,
    /// Of regular files, where it was not known or the whole was granted.
    pub file: Option<FileRecord>,
}

/// Bytes that may be written: the requested ones, and the first `count` spans ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartGrant {
    pub number: u64,
    pub count: u32,
}
