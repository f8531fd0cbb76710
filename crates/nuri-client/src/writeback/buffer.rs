//! The buffered bytes of one file: written, and not yet durable on the targets.
//!
//! Pure. A byte is dirty (only here), in flight (being pushed), or held (a target has it in memory,
//! rule DATA-8). It stays here until a flush settles it, so the client can send it again.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nuri_io::buf::SparseBuf;
use nuri_rules::broken;
use parking_lot::Mutex;

use crate::reservation::ledger::Reservation;
use crate::writeback::range::RangeSet;

/// Length of a buffer block: one frame's payload.
pub const BLOCK: u64 = nuri_proto::limit::MAX_PAYLOAD as u64;

/// What a block of which few pages were written is charged beside its bytes: a page may hold few.
const SPARSE: u64 = 16 << 10;

/// Unit in which targets allocate, bytes.
pub const PAGE: u64 = 4096;

/// From so many bytes on a gap is left unwritten.
const GAP: usize = 64 << 10;

/// A push of so many bytes, or fewer, takes a copy of them along. With the block itself in flight,
/// the next write into it copies the whole block.
const SMALL_PUSH: u32 = 64 << 10;

/// Idle blocks kept for reuse: fresh memory costs a page fault per 4 KiB.
const KEEP_IDLE: usize = 64;
static IDLE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Bytes of one block.
pub enum Bytes {
    /// From the start to the furthest byte written.
    Packed(Vec<u8>),
    /// The whole block, of which few pages were written.
    Sparse(SparseBuf),
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes::Packed(Vec::new())
    }
}

impl Bytes {
    /// A whole block of zeros that costs only the pages that are written.
    fn sparse() -> Bytes {
        Bytes::Sparse(SparseBuf::zeroed(BLOCK as usize))
    }

    /// Bytes that can be written without another allocation.
    fn capacity(&self) -> usize {
        match self {
            Bytes::Packed(bytes) => bytes.capacity(),
            Bytes::Sparse(bytes) => bytes.len(),
        }
    }

    /// Writes at an offset; what lies between the end and it reads as zeros.
    fn write(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        match self {
            Bytes::Sparse(bytes) => bytes[at..end].copy_from_slice(data),
            Bytes::Packed(bytes) => {
                if bytes.len() < at {
                    bytes.resize(at, 0);
                }
                let inside = bytes.len().min(end) - at;
                bytes[at..at + inside].copy_from_slice(&data[..inside]);
                bytes.extend_from_slice(&data[inside..]);
            }
        }
    }
}

/// A buffer for a whole block, reused where there is one.
pub fn whole() -> Vec<u8> {
    let kept = IDLE.lock().pop();
    kept.unwrap_or_else(|| Vec::with_capacity(BLOCK as usize))
}

impl Clone for Bytes {
    fn clone(&self) -> Bytes {
        match self {
            Bytes::Sparse(bytes) => Bytes::Sparse(bytes.clone()),
            Bytes::Packed(bytes) => {
                let mut copy = whole();
                copy.extend_from_slice(bytes);
                Bytes::Packed(copy)
            }
        }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Packed(bytes) => bytes,
            Bytes::Sparse(bytes) => bytes,
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        let Bytes::Packed(bytes) = self else { return };
        if bytes.capacity() != BLOCK as usize {
            return;
        }
        let mut idle = IDLE.lock();
        if idle.len() < KEEP_IDLE {
            bytes.clear();
            idle.push(std::mem::take(bytes));
        }
    }
}

/// Numbers pushes, of all files: a buffer that was emptied, or another one of the same file, is not
/// concerned by what is answered to an earlier push.
static PUSHES: AtomicU64 = AtomicU64::new(1);

/// Bytes that a target has in memory, and the age of the push that brought them.
#[derive(Clone, Copy)]
struct Held {
    push: u64,
    range: (u32, u32),
    since: u64,
}

