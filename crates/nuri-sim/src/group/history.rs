//! What programs wrote and read, cell by cell, and whether one order explains all of it.
//!
//! A cell is 512 bytes of one place of a stripe. Every write has a number that its cells carry, so
//! a reader's bytes tell which write they come from. Each cell must be a register. All operations
//! that ended, and some of those that did not, must have an order. The order agrees with their
//! times, and every read gives the write before it. With unique values, the zones of Gibbons and
//! Korach decide that: per value, from the first end of an operation on it to the last beginning.
//!
//! Beyond that, a write that failed, or whose writer died, must not come after a write that began
//! later and was acknowledged.

use std::collections::BTreeMap;
use std::ops::Range;

use nuri_proto::checksum::mix;

use crate::check::{CELL, Wrong, wrong};

/// After everything.
const NEVER: u64 = u64::MAX;

/// Whether several may write one stripe at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Writers {
    Alone,
    /// Then a write that is refused because another came after it is done again, and may be seen
    /// before and after that other one: but never after its end.
    Racing,
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Open,
    /// It may happen later still, as far as the caller was told.
    Failed(u64),
    Done(u64),
}

#[derive(Clone, Debug)]
struct Write {
    begin: u64,
    end: End,
    who: usize,
}

/// One read of one cell.
#[derive(Clone, Copy)]
struct Read {
    begin: u64,
    end: u64,
    id: u64,
}

/// Cells by stripe and place.
type Cell = (usize, usize, usize);

/// See the module's text.
#[derive(Default)]
pub(super) struct History {
    writes: Vec<Write>,
    /// Those that wrote zeros, ascending: their cells do not say which.
    zeros: Vec<u64>,
    by_cell: BTreeMap<Cell, (Vec<u64>, Vec<Read>)>,
    pub(super) acknowledged: u64,
    pub(super) failed: u64,
    pub(super) reads: u64,
    pub(super) failed_reads: u64,
}

/// A range of cells of one place of one stripe.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) stripe: usize,
    pub(super) place: usize,
    pub(super) cells: Range<usize>,
}

impl Span {
    pub(super) fn bytes(&self, id: u64) -> Vec<u8> {
        let cells = self.cells.clone();
        cells.flat_map(|cell| pattern((self.stripe, self.place, cell), id)).collect()
    }

    fn keys(&self) -> impl Iterator<Item = Cell> {
        let (stripe, place) = (self.stripe, self.place);
        self.cells.clone().map(move |cell| (stripe, place, cell))
    }
}

impl History {
    /// A write begins; returns its number.
    pub(super) fn begin_write(&mut self, who: usize, now: u64, spans: &[Span]) -> u64 {
        self.writes.push(Write { begin: now, end: End::Open, who });
        let id = self.writes.len() as u64;
        for key in spans.iter().flat_map(Span::keys) {
            self.by_cell.entry(key).or_default().0.push(id);
        }
        id
    }

    /// Cells are cut off, or zeros are written to them; returns the number.
    pub(super) fn begin_zeros(&mut self, who: usize, now: u64, spans: &[Span]) -> u64 {
        let id = self.begin_write(who, now, spans);
        self.zeros.push(id);
        id
    }

    pub(super) fn end_write(&mut self, id: u64, now: u64, is_done: bool) {
        let end = if is_done { End::Done(now) } else { End::Failed(now) };
        self.writes[id as usize - 1].end = end;
        *(if is_done { &mut self.acknowledged } else { &mut self.failed }) += 1;
    }

    /// Whoever this is, it does nothing any more.
    pub(super) fn died(&mut self, who: usize, now: u64) {
        for write in self.writes.iter_mut().filter(|w| w.who == who && w.end == End::Open) {
            write.end = End::Failed(now);
        }
    }

    /// A read gave these bytes.
    ///
    /// # Errors
    /// Bytes that no write put there.
    pub(super) fn read(
        &mut self,
        span: &Span,
        (begin, end): (u64, u64),
        bytes: &[u8],
    ) -> Result<(), Wrong> {
        self.reads += 1;
        for (key, found) in span.keys().zip(bytes.chunks(CELL)) {
            let id = id_of(found);
            let written = self.by_cell.entry(key).or_default();
            if found != pattern(key, id) || id != 0 && !written.0.contains(&id) {
                return Err(wrong!("{} holds bytes that no write put there", name(key)));
            }
            let last = written.1.last_mut().filter(|r| r.id == id && r.begin == begin);
            match last {
                Some(same) => same.end = same.end.min(end),
                None => written.1.push(Read { begin, end, id }),
            }
        }
        Ok(())
    }

