//! Keeps what was read of groups that miss a member. A stream needs the chunks of a row twice: for
//! themselves, and to decode the lost chunk.
//!
//! Only a few frames are kept, and none is believed by itself. A parity chunk that is read to
//! decode says for which state of each chunk it stands. A reader that wants only a kept chunk asks
//! the chunk's member with a call of no bytes.
//!
//! The reads of a stream run side by side. A reader that wants what another one is already reading
//! waits for that one. It first ends all reads of its own, so no readers wait in a circle.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nuri_io::buf::PooledBuf;
use nuri_proto::id::{ChunkKey, ObjectId};
use nuri_proto::stripe::Covers;
use parking_lot::{Condvar, Mutex};

/// Frames kept.
pub(super) const MOST: usize = 24;
/// Who reads longer waits for a member that gives no answer: others do without what it reads.
const LONGEST_READ: Duration = Duration::from_millis(200);

/// A range of a data member's chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) key: ChunkKey,
    pub(super) place: usize,
    pub(super) offset: u32,
    pub(super) len: usize,
}

impl Span {
    fn holds(&self, other: &Span) -> bool {
        let (from, other_from) = (self.offset as usize, other.offset as usize);
        (self.key, self.place) == (other.key, other.place)
            && from <= other_from
            && other_from + other.len <= from + self.len
    }
}

/// Bytes of a data member, with what they stood for.
pub(super) struct Frame {
    pub(super) span: Span,
    pub(super) bytes: PooledBuf,
    pub(super) covers: Covers,
}

impl Frame {
    /// The part of it that lies at `offset` of the chunk.
    pub(super) fn part(&self, offset: u32, len: usize) -> &[u8] {
        let from = (offset - self.span.offset) as usize;
        &self.bytes[from..from + len]
    }
}

/// Tells reads of the same span apart.
type ReadId = u64;

#[derive(Default)]
struct State {
    frames: VecDeque<Arc<Frame>>,
    being_read: Vec<(ReadId, Span)>,
    last: ReadId,
}

#[derive(Default)]
pub(super) struct Rows {
    state: Mutex<State>,
    changed: Condvar,
}

/// Which reader reads a span.
pub(super) enum Claim<'a> {
    Kept(Arc<Frame>),
    Mine(Reading<'a>),
    /// Somebody else does, now.
    Another,
}

/// The right to read a span; others wait for its end.
pub(super) struct Reading<'a> {
    rows: &'a Rows,
    id: ReadId,
    span: Span,
}

impl Rows {
    pub(super) fn claim(&self, span: Span) -> Claim<'_> {
        let mut state = self.state.lock();
        if let Some(frame) = state.find(&span) {
            return Claim::Kept(frame);
        }
        if state.is_read(&span) {
            return Claim::Another;
        }
        state.last += 1;
        let id = state.last;
        state.being_read.push((id, span));
        Claim::Mine(Reading { rows: self, id, span })
    }

    /// Waits until no other reader reads the span. The bytes are kept then, if all went well.
    pub(super) fn wait(&self, span: Span) -> Option<Arc<Frame>> {
        let mut state = self.state.lock();
        while state.is_read(&span) {
            if self.changed.wait_for(&mut state, LONGEST_READ).timed_out() {
                return None;
            }
        }
        state.find(&span)
    }

    /// Forgets what is kept; bytes that are being read now are not kept either.
    pub(super) fn forget(&self, object: ObjectId) {
        let mut state = self.state.lock();
        state.frames.retain(|f| f.span.key.object != object);
        state.being_read.retain(|(_, span)| span.key.object != object);
        self.changed.notify_all();
    }
}

impl State {
    fn find(&self, span: &Span) -> Option<Arc<Frame>> {
        self.frames.iter().rev().find(|f| f.span.holds(span)).cloned()
    }

    fn is_read(&self, span: &Span) -> bool {
        self.being_read.iter().any(|(_, other)| other.holds(span))
    }

    /// Ends a read; whether what it read may be kept.
    fn end(&mut self, id: ReadId) -> bool {
        let at = self.being_read.iter().position(|(other, _)| *other == id);
        at.map(|at| self.being_read.swap_remove(at)).is_some()
    }
}

impl Reading<'_> {
    /// Keeps what was read, if it was not forgotten meanwhile.
    pub(super) fn keep(self, bytes: PooledBuf, covers: Covers) -> Arc<Frame> {
        let frame = Arc::new(Frame { span: self.span, bytes, covers });
        let mut state = self.rows.state.lock();
        if !state.end(self.id) {
            return frame;
        }
        state.frames.retain(|f| f.span != frame.span);
        if state.frames.len() >= MOST {
            state.frames.pop_front();
        }
        state.frames.push_back(frame.clone());
        frame
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.rows.state.lock().end(self.id);
        self.rows.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use nuri_io::buf::BufPool;
    use nuri_proto::stripe::Version;

    use super::*;

    fn span(offset: u32, len: usize) -> Span {
        let key = ChunkKey { object: ObjectId(1), component: 0, stripe: 0 };
        Span { key, place: 2, offset, len }
    }

    fn bytes(len: usize) -> PooledBuf {
        let mut bytes = BufPool::new(4096, 1).take();
        bytes.set_len(len);
        bytes
    }

    #[test]
    fn who_comes_second_gets_what_the_first_read() {
        let rows = Rows::default();
        let Claim::Mine(reading) = rows.claim(span(0, 1000)) else { panic!("nobody has it") };
        assert!(matches!(rows.claim(span(100, 200)), Claim::Another));
        assert!(matches!(rows.claim(span(900, 200)), Claim::Mine(_)), "more than that one reads");
        std::thread::scope(|scope| {
            let second = scope.spawn(|| rows.wait(span(100, 200)));
            reading.keep(bytes(1000), Covers(vec![Version(7)]));
            let frame = second.join().unwrap().unwrap();
            assert_eq!((frame.part(100, 200).len(), frame.covers.get(0)), (200, Version(7)));
        });
        assert!(matches!(rows.claim(span(0, 1000)), Claim::Kept(_)));
        rows.forget(ObjectId(1));
        assert!(matches!(rows.claim(span(0, 1000)), Claim::Mine(_)));
    }

    #[test]
    fn what_is_forgotten_while_it_is_read_is_not_kept() {
        let rows = Rows::default();
        let Claim::Mine(old) = rows.claim(span(0, 1000)) else { panic!("nobody has it") };
        rows.forget(ObjectId(1));
        let Claim::Mine(new) = rows.claim(span(0, 1000)) else { panic!("forgotten") };
        old.keep(bytes(1000), Covers(vec![Version(7)]));
        assert!(matches!(rows.claim(span(0, 1000)), Claim::Another));
        new.keep(bytes(1000), Covers(vec![Version(8)]));
        let Claim::Kept(frame) = rows.claim(span(0, 1000)) else { panic!("it was kept") };
        assert_eq!(frame.covers.get(0), Version(8));
    }

    #[test]
    fn who_waits_for_a_read_that_fails_reads_itself() {
        let rows = Rows::default();
        let Claim::Mine(reading) = rows.claim(span(0, 1000)) else { panic!("nobody has it") };
        std::thread::scope(|scope| {
            let second = scope.spawn(|| rows.wait(span(0, 1000)).is_none());
            drop(reading);
            assert!(second.join().unwrap());
        });
    }
}