#[derive(Default)]
struct Block {
    data: Arc<Bytes>,
    valid: RangeSet,
    dirty: RangeSet,
    flying: RangeSet,
    /// The number of the push in flight, or of the last one.
    push: u64,
    /// Bytes on a target, not yet flushed; a byte may be held by several acknowledgements.
    held: Vec<Held>,
    /// Ages of the oldest bytes that are dirty, and in flight.
    dirty_since: u64,
    flying_since: u64,
    /// The room that the dirty bytes were promised.
    charge: Reservation,
    /// Bytes of memory that are charged beside those that are valid.
    beside: u64,
}

impl Block {
    /// Bytes became dirty at that age, beside what is dirty already.
    fn dirtied(&mut self, since: u64) {
        self.dirty_since = if self.dirty.is_empty() { since } else { self.dirty_since.min(since) };
    }

    /// Releases what a push left in a target's memory; false where that is not from here.
    fn release(&mut self, bytes: PushedBytes) -> bool {
        let is_meant = |held: &Held| {
            held.range == bytes.range && (held.push == bytes.push || broken!("any_push_is_meant"))
        };
        let found = self.held.iter().position(is_meant);
        found.inspect(|i| _ = self.held.remove(*i)).is_some()
    }
}

/// A push in flight of bytes that nobody here waits for.
struct Adrift {
    push: u64,
    flying: RangeSet,
}

/// The age of bytes that every sync covers, whenever it began.
pub const OLDEST: u64 = 0;

/// The write-behind buffer of one file.
#[derive(Default)]
pub struct WriteBuffer {
    blocks: BTreeMap<u64, Block>,
    /// Pushes that were in flight when their blocks were given up: a later push of the same block
    /// waits for their end, since the two could reach the target in either order.
    adrift: BTreeMap<u64, Adrift>,
    /// How often the bytes of then were told from later ones ([`WriteBuffer::mark`]). Bytes are as
    /// old as the next mark's number when they are written.
    marks: u64,
    /// The last of these marks that the background set.
    aged: u64,
    /// No target was given bytes of the file from here on.
    sent_to: u64,
}

/// A push: bytes on their way to a target.
pub struct Push {
    number: u64,
    pub block: u64,
    data: PushData,
    pub ranges: Vec<(u32, u32)>,
    /// Kept until the push has ended.
    _charge: Reservation,
}

enum PushData {
    Block(Arc<Bytes>),
    /// Bytes of the block from there on.
    Copy(u32, Vec<u8>),
}

impl PushData {
    /// Of a block, what a push of these ranges needs.
    fn of(block: &Arc<Bytes>, ranges: &[(u32, u32)]) -> PushData {
        match (ranges.first(), ranges.last()) {
            (Some((start, _)), Some((_, end))) if end - start <= SMALL_PUSH => {
                PushData::Copy(*start, block[*start as usize..*end as usize].to_vec())
            }
            _ => PushData::Block(block.clone()),
        }
    }
}

impl Push {
    /// Bytes of one of its ranges.
    pub fn bytes(&self, (start, end): (u32, u32)) -> &[u8] {
        match &self.data {
            PushData::Block(block) => &block[start as usize..end as usize],
            PushData::Copy(from, bytes) => &bytes[(start - from) as usize..(end - from) as usize],
        }
    }

    /// Names some bytes of the push.
    pub fn part(&self, range: (u32, u32)) -> PushedBytes {
        PushedBytes { push: self.number, block: self.block, range }
    }
}

/// Names bytes of one push, so that an answer to it is not taken for an answer to another push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PushedBytes {
    push: u64,
    pub block: u64,
    pub range: (u32, u32),
}

impl PushedBytes {
    pub fn len(&self) -> u32 {
        self.range.1 - self.range.0
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Offset in the file of the first byte.
    pub fn start(&self) -> u64 {
        self.block * BLOCK + u64::from(self.range.0)
    }
}

/// How much of its block a write filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    Partial,
    /// The whole block is dirty: worth pushing now.
    Full,
}

impl WriteBuffer {
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Buffers the inline data of the inode, which is older than everything else in the buffer.
    pub fn move_in(&mut self, data: &[u8]) -> u64 {
        let (charged, _) = self.write(0, 0, data);
        if let Some(b) = self.blocks.get_mut(&0) {
            b.dirtied(OLDEST);
        }
        charged
    }

