//! The ranges of a file that a client may write while other clients write other ranges.

use nuri_proto::range_map::{RangeMap, Span};

/// The ranges of a file that may be written here.
#[derive(Default)]
pub(crate) struct RangeLease {
    pub(super) held: RangeMap<()>,
    /// Of the last grant.
    pub(crate) number: u64,
    /// The file's mode: nobody else changes it while parts are held.
    pub(crate) mode: Option<u32>,
}

impl RangeLease {
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.held.iter().map(|(span, ())| span).collect()
    }
}
