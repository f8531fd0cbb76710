//! The bytes, the size and the times of a file that the servers may not have yet.

use std::time::{Duration, Instant};

use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_INLINE;
use nuri_proto::op::meta::{Attr, Publish, PublishData, SetTime, Time};
use nuri_rules::broken;

use super::sync::{Goal, SyncScope};
use crate::writeback::buffer::{BLOCK, OLDEST, PAGE, PushedBytes, WriteBuffer};

/// The bytes, the size and the times of a file that the servers may not have yet.
#[derive(Default)]
pub struct FileWriteback {
    /// What targets may not have durably.
    pub buffer: WriteBuffer,
    /// The whole file, while it is small and was never on the targets.
    inline: Option<Vec<u8>>,
    /// What lay inline went to the buffer. The server keeps it until it hears that the targets
    /// have it.
    has_left_inline: bool,
    size: u64,
    allocated: u64,
    mtime: Option<Time>,
    /// Since when there are a size, times or inline data that the server does not have.
    unpublished: Option<Instant>,
    /// When a program wrote last.
    written_at: Option<Instant>,
    /// Counts changes, to see whether a publication covered the last one.
    version: u64,
    /// Size that the server knows.
    published_size: u64,
    /// The size that the sync which began last covers, and the size when the background looked
    /// last; where the file was cut since, what was left of it.
    synced_size: u64,
    aged_size: u64,
    /// The server knows that bytes may be pushed beyond that size.
    is_growth_known: bool,
    /// Targets have nothing beyond the last cut any more, which the server has to know before the
    /// file grows: the next writer would cut it off again. The number of that cut.
    untold_cut: Option<u64>,
    /// Parts of it are written here, others elsewhere: what of `allocated` the server knows.
    beside: Option<u64>,
    /// A push failed: bytes may lie beyond the size.
    has_failed: bool,
}

/// Whether there is something to publish to the metadata server.
pub enum Told {
    Nothing,
    /// There is, and bytes must leave before: the sync goes on.
    Early,
    Call(Box<Publication>),
}

/// What is published to the metadata server.
pub struct Publication {
    pub call: Publish,
    pub inline: Vec<u8>,
    version: u64,
    /// Nothing was left here, and all blocks are counted.
    is_whole: bool,
    cut: Option<u64>,
}

impl FileWriteback {
    /// The state of a file whose data is taken over with these attributes. An empty file begins
    /// inline if the server says so. A file with data elsewhere never becomes inline again.
    pub fn new(inline: Option<Vec<u8>>, attr: &Attr, now: Instant) -> FileWriteback {
        let (size, allocated) = (attr.size, attr.allocated);
        let mut file =
            FileWriteback { size, allocated, published_size: size, ..FileWriteback::default() };
        file.aged_size = size;
        match inline {
            Some(mut data) if size <= MAX_INLINE => {
                data.resize(size as usize, 0);
                file.inline = Some(data);
            }
            // Extended beyond the limit before the data was moved, by a client of an older version.
            Some(data) => {
                file.buffer.move_in(&data);
                (file.has_left_inline, file.unpublished) = (true, Some(now));
            }
            None => {}
        }
        // Whoever takes the file over to write it has cut off what lies beyond.
        file.buffer.note_sent(if file.inline.is_some() { 0 } else { size });
        file
    }

    /// The state of an empty file that was made or truncated to 0 here.
    pub fn empty() -> FileWriteback {
        FileWriteback { inline: Some(Vec::new()), ..FileWriteback::default() }
    }

