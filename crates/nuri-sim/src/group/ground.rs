//! What all actors of a run share: the stripes, what was written to them, and the rules of the run.

use std::collections::BTreeSet;

use nuri_proto::id::TargetId;
use nuri_proto::layout::Shape;
use nuri_volume::group::{Finding, Flaw, Stripe, Verdict};
use parking_lot::Mutex;

use super::history::{History, Span, Writers};
use crate::check::{CELL, Wrong, wrong};

/// Bytes of a chunk that the run uses: more than the store writes through its log.
pub(super) const CELLS: usize = 176;

/// See the module's text.
pub(super) struct Ground {
    pub(super) stripes: Vec<Stripe>,
    pub(super) history: Mutex<History>,
    /// Stripes that somebody began to cut off, and did not end. Who takes over ends it first, as
    /// the metadata server does.
    pub(super) cutting: Mutex<BTreeSet<usize>>,
    /// Targets of which bits turned over: a scrub may find them damaged, and no others.
    pub(super) rotten: Mutex<BTreeSet<TargetId>>,
    /// Operations of each client.
    pub(super) operations: u64,
    /// Whether a client takes the sole right to a stripe first, as metadata leases give it.
    pub(super) is_leased: bool,
    /// Whether clients cut stripes off. Where a cut cannot be ended its stripe is lost to all.
    pub(super) cuts: bool,
}

impl Ground {
    /// Data places of a stripe.
    pub(super) fn places(&self, stripe: usize) -> usize {
        self.stripes[stripe].shape.data()
    }

    /// What a scrub repaired is what was harmed.
    ///
    /// # Errors
    /// A member that it found wrong and should not have.
    pub(super) fn check_verdict(&self, verdict: &Verdict) -> Result<(), Wrong> {
        let is_harmed = |f: &Finding| match f.flaw {
            Flaw::Damaged => self.rotten.lock().contains(&f.target),
            // It looks like a truncation under way, and may be one.
            Flaw::Missing => !f.repaired,
            Flaw::Stale | Flaw::Misfit => false,
        };
        match verdict.findings.iter().find(|f| !is_harmed(f)) {
            None => Ok(()),
            Some(finding) => Err(wrong!("the scrub found {finding:?}")),
        }
    }

    /// Notes what a read gave.
    ///
    /// # Errors
    /// As [`History::read`].
    pub(super) fn note_read(&self, span: &Span, t: (u64, u64), bytes: &[u8]) -> Result<(), Wrong> {
        self.history.lock().read(span, t, bytes)
    }

    pub(super) fn writers(&self) -> Writers {
        if self.is_leased { Writers::Alone } else { Writers::Racing }
    }

    pub(super) fn is_cut_open(&self, stripe: usize) -> bool {
        self.cutting.lock().contains(&stripe)
    }

    /// All of a stripe.
    pub(super) fn all(&self, stripe: usize) -> Vec<Span> {
        (0..self.places(stripe)).map(|place| self.whole(stripe, place)).collect()
    }

    /// All of one place.
    pub(super) fn whole(&self, stripe: usize, place: usize) -> Span {
        Span { stripe, place, cells: 0..CELLS }
    }
}

impl Span {
    /// Where it begins in the chunk.
    pub(super) fn offset(&self) -> u32 {
        (self.cells.start * CELL) as u32
    }

    pub(super) fn len(&self) -> usize {
        self.cells.len() * CELL
    }
}

/// Whether all copies of a stripe are the same bytes.
pub(super) fn is_mirror(shape: Shape) -> bool {
    matches!(shape, Shape::Mirror(_))
}
