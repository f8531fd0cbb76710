//! A map from each byte of a file to the value that was assigned last: the shape of POSIX locks.
//! Pure.
//!
//! Its parts are disjoint and ascending, and neighbours with the same value are one part. Callers:
//! the lock table of the metadata server, and the client's record of the locks that it holds.

use serde::{Deserialize, Serialize};

/// Bytes `start` to `end`, both included.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Span {
    pub start: u64,
    pub end: u64,
}

impl Span {
    /// The last offset that a file can have.
    pub const LAST: u64 = i64::MAX as u64;
    /// All bytes that a file can have.
    pub const ALL: Span = Span { start: 0, end: Span::LAST };

    /// Whether a file can have these bytes.
    pub fn is_valid(self) -> bool {
        self.start <= self.end && self.end <= Span::LAST
    }

    /// The part of this span that lies in the other span, which it meets.
    pub fn part_of(self, other: Span) -> Span {
        Span { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// Whether both spans have a byte in common.
    pub fn meets(self, other: Span) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// Values of byte ranges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeMap<V> {
    parts: Vec<(Span, V)>,
}

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        RangeMap { parts: Vec::new() }
    }
}

impl<V: Copy + PartialEq> RangeMap<V> {
    /// Gives each byte of `span` the value that `f` makes of its present one; `None` is no value.
    pub fn update(&mut self, span: Span, f: impl Fn(Option<V>) -> Option<V>) {
        // With the neighbours that touch it, so that equal ones become one part.
        let first = self.parts.partition_point(|(p, _)| p.end.saturating_add(1) < span.start);
        let last = self.parts.partition_point(|(p, _)| p.start <= span.end.saturating_add(1));
        let mut fresh = Vec::with_capacity(last - first + 2);
        let mut next = span.start;
        for &(part, value) in &self.parts[first..last] {
            if part.start < span.start {
                let end = part.end.min(span.start - 1);
                join(&mut fresh, Span { start: part.start, end }, Some(value));
            }
            let inner = Span { start: part.start.max(span.start), end: part.end.min(span.end) };
            if inner.start <= inner.end {
                if next < inner.start {
                    join(&mut fresh, Span { start: next, end: inner.start - 1 }, f(None));
                }
                join(&mut fresh, inner, f(Some(value)));
                next = inner.end + 1;
            }
            if part.end > span.end {
                if next <= span.end {
                    join(&mut fresh, Span { start: next, end: span.end }, f(None));
                    next = span.end + 1;
                }
                let start = part.start.max(span.end + 1);
                join(&mut fresh, Span { start, end: part.end }, Some(value));
            }
        }
        if next <= span.end {
            join(&mut fresh, Span { start: next, end: span.end }, f(None));
        }
        self.parts.splice(first..last, fresh);
    }

    pub fn assign(&mut self, span: Span, value: Option<V>) {
        self.update(span, |_| value);
    }

    /// Whether every byte of `span` has a value.
    pub fn covers(&self, span: Span) -> bool {
        let mut next = span.start;
        for (part, _) in self.meeting(span) {
            if part.start > next {
                return false;
            }
            next = part.end.saturating_add(1);
        }
        next > span.end
    }

    /// Parts that have a byte in `span`, whole.
    pub fn meeting(&self, span: Span) -> impl Iterator<Item = (Span, V)> + '_ {
        let first = self.parts.partition_point(|(p, _)| p.end < span.start);
        self.parts[first..].iter().copied().take_while(move |(p, _)| p.start <= span.end)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Span, V)> + '_ {
        self.parts.iter().copied()
    }

    /// Keeps the parts whose value `f` accepts.
    pub fn retain(&mut self, f: impl Fn(V) -> bool) {
        self.parts.retain(|(_, value)| f(*value));
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

fn join<V: PartialEq>(parts: &mut Vec<(Span, V)>, span: Span, value: Option<V>) {
    let Some(value) = value else { return };
    match parts.last_mut() {
        Some((last, same)) if *same == value && last.end.checked_add(1) == Some(span.start) => {
            last.end = span.end;
        }
        _ => parts.push((span, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    #[test]
    fn parts_split_merge_and_reach_the_last_byte() {
        let mut map = RangeMap::default();
        map.assign(Span::ALL, Some('r'));
        map.assign(span(10, 19), Some('w'));
        map.assign(span(12, 13), None);
        let parts: Vec<_> = map.iter().collect();
        let rest = span(20, Span::LAST);
        assert_eq!(
            parts,
            [(span(0, 9), 'r'), (span(10, 11), 'w'), (span(14, 19), 'w'), (rest, 'r')]
        );
        assert_eq!(map.meeting(span(9, 14)).count(), 3);
        map.assign(span(10, 19), Some('r'));
        assert_eq!(map.iter().collect::<Vec<_>>(), [(Span::ALL, 'r')]);
        map.assign(Span::ALL, None);
        assert!(map.is_empty());
    }

    /// Against one cell per byte, over all small cases that a seeded walk meets.
    #[test]
    fn a_map_is_what_its_cells_are() {
        let mut state = 7u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let (mut map, mut cells) = (RangeMap::default(), [None; 24]);
        for _ in 0..20_000 {
            let (a, b) = (draw(24), draw(24));
            let (start, end) = (a.min(b), a.max(b));
            let value = [None, Some(0u8), Some(1), Some(2)][draw(4) as usize];
            map.update(span(start, end), |old| if old > Some(1) { old } else { value });
            let within = &mut cells[start as usize..=end as usize];
            within.iter_mut().for_each(|c| *c = if *c > Some(1) { *c } else { value });
            if draw(6) == 0 {
                map.assign(span(0, end), None);
                cells[..=end as usize].fill(None);
            }
            let mut seen = [None; 24];
            for (part, value) in map.iter() {
                assert!(part.start <= part.end);
                seen[part.start as usize..=part.end as usize].fill(Some(value));
            }
            assert_eq!(seen, cells);
            let parts: Vec<_> = map.iter().collect();
            assert!(parts.windows(2).all(|w| {
                let ((one, a), (two, b)) = (w[0], w[1]);
                one.end < two.start && (one.end + 1 < two.start || a != b)
            }));
        }
    }
}