    /// # Errors
    /// The first cell of which no order explains the reads.
    pub(super) fn check(&self, writers: Writers) -> Result<(), Wrong> {
        for (key, (writes, reads)) in &self.by_cell {
            let named = |read: &Read| Read { id: self.source(writes, read), ..*read };
            let reads: Vec<_> = reads.iter().map(named).collect();
            let reads = &reads;
            let came: Vec<_> = writes.iter().map(|id| (*id, self.came(*id, reads))).collect();
            let plain = reads.iter().try_for_each(|read| self.check_read(&came, read));
            let strict = || match writers {
                Writers::Alone => self.check_order(writes, reads),
                Writers::Racing => Ok(()),
            };
            plain.and_then(|()| strict()).map_err(|e| wrong!("{}: {e}", name(*key)))?;
        }
        Ok(())
    }

    /// The write that a read is of. Zeros are of the last that wrote zeros and had begun: where an
    /// earlier one explains them too, no other write came in between.
    fn source(&self, writes: &[u64], read: &Read) -> u64 {
        let had_begun = |id: &&u64| self.writes[**id as usize - 1].begin < read.end;
        let is_zero = |id: &&u64| self.zeros.binary_search(id).is_ok();
        let zero = || writes.iter().rev().filter(had_begun).find(is_zero).copied();
        if read.id == 0 { zero().unwrap_or(0) } else { read.id }
    }

    fn check_order(&self, writes: &[u64], reads: &[Read]) -> Result<(), Wrong> {
        let zone = |id: u64| {
            let of_value = reads.iter().filter(|r| r.id == id);
            let write = (id != 0).then(|| &self.writes[id as usize - 1]);
            let (begin, end) = match write {
                None => (0, 0),
                Some(Write { begin, end: End::Done(end), .. }) => (*begin, *end),
                Some(Write { begin, .. }) => (*begin, NEVER),
            };
            let first_end = of_value.clone().map(|r| r.end).min().unwrap_or(NEVER).min(end);
            let last_begin = of_value.map(|r| r.begin).max().unwrap_or(0).max(begin);
            (id, first_end, last_begin)
        };
        let counts = |id: &u64| {
            let is_done = matches!(self.writes[*id as usize - 1].end, End::Done(_));
            is_done || reads.iter().any(|r| r.id == *id)
        };
        let ids = writes.iter().copied().filter(counts);
        let zones: Vec<_> = std::iter::once(0).chain(ids).map(zone).collect();
        let (forward, backward): (Vec<_>, Vec<_>) = zones.iter().partition(|z| z.1 < z.2);
        for (i, (id, from, to)) in forward.iter().enumerate() {
            let overlaps = |z: &&(u64, u64, u64)| z.1 < *to && *from < z.2;
            if let Some(other) = forward[i + 1..].iter().find(overlaps) {
                let (a, b) = (self.tell(*id), self.tell(other.0));
                return Err(wrong!("no order explains that both were read in turn: {a}; {b}"));
            }
            let within = |z: &&(u64, u64, u64)| *from < z.2 && z.1 < *to;
            if let Some(other) = backward.iter().find(within) {
                let (a, b) = (self.tell(*id), self.tell(other.0));
                return Err(wrong!("{a} was read although it was overwritten meanwhile by {b}"));
            }
        }
        Ok(())
    }

    /// A write has come by its end, and by the end of the first read of it.
    fn came(&self, id: u64, reads: &[Read]) -> u64 {
        let seen = reads.iter().filter(|r| r.id == id).map(|r| r.end);
        let done = match self.writes[id as usize - 1].end {
            End::Done(done) => done,
            End::Open | End::Failed(_) => NEVER,
        };
        seen.fold(done, u64::min)
    }

    /// The plain rules, for a plain message. `came`: when each write had come.
    fn check_read(&self, came: &[(u64, u64)], read: &Read) -> Result<(), Wrong> {
        let (begin, end) = match read.id {
            0 => (0, 0),
            id => match &self.writes[id as usize - 1] {
                Write { begin, end: End::Done(end) | End::Failed(end), .. } => (*begin, *end),
                Write { begin, .. } => (*begin, NEVER),
            },
        };
        if begin > read.end {
            return Err(wrong!("{} was read before it was written", self.tell(read.id)));
        }
        let over = |(id, came): &&(u64, u64)| {
            self.writes[*id as usize - 1].begin > end && *came < read.begin
        };
        match came.iter().find(over) {
            None => Ok(()),
            Some((newer, _)) => Err(wrong!(
                "read from {} to {} us gave {} although {} was acknowledged or read",
                read.begin,
                read.end,
                self.tell(read.id),
                self.tell(*newer)
            )),
        }
    }

    fn tell(&self, id: u64) -> String {
        match id {
            0 => "what was there at first".into(),
            _ => {
                let w = &self.writes[id as usize - 1];
                format!("write {id} of client {} (from {} us, {:?})", w.who, w.begin, w.end)
            }
        }
    }
}