    /// Whether bytes of that age or older are not durable.
    pub fn has_before(&self, mark: u64) -> bool {
        self.has_unpushed_before(mark) || self.has_held_before(mark)
    }

    /// Buffers bytes within one block; returns bytes newly charged.
    pub fn write(&mut self, block: u64, at: u32, data: &[u8]) -> (u64, Fill) {
        if data.is_empty() {
            // A block without bytes would be waited for and never settled.
            return (0, Fill::Partial);
        }
        let b = self.blocks.entry(block).or_default();
        let end = at as usize + data.len();
        // A streaming writer fills the block; neither a small file nor a write deep in a block
        // must cost a megabyte.
        let mut charged = 0;
        if at as usize >= b.data.len() + GAP {
            let mut sparse = Bytes::sparse();
            sparse.write(0, &b.data);
            b.data = Arc::new(sparse);
            charged = SPARSE - b.beside;
            b.beside = SPARSE;
        } else if b.data.capacity() < end && (at > 0 || data.len() >= 65536) {
            let mut whole = Bytes::Packed(whole());
            whole.write(0, &b.data);
            b.data = Arc::new(whole);
        }
        Arc::make_mut(&mut b.data).write(at as usize, data);
        let end = end as u32;
        charged += b.valid.insert(at, end);
        b.dirtied(self.marks + 1);
        b.dirty.insert(at, end);
        let full = b.dirty.total() == BLOCK;
        (charged, if full { Fill::Full } else { Fill::Partial })
    }

    /// Notes that bytes that were buffered in the block have a promise of space.
    pub(crate) fn charge(&mut self, block: u64, charge: Reservation) {
        if let Some(b) = self.blocks.get_mut(&block) {
            b.charge.add(charge);
        }
    }

    /// Buffers a whole block without a copy; as [`WriteBuffer::write`].
    pub fn put(&mut self, block: u64, data: &Arc<Bytes>) -> (u64, Fill) {
        let b = self.blocks.entry(block).or_default();
        b.data = data.clone();
        let charged = b.valid.insert(0, BLOCK as u32);
        b.dirtied(self.marks + 1);
        b.dirty.insert(0, BLOCK as u32);
        (charged, Fill::Full)
    }

    /// Copies buffered bytes of the block into `out`, which stands for `at..`; returns the gaps.
    pub fn read(&self, block: u64, at: u32, out: &mut [u8]) -> Vec<(u32, u32)> {
        let end = at + out.len() as u32;
        let Some(b) = self.blocks.get(&block) else {
            return vec![(at, end)];
        };
        for (s, e) in b.valid.within(at, end) {
            out[(s - at) as usize..(e - at) as usize]
                .copy_from_slice(&b.data[s as usize..e as usize]);
        }
        b.valid.gaps(at, end)
    }

    /// Blocks with dirty bytes and no push in flight. One push of a block at a time: two could
    /// reach the target in either order.
    pub fn pushable_blocks(&self) -> Vec<u64> {
        self.pushable_before(u64::MAX)
    }

    /// Those of them that are among these blocks.
    pub fn pushable_within(&self, blocks: RangeInclusive<u64>) -> Vec<u64> {
        let due = self.blocks.range(blocks).filter(|(_, b)| !b.dirty.is_empty());
        due.map(|(block, _)| *block).filter(|block| !self.flies(*block)).collect()
    }

    /// Whether some of these bytes, the last one included, are not durable.
    pub fn has_any(&self, first: u64, last: u64) -> bool {
        self.blocks.range(first / BLOCK..=last / BLOCK).any(|(block, b)| {
            let base = block * BLOCK;
            let end = (last - base).min(BLOCK - 1) as u32 + 1;
            b.valid.within(first.saturating_sub(base) as u32, end).next().is_some()
        })
    }

    /// Whether some of these bytes, the last one included, are on no target yet.
    pub fn has_unpushed(&self, first: u64, last: u64) -> bool {
        self.blocks.range(first / BLOCK..=last / BLOCK).any(|(block, b)| {
            let base = block * BLOCK;
            let end = (last.saturating_sub(base)).min(BLOCK - 1) as u32 + 1;
            let meets = |set: &RangeSet| {
                set.within(first.saturating_sub(base) as u32, end).next().is_some()
            };
            meets(&b.dirty) || meets(&b.flying)
        })
    }