    /// Notes that other clients write other ranges of the file from now on. The server knows of so
    /// many bytes on the targets.
    pub fn write_beside(&mut self, allocated: u64) {
        self.beside = Some(allocated);
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn published_size(&self) -> u64 {
        self.published_size
    }

    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    pub fn inline(&self) -> Option<&[u8]> {
        self.inline.as_deref()
    }

    pub fn mtime(&self) -> Option<Time> {
        self.mtime
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether other clients may write other ranges of the file now.
    pub fn is_written_beside(&self) -> bool {
        self.beside.is_some()
    }

    /// Whether the server lacks a size, times or inline data.
    pub fn is_unpublished(&self) -> bool {
        self.unpublished.is_some()
    }

    /// Whether the file has been unpublished for long, or only something else is left to publish.
    pub fn is_due(&self, now: Instant, age: Duration) -> bool {
        self.unpublished.is_none_or(|since| now.saturating_duration_since(since) >= age)
    }

    /// Whether programs still write the file: the last write was a moment ago.
    pub fn is_written_on(&self, now: Instant, moment: Duration) -> bool {
        self.written_at.is_some_and(|at| now.saturating_duration_since(at) < moment)
    }

    /// Whether some state of the file is not durable at the servers.
    pub fn is_dirty(&self) -> bool {
        self.unpublished.is_some() || !self.buffer.is_empty()
    }

    /// Whether the writer left no bytes beyond the published size.
    pub fn left_nothing(&self) -> bool {
        !self.has_failed && !self.is_dirty()
    }

    /// Whether nothing changed since the file was truncated.
    pub fn was_just_cut(&self) -> bool {
        self.untold_cut.is_some() && self.mtime.is_none()
    }

    pub fn untold_cut(&self) -> Option<u64> {
        self.untold_cut
    }

    /// Allocated bytes of the file, with those that wait to be pushed, because programs take a file
    /// without any for a hole. Bytes that replace others count twice until they are pushed, within
    /// the size.
    pub fn shown_allocated(&self) -> u64 {
        let inline = self.inline.as_ref().map_or(0, |data| data.len() as u64);
        let most = self.allocated.max(self.size.next_multiple_of(4096));
        (self.allocated + self.buffer.unpushed()).min(most).max(inline)
    }

    /// Whether bytes that lay inline are on their way to the targets.
    pub fn is_moving(&self) -> bool {
        self.has_left_inline && self.buffer.has_before(OLDEST)
    }

    /// Whether a publication would carry the whole file.
    pub fn lies_inline(&self) -> bool {
        let is_whole = |data: &Vec<u8>| data.len() as u64 == self.size;
        self.inline.as_ref().is_some_and(is_whole) && self.size <= MAX_INLINE
    }
}

/// What programs do.
impl FileWriteback {
    /// Notes a change of data.
    pub fn touch(&mut self, mtime: Time, now: Instant) {
        self.mtime = Some(mtime);
        self.written_at = Some(now);
        self.changed(now);
    }

    /// Notes a change that has no time of its own.
    pub fn changed(&mut self, now: Instant) {
        self.version += 1;
        self.unpublished.get_or_insert(now);
    }

    /// Notes that fetched bytes of the file may be old; nothing else changed.
    pub fn outdate(&mut self) {
        self.version += 1;
    }

    /// Notes that bytes were written up to this offset.
    pub fn reached(&mut self, end: u64) {
        self.size = self.size.max(end);
    }

    /// Takes a write into the inline data.
    ///
    /// # Errors
    /// The write does not fit there. The inline data is in the buffer now, and so many bytes are
    /// charged.
    pub fn write_inline(&mut self, at: u64, data: &[u8]) -> Result<(), u64> {
        let end = at as usize + data.len();
        let Some(inline) = &mut self.inline else { return Err(0) };
        if end as u64 <= MAX_INLINE {
            inline.resize(inline.len().max(end), 0);
            inline[at as usize..end].copy_from_slice(data);
            return Ok(());
        }
        Err(self.leave_inline())
    }

    /// What lay inline is in the buffer from here on. Bytes charged.
    fn leave_inline(&mut self) -> u64 {
        let moved = self.inline.take().unwrap_or_default();
        if moved.is_empty() {
            return 0;
        }
        self.has_left_inline = true;
        self.buffer.move_in(&moved)
    }

    /// Called before the file gets this size. Returns bytes charged for inline data that does not
    /// fit any more.
    pub fn spill(&mut self, size: u64, now: Instant) -> u64 {
        if size <= MAX_INLINE {
            return 0;
        }
        if self.inline.as_ref().is_some_and(|data| !data.is_empty()) {
            self.changed(now);
        }
        self.leave_inline()
    }

    /// Writes zeros into the inline data. Returns whether the file is inline.
    pub fn zero_inline(&mut self, bytes: std::ops::Range<u64>) -> bool {
        let Some(inline) = &mut self.inline else { return false };
        if !bytes.is_empty() {
            inline[bytes.start as usize..bytes.end as usize].fill(0);
        }
        true
    }

    /// Sets the size where only buffered bytes change, because no target was given bytes beyond it.
    /// Returns bytes that are not buffered any more.
    pub fn resize_unsent(&mut self, size: u64) -> Option<u64> {
        if self.beside.is_some() || self.has_failed {
            return None;
        }
        let lies_inline = match &mut self.inline {
            Some(inline) if size <= MAX_INLINE => {
                inline.resize(size as usize, 0);
                true
            }
            Some(inline) if !inline.is_empty() => return None,
            _ => false,
        };
        let mut freed = 0;
        if !lies_inline && size < self.size {
            let sent_to = if broken!("cut_what_was_sent") { 0 } else { self.buffer.sent_to() };
            if size < sent_to {
                return None;
            }
            freed = self.buffer.cut(size);
        }
        if !lies_inline {
            self.inline = None;
        }
        self.size = size;
        self.note_size_was(size);
        Some(freed)
    }

    fn note_size_was(&mut self, size: u64) {
        self.synced_size = self.synced_size.min(size);
        self.aged_size = self.aged_size.min(size);
    }

    /// A sync begins: of the background one that covers what it found last.
    pub(super) fn begin_sync(&mut self, goal: Goal) {
        self.synced_size = match goal {
            Goal::Aged => std::mem::replace(&mut self.aged_size, self.size),
            Goal::Published => self.size,
            Goal::Pushed => return,
        };
    }

    /// The size that the last sync may tell, once its bytes are durable.
    pub(super) fn covered_size(&self) -> u64 {
        self.synced_size.max(self.published_size)
    }

    /// Notes bytes that were written through, past the buffer: targets have the whole file.
    pub fn written_through(&mut self, allocated: u64) {
        self.inline = None;
        self.allocated += allocated;
    }

    /// Blocks of these bytes gave room back. What is counted may lag behind by a write; a file with
    /// blocks elsewhere must not look like a hole.
    pub fn gave_back(&mut self, bytes: u64, (from, to): (u64, u64)) {
        let is_all = from == 0 && to >= self.size;
        let least = if is_all { 0 } else { self.allocated.min(PAGE) };
        self.allocated = self.allocated.saturating_sub(bytes).max(least);
    }

    /// Notes that a program set the times.
    pub fn mtime_is_set(&mut self) {
        self.mtime = None;
    }
}

/// What the targets answer.
impl FileWriteback {
    /// Targets took bytes, with so many more of theirs. One that was asked twice does not count
    /// again what it has: at least as many as these are.
    pub fn pushed(&mut self, bytes: PushedBytes, allocated: u64) {
        let is_wanted = self.buffer.pushed(bytes);
        // What was given up lies there all the same, perhaps beyond the size.
        self.has_failed |= !is_wanted;
        let least = if is_wanted { u64::from(bytes.len()).next_multiple_of(PAGE) } else { 0 };
        self.allocated = (self.allocated + allocated).max(least);
    }

    /// Notes that targets refused bytes, which are lost. Returns bytes that are not buffered any
    /// more. `None`: they were given up before.
    pub fn push_failed(&mut self, bytes: PushedBytes) -> Option<u64> {
        self.has_failed = true;
        self.buffer.discard(bytes)
    }

    /// Notes that a write past the buffer ended in the middle, and that what it left was not
    /// removed.
    pub fn note_failed(&mut self) {
        self.has_failed = true;
    }

    /// Forgets what could not be kept. Returns bytes that are not buffered any more.
    pub fn lose(&mut self) -> u64 {
        self.has_failed = true;
        self.forget()
    }

    /// Forgets what is not wanted any more. Returns bytes that are not buffered any more.
    pub fn forget(&mut self) -> u64 {
        self.unpublished = None;
        self.buffer.clear()
    }

    /// Notes that targets removed the bytes beyond the truncation with this number.
    pub fn cut_on_targets(&mut self, from: u64, number: u64, now: Instant) {
        self.buffer.note_cut(from);
        self.changed(now);
        self.mtime = None;
        self.untold_cut = Some(number).filter(|_| !broken!("cut_stays_untold"));
    }

    /// Forgets a truncation: the next writer takes the file over anew, and finishes what was not
    /// reported.
    pub fn forget_cut(&mut self) {
        self.untold_cut = None;
    }
}

/// What the metadata server is told and answers.
impl FileWriteback {
    /// Whether the server must hear that the file grows before this block leaves (WRITEBACK-2).
    pub fn grows(&self, block: u64) -> bool {
        let is_unknown = !self.is_growth_known && !broken!("growth_untold");
        (block + 1) * BLOCK > self.published_size && is_unknown
    }

    /// Notes that the server knows that the file grows.
    pub fn growth_is_known(&mut self) {
        self.is_growth_known = true;
    }

    /// Notes that the server knows that the bytes beyond this truncation are gone.
    pub fn cut_is_told(&mut self, told: Option<u64>) {
        self.untold_cut = self.untold_cut.filter(|cut| told != Some(*cut));
    }

    /// What to publish to the server now. While bytes are left here, no size beyond `durable_to` is
    /// published (WRITEBACK-1). Data that was inline a moment ago is on the targets before the
    /// server may forget it.
    pub fn publication(&self, ino: Ino, scope: SyncScope, durable_to: u64) -> Told {
        let lies_as_known = self.inline.is_none() && !self.has_left_inline;
        let unchanged = lies_as_known && self.size == self.published_size;
        let is_told = self.unpublished.is_none() && self.untold_cut.is_none();
        if is_told || (scope == SyncScope::Data && unchanged) {
            return Told::Nothing;
        }
        if self.is_moving() && !broken!("published_before_bytes") {
            return Told::Early;
        }
        let mut call = self.call(ino);
        let is_capped = call.data != PublishData::Inline && !self.buffer.is_empty();
        if is_capped && !broken!("published_before_bytes") {
            call.size = call.size.min(durable_to);
        }
        let inline = self.inline.clone().unwrap_or_default();
        // Blocks of what is still here are not counted yet.
        let is_whole = self.buffer.is_empty() || broken!("published_before_bytes");
        let (version, cut) = (self.version, self.untold_cut);
        Told::Call(Box::new(Publication { call, inline, version, is_whole, cut }))
    }

    fn call(&self, ino: Ino) -> Publish {
        let (size, mtime) = (self.size, self.mtime.map(SetTime::At));
        if let Some(known) = self.beside {
            let allocated = self.allocated.saturating_sub(known);
            return Publish { ino, size, allocated, mtime, data: PublishData::Part };
        }
        let data = match self.untold_cut {
            _ if self.lies_inline() => PublishData::Inline,
            Some(_) => PublishData::CutDone,
            None => PublishData::OnTargets,
        };
        Publish { ino, size, allocated: self.allocated, mtime, data }
    }

    /// Notes that the server has the publication. What it does not have yet came since the sync
    /// began, or is left for the next sync.
    pub fn published(&mut self, told: &Publication, now: Instant) {
        let call = &told.call;
        self.published_size = call.size;
        self.has_left_inline &= call.data == PublishData::Inline;
        self.cut_is_told(told.cut.filter(|_| call.data == PublishData::CutDone));
        if call.data == PublishData::Part {
            self.beside = self.beside.map(|known| known + call.allocated);
        }
        let is_all = self.version == told.version && told.is_whole && call.size == self.size;
        self.unpublished = self.unpublished.filter(|_| !is_all).map(|_| now);
    }

    /// Notes that the server got the file with the journal, as it was at this version.
    pub fn published_inline(&mut self, size: u64, version: u64) {
        self.published_size = size;
        if self.version == version {
            self.unpublished = None;
        }
    }

    /// Notes that the file is gone at the server, so nothing is left to keep.
    pub fn has_nothing_to_publish(&mut self) {
        self.unpublished = None;
    }

    /// Takes over the file's state from the server, while nothing of it was unpublished here.
    pub fn told(&mut self, attr: &Attr) {
        // One that was just cut to nothing here has no other size.
        let fits = self.inline.as_ref().is_none_or(|data| data.len() as u64 == attr.size);
        if self.unpublished.is_none() && fits {
            (self.size, self.published_size) = (attr.size, attr.size);
            self.allocated = attr.allocated;
            self.mtime = None;
        }
    }

    /// Notes that the server truncated the file or made it longer.
    pub fn resized(&mut self, size: u64, now: Instant) {
        if size == 0 {
            // Whatever it was: nothing of this object is on the targets.
            (self.inline, self.allocated) = (Some(Vec::new()), 0);
            self.has_left_inline = false;
            self.buffer.note_cut(0);
        }
        if size > MAX_INLINE {
            self.leave_inline();
        } else if let Some(inline) = &mut self.inline {
            inline.resize(size as usize, 0);
            self.allocated = self.allocated.min(size.next_multiple_of(512));
        }
        (self.size, self.published_size) = (size, size);
        self.note_size_was(size);
        (self.is_growth_known, self.untold_cut) = (false, None);
        self.mtime = None;
        self.version += 1;
        let has_inline = self.inline.as_ref().is_some_and(|data| !data.is_empty());
        let is_clean = !has_inline && self.buffer.is_empty();
        self.unpublished = (!is_clean).then_some(now);
    }

    /// Drops all data, and begins a later version. Returns bytes that are not buffered any more.
    pub fn begin_anew(&mut self) -> u64 {
        let freed = self.buffer.clear();
        *self = FileWriteback { version: self.version + 1, ..FileWriteback::empty() };
        freed
    }
}
