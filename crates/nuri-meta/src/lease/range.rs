//! Ranges of a file that one session may write while other sessions write other ranges. Pure.

use nuri_proto::range_map::{RangeMap, Span};

/// The ranges of a file that one session holds.
#[derive(Default)]
pub(crate) struct Parts {
    held: RangeMap<()>,
    /// Those that are being taken back, with the number of the recall.
    recalled: RangeMap<u64>,
}

impl Parts {
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(crate) fn add(&mut self, span: Span) {
        self.held.assign(span, Some(()));
    }

    /// Whether the session holds a byte of the span.
    pub(crate) fn meets(&self, span: Span) -> bool {
        self.held.meeting(span).next().is_some()
    }

    /// Whether a byte of the span is being recalled.
    pub(crate) fn is_recalled(&self, span: Span) -> bool {
        self.recalled.meeting(span).next().is_some()
    }

    /// What to recall so that another session may write `need` and go on from there. Bytes that
    /// were granted ahead beyond it are recalled too. Otherwise each of the next writes would
    /// recall a little.
    pub(crate) fn in_the_way(&self, need: Span) -> Option<Span> {
        let first = self.held.meeting(need).next()?;
        let (last, _) = self.held.meeting(need).last()?;
        Some(Span { start: first.0.start.max(need.start), end: last.end })
    }

    /// Notes a recall. `false`: a recall is under way for all of it.
    pub(crate) fn recall(&mut self, span: Span, number: u64) -> bool {
        let is_new = !self.recalled.covers(span);
        if is_new {
            self.recalled.assign(span, Some(number));
        }
        is_new
    }

    /// Notes that a recall was obeyed. Bytes that only a later recall takes back, or no recall, are
    /// not touched.
    pub(crate) fn recall_done(&mut self, span: Span, number: u64) {
        let over = |parts: &RangeMap<u64>| {
            let of_it = parts.meeting(span).filter(|(_, n)| *n <= number);
            of_it.map(|(part, _)| part).collect::<Vec<_>>()
        };
        for part in over(&self.recalled) {
            let (start, end) = (part.start.max(span.start), part.end.min(span.end));
            self.recalled.assign(Span { start, end }, None);
            self.held.assign(Span { start, end }, None);
        }
    }

    /// Whether nothing is being recalled.
    pub(crate) fn is_settled(&self) -> bool {
        self.recalled.is_empty()
    }

    /// Everything that is held.
    #[cfg(test)]
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.held.iter().map(|(span, ())| span).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    #[test]
    fn what_lies_beyond_a_need_goes_with_it() {
        let mut parts = Parts::default();
        parts.add(span(0, 99));
        assert_eq!(parts.in_the_way(span(40, 49)), Some(span(40, 99)));
        assert_eq!(parts.in_the_way(span(100, 120)), None);
        parts.add(span(200, 299));
        assert_eq!(parts.in_the_way(span(90, 210)), Some(span(90, 299)));
    }

    #[test]
    fn an_answer_ends_its_own_recall_only() {
        let mut parts = Parts::default();
        parts.add(span(0, 99));
        assert!(parts.recall(span(50, 99), 5));
        assert!(!parts.recall(span(60, 70), 6), "under way");
        parts.recall_done(span(50, 99), 5);
        assert_eq!(parts.spans(), [span(0, 49)]);
        parts.add(span(50, 99));
        parts.recall_done(span(50, 99), 5);
        assert_eq!(parts.spans(), [span(0, 99)], "repeated");
        assert!(parts.recall(span(90, 99), 9));
        parts.recall_done(span(50, 99), 5);
        assert!(parts.is_recalled(span(90, 99)) && parts.meets(span(90, 99)));
        parts.recall_done(span(90, 99), 9);
        assert!(parts.is_settled() && !parts.meets(span(90, 99)));
    }
}