    /// Bytes of the pages that no target was given yet.
    pub fn unpushed(&self) -> u64 {
        let pages = |b: &Block| (b.dirty.total() + b.flying.total()).next_multiple_of(PAGE);
        self.blocks.values().map(pages).sum()
    }

    /// Bytes that are not known to be durable.
    pub fn volatile(&self) -> u64 {
        self.blocks.values().map(|block| block.valid.total()).sum()
    }

    /// Returns an age: bytes that are buffered from now on are younger.
    pub fn mark(&mut self) -> u64 {
        self.marks += 1;
        self.marks
    }

    /// As `mark`, for the background: returns the age of the last call.
    pub fn mark_aged(&mut self) -> u64 {
        let mark = self.mark();
        std::mem::replace(&mut self.aged, mark)
    }

    /// Offset of the first byte that is not durable.
    pub fn first(&self) -> Option<u64> {
        let (block, b) = self.blocks.iter().next()?;
        let (start, _) = b.valid.iter().next()?;
        Some(block * BLOCK + u64::from(start))
    }

    /// Blocks with bytes of that age or older to push, of which none are in flight.
    pub fn pushable_before(&self, mark: u64) -> Vec<u64> {
        let is_due = |b: &Block| !b.dirty.is_empty() && b.dirty_since <= mark;
        let due = self.blocks.iter().filter(|(_, b)| is_due(b)).map(|(block, _)| *block);
        due.filter(|block| !self.flies(*block)).collect()
    }

    /// Whether no target has some bytes of that age or older.
    pub fn has_unpushed_before(&self, mark: u64) -> bool {
        self.blocks.values().any(|b| {
            let is_dirty = !b.dirty.is_empty() && b.dirty_since <= mark;
            is_dirty || (!b.flying.is_empty() && b.flying_since <= mark)
        })
    }

    /// Whether a target may lose bytes of that age or older with its memory.
    pub fn has_held_before(&self, mark: u64) -> bool {
        self.blocks.values().any(|b| b.held.iter().any(|held| held.since <= mark))
    }

    /// Whether bytes are in flight to a target, whether or not they are still wanted.
    pub fn has_flying(&self) -> bool {
        !self.adrift.is_empty() || self.blocks.values().any(|b| !b.flying.is_empty())
    }

    fn flies(&self, block: u64) -> bool {
        let own = self.blocks.get(&block).is_some_and(|b| !b.flying.is_empty());
        own || (self.adrift.contains_key(&block) && !broken!("adrift_forgotten"))
    }

    /// Takes the block's dirty bytes for a push. `None` while another push of it is in flight.
    pub fn begin_push(&mut self, block: u64) -> Option<Push> {
        if self.flies(block) {
            return None;
        }
        let b = self.blocks.get_mut(&block).filter(|b| !b.dirty.is_empty())?;
        b.flying = std::mem::take(&mut b.dirty);
        b.flying_since = b.dirty_since;
        let number = PUSHES.fetch_add(1, Ordering::Relaxed);
        b.push = number;
        let (ranges, _charge): (Vec<_>, _) = (b.flying.iter().collect(), b.charge.push());
        let end = ranges.last().map_or(0, |(_, end)| u64::from(*end));
        self.sent_to = self.sent_to.max(block * BLOCK + end);
        let data = PushData::of(&b.data, &ranges);
        Some(Push { number, block, data, ranges, _charge })
    }

    /// Takes the dirty bytes of several blocks at once. `None` where there are none, or another
    /// push of one of them is in flight.
    pub fn begin_push_all(&mut self, blocks: &[u64]) -> Option<Vec<Push>> {
        if blocks.iter().any(|block| self.flies(*block)) {
            return None;
        }
        let pushes: Vec<_> = blocks.iter().filter_map(|block| self.begin_push(*block)).collect();
        (!pushes.is_empty()).then_some(pushes)
    }