/// The number of the write that a cell says it is of.
pub(super) fn id_of(cell: &[u8]) -> u64 {
    cell.first_chunk().map_or(0, |head| u64::from_le_bytes(*head))
}

fn name((stripe, place, cell): Cell) -> String {
    format!("stripe {stripe} place {place} cell {cell}")
}

fn pattern((stripe, place, cell): Cell, id: u64) -> [u8; CELL] {
    let mut out = [0; CELL];
    if id == 0 {
        return out;
    }
    let mut word = mix(&[stripe as u64, place as u64, cell as u64, id]);
    for (i, bytes) in out.chunks_mut(8).enumerate() {
        let value = if i == 0 { id } else { word };
        bytes.copy_from_slice(&value.to_le_bytes());
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span() -> Span {
        Span { stripe: 0, place: 0, cells: 3..4 }
    }

    /// Writes as (begin, end), reads as (begin, end, number of the write).
    fn explained(writes: &[(u64, Option<u64>)], reads: &[(u64, u64, u64)]) -> bool {
        let mut history = History::default();
        for (begin, end) in writes {
            let id = history.begin_write(0, *begin, &[span()]);
            if let Some(end) = end {
                history.end_write(id, *end, true);
            }
        }
        for (begin, end, id) in reads {
            history.read(&span(), (*begin, *end), &span().bytes(*id)).unwrap();
        }
        history.check(Writers::Alone).is_ok()
    }

    #[test]
    fn a_register_gives_the_last_write_or_one_under_way() {
        let two = [(1, Some(2)), (3, Some(6))];
        assert!(explained(&two, &[(4, 5, 1), (4, 5, 2), (7, 8, 2)]));
        assert!(!explained(&two, &[(7, 8, 1)]), "overwritten");
        assert!(!explained(&two, &[(4, 5, 0)]), "never written is over");
        assert!(!explained(&two, &[(1, 2, 2)]), "from the future");
    }

    #[test]
    fn no_read_goes_back() {
        let open = [(1, Some(2)), (3, None)];
        assert!(explained(&open, &[(4, 5, 1), (6, 7, 2), (8, 9, 2)]));
        assert!(!explained(&open, &[(4, 5, 2), (6, 7, 1)]));
        assert!(explained(&open, &[(4, 7, 2), (6, 7, 1)]), "side by side");
    }

    #[test]
    fn what_failed_does_not_come_after_what_was_acknowledged() {
        let mut history = History::default();
        let first = history.begin_write(0, 1, &[span()]);
        history.end_write(first, 2, false);
        let second = history.begin_write(0, 3, &[span()]);
        history.end_write(second, 4, true);
        history.read(&span(), (5, 6), &span().bytes(first)).unwrap();
        assert!(history.check(Writers::Racing).is_err());
    }

    #[test]
    fn what_was_read_does_not_go_back_to_what_had_ended_before() {
        let mut history = History::default();
        let first = history.begin_write(0, 1, &[span()]);
        history.end_write(first, 2, true);
        let second = history.begin_write(1, 3, &[span()]);
        history.read(&span(), (4, 5), &span().bytes(second)).unwrap();
        history.read(&span(), (4, 9), &span().bytes(first)).unwrap();
        assert!(history.check(Writers::Racing).is_ok(), "side by side");
        history.read(&span(), (6, 7), &span().bytes(first)).unwrap();
        assert!(history.check(Writers::Racing).is_err());
    }

    #[test]
    fn zeros_are_of_the_last_cut() {
        let mut history = History::default();
        let write = history.begin_write(0, 1, &[span()]);
        history.end_write(write, 2, true);
        let cut = history.begin_zeros(0, 3, &[span()]);
        history.end_write(cut, 4, true);
        history.read(&span(), (5, 6), &span().bytes(0)).unwrap();
        assert!(history.check(Writers::Alone).is_ok());
        history.read(&span(), (7, 8), &span().bytes(write)).unwrap();
        assert!(history.check(Writers::Alone).is_err(), "what was cut comes back");
    }

    #[test]
    fn zeros_before_any_cut_are_a_loss() {
        let mut history = History::default();
        let write = history.begin_write(0, 1, &[span()]);
        history.end_write(write, 2, true);
        history.read(&span(), (3, 4), &span().bytes(0)).unwrap();
        let cut = history.begin_zeros(0, 5, &[span()]);
        history.end_write(cut, 6, true);
        assert!(history.check(Writers::Alone).is_err());
    }

    #[test]
    fn bytes_of_another_place_are_foreign() {
        let mut history = History::default();
        let id = history.begin_write(0, 1, &[span()]);
        let other = Span { place: 1, ..span() };
        assert!(history.read(&span(), (2, 3), &other.bytes(id)).is_err());
        assert!(history.read(&span(), (2, 3), &span().bytes(id)).is_ok());
    }
}