    /// Whether all bytes of these blocks are dirty.
    pub fn all_full(&self, blocks: &[u64]) -> bool {
        let full = |block| self.blocks.get(block).is_some_and(|b| b.dirty.total() == BLOCK);
        blocks.iter().all(full)
    }

    /// Bytes of a push that was given up are answered. False: it is no such push.
    fn end_adrift(&mut self, PushedBytes { push, block, range }: PushedBytes) -> bool {
        let Some(adrift) = self.adrift.get_mut(&block).filter(|adrift| adrift.push == push) else {
            return false;
        };
        adrift.flying.remove(range.0, range.1);
        if adrift.flying.is_empty() {
            self.adrift.remove(&block);
        }
        true
    }

    /// The block of a push that is in flight from here.
    fn in_flight(&mut self, PushedBytes { push, block, .. }: PushedBytes) -> Option<&mut Block> {
        let is_meant = |b: &&mut Block| b.push == push || broken!("any_push_is_meant");
        self.blocks.get_mut(&block).filter(is_meant)
    }

    /// Notes that a target acknowledged the bytes from memory. `false`: the buffer no longer waits
    /// for them.
    pub fn pushed(&mut self, bytes: PushedBytes) -> bool {
        let PushedBytes { push, range, .. } = bytes;
        if self.end_adrift(bytes) && !broken!("any_push_is_meant") {
            return false;
        }
        let Some(b) = self.in_flight(bytes) else { return false };
        b.flying.remove(range.0, range.1);
        b.held.push(Held { push, range, since: b.flying_since });
        true
    }

    /// Gives the bytes of a push up that failed for good, unless newer bytes replaced them. Returns
    /// bytes no longer charged. `None`: they were given up before.
    pub fn discard(&mut self, bytes: PushedBytes) -> Option<u64> {
        let PushedBytes { block, range, .. } = bytes;
        if self.end_adrift(bytes) && !broken!("any_push_is_meant") {
            return None;
        }
        let b = self.in_flight(bytes)?;
        let mut gone = RangeSet::default();
        for (s, e) in b.flying.within(range.0, range.1) {
            gone.insert(s, e);
        }
        b.flying.remove(range.0, range.1);
        for (s, e) in b.dirty.iter() {
            gone.remove(s, e);
        }
        let freed: u64 = gone.iter().map(|(s, e)| b.valid.remove(s, e)).sum();
        Some(freed + self.remove_empty(block))
    }

    /// The block, if exactly one block has bytes, and they are all dirty, few, and one piece.
    /// Several pieces would each need a flush of their own.
    pub fn only_dirty_block(&self) -> Option<u64> {
        let (block, b) = self.blocks.iter().next()?;
        let small = b.valid.total() <= nuri_proto::limit::LOG_FIRST;
        let alone = self.blocks.len() == 1 && !self.has_flying() && b.held.is_empty();
        let is_one_piece = b.dirty.iter().count() == 1;
        (alone && small && is_one_piece && b.dirty == b.valid).then_some(*block)
    }

    /// A flush settled one acknowledgement of the bytes. Returns bytes no longer charged.
    pub fn durable(&mut self, bytes: PushedBytes) -> u64 {
        let PushedBytes { block, range, .. } = bytes;
        let Some(b) = self.blocks.get_mut(&block) else {
            return 0;
        };
        if !b.release(bytes) {
            return 0;
        }
        let mut freed = 0;
        // What is dirty, in flight or held by a later push stays.
        let mut free = RangeSet::default();
        free.insert(range.0, range.1);
        for (s, e) in
            b.dirty.iter().chain(b.flying.iter()).chain(b.held.iter().map(|held| held.range))
        {
            free.remove(s, e);
        }
        for (s, e) in free.iter() {
            freed += b.valid.remove(s, e);
        }
        freed + self.remove_empty(block)
    }

    /// Removes a block without bytes; returns what is not charged any more beside them.
    fn remove_empty(&mut self, block: u64) -> u64 {
        let is_empty = self.blocks.get(&block).is_some_and(|b| b.valid.is_empty());
        let removed = if is_empty { self.blocks.remove(&block) } else { None };
        removed.map_or(0, |b| b.beside)
    }

    /// Notes that the target lost the bytes with its memory, so they must be sent again. `false`:
    /// they are not wanted any more.
    pub fn lost(&mut self, bytes: PushedBytes) -> bool {
        let PushedBytes { block, range, .. } = bytes;
        let Some(b) = self.blocks.get_mut(&block) else { return false };
        if !b.release(bytes) {
            return false;
        }
        // They were written before anything that waits for them.
        b.dirtied(OLDEST);
        for (s, e) in b.valid.within(range.0, range.1).collect::<Vec<_>>() {
            b.dirty.insert(s, e);
        }
        true
    }

    /// End of the bytes of the file that targets may have.
    pub fn sent_to(&self) -> u64 {
        self.sent_to
    }

    /// Notes that targets were given bytes up to this offset in other ways.
    pub fn note_sent(&mut self, end: u64) {
        self.sent_to = self.sent_to.max(end);
    }

    /// Notes that targets have no bytes from this offset on.
    pub fn note_cut(&mut self, from: u64) {
        self.sent_to = self.sent_to.min(from);
    }

    /// Forgets bytes from this offset on that no target was given. Returns bytes no longer charged.
    pub fn cut(&mut self, from: u64) -> u64 {
        let blocks: Vec<u64> = self.blocks.range(from / BLOCK..).map(|(block, _)| *block).collect();
        let mut freed = 0;
        for block in blocks {
            let start = from.saturating_sub(block * BLOCK) as u32;
            if let Some(b) = self.blocks.get_mut(&block) {
                b.dirty.remove(start, BLOCK as u32);
                freed += b.valid.remove(start, BLOCK as u32);
            }
            freed += self.remove_empty(block);
        }
        freed
    }

    /// Forgets everything; returns bytes no longer charged.
    pub fn clear(&mut self) -> u64 {
        let freed = self.blocks.values().map(|b| b.valid.total() + b.beside).sum();
        for (block, b) in std::mem::take(&mut self.blocks) {
            if !b.flying.is_empty() {
                self.adrift.insert(block, Adrift { push: b.push, flying: b.flying });
            }
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins a push of the block, and names its first bytes.
    fn push(buffer: &mut WriteBuffer, block: u64) -> PushedBytes {
        let push = buffer.begin_push(block).unwrap();
        push.part(push.ranges[0])
    }

    #[test]
    fn bytes_stay_until_a_flush_settles_them() {
        let mut buffer = WriteBuffer::default();
        assert_eq!(buffer.write(0, 10, b"abc"), (3, Fill::Partial));
        let push = buffer.begin_push(0).unwrap();
        assert_eq!(push.ranges, [(10, 13)]);
        assert!(buffer.begin_push(0).is_none());
        let first = push.part((10, 13));
        assert!(buffer.pushed(first));
        let mut out = [0; 5];
        assert_eq!(buffer.read(0, 9, &mut out), [(9, 10), (13, 14)]);
        assert_eq!(&out, b"\0abc\0");
        assert!(buffer.lost(first));
        assert_eq!(buffer.pushable_blocks(), [0]);
        let again = self::push(&mut buffer, 0);
        buffer.pushed(again);
        assert_eq!(buffer.durable(again), 3);
        assert!(buffer.is_empty());
    }

    #[test]
    fn what_was_not_sent_can_be_cut_off() {
        let mut buffer = WriteBuffer::default();
        buffer.write(0, 10, &[1; 90]);
        buffer.write(1, 0, &[2; 50]);
        buffer.write(3, 200_000, &[3; 5]);
        assert_eq!(buffer.sent_to(), 0);
        assert_eq!(buffer.cut(60), 40 + 50 + 5 + SPARSE);
        let mut out = [9; 100];
        assert_eq!(buffer.read(0, 0, &mut out), [(0, 10), (60, 100)]);
        assert_eq!(buffer.begin_push(0).unwrap().ranges, [(10, 60)]);
        assert_eq!((buffer.sent_to(), buffer.pushable_blocks().len()), (60, 0));
        buffer.note_sent(BLOCK);
        buffer.note_cut(70);
        assert_eq!(buffer.sent_to(), 70);
    }

    #[test]
    fn one_short_piece_is_flushed_by_its_own_and_several_are_together() {
        let mut buffer = WriteBuffer::default();
        buffer.write(2, 0, b"head");
        assert_eq!(buffer.only_dirty_block(), Some(2));
        buffer.write(2, 8192, b"page");
        assert_eq!(buffer.only_dirty_block(), None);
        buffer.write(2, 4, &[1; 8188]);
        assert_eq!(buffer.only_dirty_block(), Some(2));
        buffer.write(1, 0, b"before");
        assert_eq!(buffer.only_dirty_block(), None);
    }

    #[test]
    fn what_no_target_has_yet_is_known() {
        let mut buffer = WriteBuffer::default();
        buffer.write(1, 100, &[1; 50]);
        assert!(buffer.has_unpushed(BLOCK + 149, 9 * BLOCK));
        assert!(!buffer.has_unpushed(0, BLOCK + 99) && !buffer.has_unpushed(BLOCK + 150, u64::MAX));
        let push = buffer.begin_push(1).unwrap();
        assert!(buffer.has_unpushed(BLOCK + 120, BLOCK + 120), "on its way");
        buffer.pushed(push.part(push.ranges[0]));
        assert!(!buffer.has_unpushed(0, u64::MAX) && buffer.has_any(0, 2 * BLOCK));
    }

    #[test]
    fn nothing_written_is_nothing_to_wait_for() {
        let mut buffer = WriteBuffer::default();
        assert_eq!(buffer.write(0, 0, b""), (0, Fill::Partial));
        assert!(buffer.is_empty());
    }

    #[test]
    fn blocks_to_push_are_found_among_some() {
        let mut buffer = WriteBuffer::default();
        [1, 2, 5, 6].into_iter().for_each(|block| _ = buffer.write(block, 0, b"dirty"));
        assert_eq!(buffer.pushable_within(2..=5), [2, 5]);
        let bytes = push(&mut buffer, 2);
        assert_eq!(buffer.pushable_within(2..=5), [5]);
        buffer.pushed(bytes);
        assert_eq!(buffer.pushable_within(2..=2), [0; 0]);
        assert_eq!(buffer.pushable_blocks(), [1, 5, 6]);
    }

    #[test]
    fn a_push_is_untouched_by_later_writes_of_its_block() {
        for len in [4, SMALL_PUSH, SMALL_PUSH + 1] {
            let mut buffer = WriteBuffer::default();
            buffer.write(0, 100, &vec![1; len as usize]);
            let push = buffer.begin_push(0).unwrap();
            buffer.write(0, 0, &vec![2; 200 + len as usize]);
            assert_eq!(push.ranges, [(100, 100 + len)]);
            assert!(push.bytes((100, 100 + len)).iter().all(|byte| *byte == 1), "{len}");
            assert_eq!(push.bytes((101, 103)), [1, 1]);
        }
    }

    #[test]
    fn bytes_rewritten_in_flight_are_pushed_again_and_the_old_copy_is_untouched() {
        let mut buffer = WriteBuffer::default();
        buffer.write(0, 0, b"old!");
        let push = buffer.begin_push(0).unwrap();
        buffer.write(0, 2, b"NEW");
        assert_eq!(push.bytes((0, 4)), b"old!");
        buffer.pushed(push.part((0, 4)));
        assert_eq!(buffer.durable(push.part((0, 4))), 2);
        assert_eq!(buffer.begin_push(0).unwrap().ranges, [(2, 5)]);
    }

    #[test]
    fn a_flush_of_an_older_push_keeps_what_a_later_one_holds() {
        let mut buffer = WriteBuffer::default();
        let [first, second] = [b"xxxx", b"yyyy"].map(|bytes| {
            buffer.write(0, 0, bytes);
            let pushed = push(&mut buffer, 0);
            buffer.pushed(pushed);
            pushed
        });
        assert_eq!(buffer.durable(first), 0);
        assert_eq!(buffer.durable(second), 4);
    }

    /// Catches `broken!("any_push_is_meant")`.
    #[test]
    fn what_is_answered_to_a_push_before_the_buffer_was_emptied_concerns_no_later_one() {
        let mut buffer = WriteBuffer::default();
        let [held, flying, failing] = [0, 1, 2].map(|block| {
            buffer.write(block, 0, b"lost");
            push(&mut buffer, block)
        });
        buffer.pushed(held);
        assert_eq!(buffer.clear(), 12);
        for block in 0..3 {
            buffer.write(block, 0, b"new!");
        }
        let again = push(&mut buffer, 0);
        buffer.pushed(again);
        assert_eq!(buffer.durable(held), 0, "a flush settled what was there before");
        assert!(!buffer.lost(held) && !buffer.pushed(flying));
        assert_eq!(buffer.discard(failing), None);
        assert_eq!((buffer.pushable_blocks(), buffer.volatile()), (vec![1, 2], 12));
        assert_eq!(buffer.durable(again), 4);
    }

    /// Catches `broken!("adrift_forgotten")`: the push that was given up could come last.
    #[test]
    fn a_block_given_up_in_flight_is_not_pushed_again_before_that_push_ended() {
        let mut buffer = WriteBuffer::default();
        buffer.write(0, 0, b"lost");
        buffer.write(0, 9, b"too");
        let adrift = buffer.begin_push(0).unwrap();
        buffer.clear();
        buffer.write(0, 0, b"new!");
        for range in adrift.ranges.clone() {
            assert!(buffer.begin_push(0).is_none() && buffer.has_flying());
            assert!(buffer.pushable_blocks().is_empty() && buffer.only_dirty_block().is_none());
            assert!(!buffer.pushed(adrift.part(range)));
        }
        assert!(!buffer.has_flying());
        assert_eq!(buffer.begin_push(0).unwrap().ranges, [(0, 4)]);
    }

    /// Two pushes of one byte in flight could reach the target in either order.
    #[test]
    fn a_block_overwritten_in_flight_is_not_pushed_again_before_the_first_push_ended() {
        let mut buffer = WriteBuffer::default();
        buffer.write(0, 0, b"old!");
        let old = push(&mut buffer, 0);
        buffer.write(0, 0, b"new!");
        assert!(buffer.begin_push(0).is_none());
        assert!(buffer.pushable_blocks().is_empty() && buffer.has_flying());
        buffer.pushed(old);
        assert_eq!(buffer.durable(old), 0);
        let new = buffer.begin_push(0).unwrap();
        assert_eq!(new.bytes((0, 4)), b"new!");
        buffer.write(0, 1, b"E");
        let failed = new.part((0, 4));
        assert_eq!(buffer.discard(failed), Some(3), "what is newer than a failed push stays");
        assert_eq!(buffer.pushable_blocks(), [0]);
    }

    #[test]
    fn a_write_deep_in_a_block_costs_what_it_holds() {
        let mut buffer = WriteBuffer::default();
        assert_eq!(buffer.write(0, BLOCK as u32 - 4, b"deep"), (4 + SPARSE, Fill::Partial));
        let mut out = [1; 6];
        buffer.read(0, BLOCK as u32 - 6, &mut out);
        assert_eq!(&out[2..], b"deep");
        assert_eq!(buffer.write(0, 0, &vec![7; BLOCK as usize]), (BLOCK - 4, Fill::Full));
        assert_eq!(buffer.clear(), BLOCK + SPARSE);
        buffer.write(0, BLOCK as u32 - 4, b"deep");
        let deep = push(&mut buffer, 0);
        buffer.pushed(deep);
        assert_eq!(buffer.durable(deep), 4 + SPARSE);
    }

    #[test]
    fn a_full_block_says_so() {
        let mut buffer = WriteBuffer::default();
        assert_eq!(buffer.write(3, 0, &vec![1; BLOCK as usize - 1]).1, Fill::Partial);
        assert_eq!(buffer.write(3, BLOCK as u32 - 1, b"x"), (1, Fill::Full));
    }
}
