//! What a client knows of one inode: its lease, its attributes, its buffered data.
//!
//! One lock per inode owns all of it. An operation enters under a lease and is counted while it
//! runs. So a recall knows when no operation overlaps it.

pub(crate) mod accesses;
pub(crate) mod deferred_unlink;
pub(crate) mod dentry_cache;
pub(crate) mod known_xattrs;
pub(crate) mod release;
pub(crate) mod size_change;
pub(crate) mod table;
pub(crate) mod trim;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::id::{Ino, ObjectId, SessionId};
use nuri_proto::layout::Layout;
use nuri_proto::op::meta::{Attr, FileRecord, Grant, LeaseMode, Time};
use nuri_proto::range_map::Span;
use nuri_rules::broken;
use parking_lot::{Condvar, Mutex};

use crate::inode::dentry_cache::{CachedNames, DirGeneration};
use crate::inode::known_xattrs::KnownXattrs;
use crate::inode::size_change::SizeGate;
use crate::journal::usage::DirUsage;
use crate::lease::held_ranges::RangeLease;
use crate::lease::revocation::Activity;
use crate::lease::state::{GrantValidity, LeaseState};
use crate::readahead::window::Ahead;
use crate::writeback::found_rows::FoundRows;
use crate::writeback::machine::FileWriteback;

/// A recall that takes so long is given way to for so long.
const SLOW_RECALL: Duration = Duration::from_secs(2);
const YIELD_TO_SLOW: Duration = Duration::from_secs(1);

/// An inode and its attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub ino: Ino,
    pub attr: Attr,
}

/// One inode. Shared by the table, open handles and pushes in flight.
pub(crate) struct Inode {
    pub(crate) ino: Ino,
    pub(crate) state: Mutex<InodeState>,
    /// Pushes ended, operations left, or the lease changed.
    pub(crate) changed: Condvar,
    /// Held while data is made durable and published, and while the file is truncated.
    pub(crate) sync: Mutex<()>,
    /// Held while a file's data is taken over with a lease.
    pub(crate) taking_over: Mutex<()>,
    /// When it was asked for last (`trim.rs`).
    pub(crate) used: AtomicU32,
}

#[derive(Default)]
pub(crate) struct InodeState {
    pub(crate) hold: LeaseState,
    /// When the recall began that is being obeyed.
    pub(crate) recalled_since: Option<Instant>,
    /// What may be written without a mode, while others write elsewhere in the file.
    pub(crate) parts: Option<Box<RangeLease>>,
    /// Those that are being given back.
    pub(crate) leaving: Vec<Span>,
    /// The kernel may have pages that were written under parts.
    pub(crate) has_part_pages: bool,
    /// Calls under way that ask for the whole file, and how often parts became void that calls
    /// under way may bring.
    pub(crate) asking_whole: u32,
    pub(crate) part_voids: u64,
    /// Calls under way that ask for its attributes.
    pub(crate) looking: u32,
    /// Names below it were told to the kernel: it is a directory.
    pub(crate) names: bool,
    /// Valid while a lease is held.
    pub(crate) attr: Option<Attr>,
    /// Of a directory's names; and where the inode was found itself.
    pub(crate) age: DirGeneration,
    pub(crate) found: Option<Box<CachedNames>>,
    /// Of a directory: the client log knows all its names, under the write lease.
    pub(crate) names_known: bool,
    pub(crate) usage: DirUsage,
    /// The last step of the client log that concerns it: until that is told it stays here.
    pub(crate) logged: u64,
    /// How often attributes were forgotten: those of a reply to an older call do not count.
    pub(crate) forgotten: u64,
    /// The inode changed since this count of its changes, or at it: an answer that tells of no
    /// later one may be from before.
    pub(crate) outdated: u64,
    /// How often a lease was lost.
    pub(crate) losses: u64,
    /// Known under the lease.
    pub(crate) xattrs: KnownXattrs,
    /// When it was read last, where that is newer than the server's word in `attr`.
    pub(crate) accessed: Option<Time>,
    /// Apart from the rest: a table of a million inodes holds it for few of them.
    pub(crate) file: Option<Box<FileData>>,
    /// References of the kernel, and open handles.
    pub(crate) lookups: u64,
    pub(crate) opens: u32,
    /// Of those, the ones that may write.
    pub(crate) writers: u32,
    /// Lost its last name: the server waits for our last close.
    pub(crate) orphan: bool,
    /// Its last name went while it was not open: it is as good as gone.
    pub(crate) dropped: bool,
    /// Its last name went a moment ago: it stays, also where the last one closes it.
    pub(crate) lingers: bool,
    /// What [`InodeState::is_awaited`] found last.
    pub(crate) was_being_opened: bool,
    /// Pages of operations that wait for a lease, from, to: the kernel keeps them locked.
    pub(crate) awaiting: Vec<(u64, u64)>,
    pub(crate) size_gate: SizeGate,
    /// Operations running now, and reads ever begun.
    pub(crate) active: u32,
    pub(crate) reads: u64,
    /// Data that could not be kept: counted, so that each handle reports it once.
    pub(crate) errors: u64,
    pub(crate) last_error: Option<Status>,
}

/// Data of a regular file under a lease.
pub(crate) struct FileData {
    /// Whose lease it is: targets refuse its bytes once that session ended.
    pub(crate) session: SessionId,
    pub(crate) object: ObjectId,
    pub(crate) layout: Arc<Layout>,
    /// It was taken over under the write lease: what others left beyond the size is gone.
    pub(crate) is_writable: bool,
    /// Of its rows, while others write the file too.
    pub(crate) found_rows: Arc<FoundRows>,
    /// A write goes straight to the targets: others wait for it.
    pub(crate) is_written_through: bool,
    /// The step of the journal that cut it to nothing last: what is answered of earlier ones tells
    /// nothing of its place and size any more.
    pub(crate) emptied_at: u64,
    pub(crate) ahead: Ahead,
    /// Its bytes, size and times, as far as the servers may not have them.
    pub(crate) own: FileWriteback,
}

impl FileData {
    pub(crate) fn new(session: SessionId, record: FileRecord, attr: &Attr) -> FileData {
        FileData {
            session,
            object: record.object,
            layout: Arc::new(record.layout),
            is_writable: false,
            found_rows: Arc::default(),
            is_written_through: false,
            emptied_at: 0,
            ahead: Ahead::default(),
            own: FileWriteback::new(record.inline, attr, Instant::now()),
        }
    }

    /// An empty file that has no place on the targets yet, to be written here.
    pub(crate) fn empty(session: SessionId) -> FileData {
        let layout = Layout { generation: 0, components: Vec::new() };
        let (object, inline, truncate_version) = (ObjectId(0), Some(Vec::new()), 0);
        let record = FileRecord { object, layout, truncate_version, inline, punch_from: None };
        FileData { is_writable: true, ..FileData::new(session, record, &Attr::default()) }
    }

    /// Drops the data and its place, by this step of the journal. Returns bytes that are not
    /// buffered any more.
    pub(crate) fn begin_anew(&mut self, emptied_at: u64) -> u64 {
        let mut own = std::mem::take(&mut self.own);
        let freed = own.begin_anew();
        *self = FileData { emptied_at, own, ..FileData::empty(self.session) };
        freed
    }

    /// Makes the next writer take the file over anew, and finish what was not reported.
    pub(crate) fn keep_writable(&mut self, may_write: bool) {
        self.is_writable &= may_write;
        if !self.is_writable {
            self.own.forget_cut();
        }
    }

    /// Whether a writer under the file's lease left no bytes beyond the published size.
    pub(crate) fn left_nothing(&self) -> bool {
        self.is_writable && self.own.left_nothing()
    }

    pub(crate) fn is_redundant(&self) -> bool {
        self.layout.components.first().is_some_and(|component| component.shape.is_redundant())
    }

    /// Whether the file has a place on the targets, or is so small that it needs none yet.
    pub(crate) fn is_placed(&self) -> bool {
        !self.layout.components.is_empty()
    }
}

impl InodeState {
    /// Attributes as a program should see them.
    pub(crate) fn view(&self) -> Option<Attr> {
        let mut attr = self.attr?;
        attr.atime = attr.atime.max(self.accessed.unwrap_or(attr.atime));
        if let Some(file) = &self.file {
            attr.size = file.own.size();
            attr.allocated = file.own.shown_allocated();
            if let Some(mtime) = file.own.mtime() {
                (attr.mtime, attr.ctime) = (mtime, attr.ctime.max(mtime));
            }
        }
        Some(attr)
    }

    /// The attributes of an answer, as a program should see them.
    pub(crate) fn shown(&self, told: Attr) -> Attr {
        let Some(attr) = self.view() else {
            // What was written under parts may not be published yet.
            let file = self.file.as_ref().filter(|_| self.parts.is_some());
            let size = file.map_or(0, |file| file.own.size()).max(told.size);
            let written = file.and_then(|file| file.own.mtime());
            let later = |told: Time| written.map_or(told, |written| written.max(told));
            let (mtime, ctime) = (later(told.mtime), later(told.ctime));
            return Attr { size, mtime, ctime, ..told };
        };
        attr
    }

    /// Number of the last grant, of the whole inode or of a range.
    pub(crate) fn last_grant(&self) -> u64 {
        self.parts.as_ref().map_or(0, |parts| parts.number).max(self.hold.number)
    }

    /// What goes on under the lease.
    pub(crate) fn activity(&self) -> Activity {
        let writes = |file: &FileData| file.own.is_dirty() || file.own.buffer.has_flying();
        let is_dirty = self.file.as_deref().is_some_and(writes);
        Activity { active: self.active, reads: self.reads, is_dirty }
    }

    /// A value that stays the same as long as a lease is held without a gap.
    pub(crate) fn held_since(&self, mode: LeaseMode) -> Option<u64> {
        (self.hold.mode >= Some(mode)).then_some(self.forgotten)
    }

    /// Takes over a reply's attributes and lease.
    pub(crate) fn apply(&mut self, attr: &Attr, lease: Option<Grant>, standing: GrantValidity) {
        self.hold.take(lease, standing);
        // Answers of calls side by side may overtake each other.
        let is_outdated = attr.change <= self.outdated && !broken!("old_after_forgotten");
        // One that is told twice is taken for how the inode is: what was known was told after the
        // change then.
        let is_again = is_outdated && attr.change == self.outdated;
        self.outdated = self.outdated.saturating_sub(u64::from(is_again));
        let is_old = is_outdated || self.attr.is_some_and(|known| known.change > attr.change);
        let is_void = lease.is_some_and(|grant| !self.hold.counts(grant, standing));
        if self.hold.mode.is_none() || is_old || is_void {
            return;
        }
        // An inode that never changed has no extended attributes.
        if attr.change == 1 {
            self.xattrs.note_bare();
        }
        if let Some(file) = &mut self.file {
            file.own.told(attr);
        }
        self.attr = Some(*attr);
    }

    /// Takes over the state of a directory from the answer to a call of this client that changed
    /// it. `forgotten` is from before the call. Answers of calls side by side may overtake each
    /// other.
    pub(crate) fn directory_changed(&mut self, attr: Attr, forgotten: u64) {
        self.usage.answered(attr.change);
        let newest = self.attr.is_none_or(|known| known.change < attr.change);
        if self.hold.mode.is_some() && self.forgotten == forgotten {
            self.attr = if newest { Some(attr) } else { self.attr };
        } else {
            self.attr = None;
        }
    }

    /// Forgets attributes, because they may have changed. Buffered data stays, and covers what is
    /// fetched anew.
    pub(crate) fn forget_attr(&mut self) {
        (self.attr, self.forgotten) = (None, self.forgotten + 1);
    }

    /// Notes that a call of this client changed the inode, and did not answer with its new state.
    pub(crate) fn outdate_attr(&mut self) {
        self.outdated = self.attr.map_or(0, |known| known.change).max(self.outdated);
        self.forget_attr();
    }

    /// Forgets what was known under a lease that is gone.
    pub(crate) fn forget_leased(&mut self) {
        self.forgotten += 1;
        self.outdated = 0;
        self.losses += 1;
        (self.file, self.attr, self.accessed) = (None, None, None);
        self.xattrs = KnownXattrs::default();
        self.names_known = false;
        self.names_changed();
        self.forget_parts();
    }

    /// Whether a call for the inode is under way that may be an open, or the kernel's look-up
    /// before an open.
    pub(crate) fn is_being_opened(&self) -> bool {
        let is_entering = self.looking > 0 || self.asking_whole > 0 || self.active > 0;
        self.opens == 0 && is_entering && !broken!("orphan_while_opened")
    }

    /// Whether the inode, which has no name, stays for a program that may be about to open it: a
    /// call of an open is under way, or was when this was asked last. The kernel looks the inode up
    /// and opens it by two calls, and between them none is under way.
    pub(crate) fn is_awaited(&mut self) -> bool {
        let is_now = self.is_being_opened();
        let was = std::mem::replace(&mut self.was_being_opened, is_now);
        is_now || (was && self.opens == 0 && !broken!("orphan_between_calls"))
    }

    /// Whether the inode was removed and closed, and no other mount can have it open.
    pub(crate) fn is_beyond_reach(&self) -> bool {
        self.dropped && self.hold.is_private
    }

    pub(crate) fn note_error(&mut self, status: Status) {
        self.errors += 1;
        self.last_error = Some(status);
    }
}

/// A call that asks for attributes; ends when dropped.
pub(crate) struct Looking(Arc<Inode>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.state.lock().looking -= 1;
    }
}

impl Looking {
    pub(crate) fn begin(node: &Arc<Inode>, state: &mut InodeState) -> Looking {
        state.looking += 1;
        Looking(node.clone())
    }
}

impl Inode {
    pub(crate) fn new(ino: Ino, recalled: u64) -> Inode {
        let state = InodeState { hold: LeaseState::none(recalled), ..InodeState::default() };
        let (changed, sync, taking_over) = (Condvar::new(), Mutex::new(()), Mutex::new(()));
        let used = AtomicU32::new(0);
        Inode { ino, state: Mutex::new(state), changed, sync, taking_over, used }
    }

    pub(crate) fn note_use(&self, now: u32) {
        self.used.store(now, Ordering::Relaxed);
    }

    /// Ends an operation that was counted in.
    pub(crate) fn leave(&self) {
        let mut state = self.state.lock();
        state.active -= 1;
        if state.active == 0 {
            self.changed.notify_all();
        }
    }

    /// Waits a little for the end of a recall, where there is one to be waited for.
    pub(crate) fn wait_for_recall(&self, waits: impl Fn(&InodeState) -> bool) -> bool {
        let mut state = self.state.lock();
        let is_waiting = waits(&state);
        if is_waiting {
            self.changed.wait_for(&mut state, Duration::from_millis(20));
        }
        is_waiting
    }

    /// Slows down operations that begin while a recall is being obeyed, so that the recall comes to
    /// an end. They are never blocked, because the recall may wait for what they hold in the
    /// kernel.
    pub(crate) fn yield_to_recall(&self) {
        let mut state = self.state.lock();
        if state.hold.revoking {
            self.changed.wait_for(&mut state, Duration::from_millis(10));
        }
    }

    /// As `yield_to_recall`, for changes of the size. A program that makes one after the other
    /// would keep a recall from its end. A program that gives way each time would hold the kernel's
    /// pages longer than it helps. So a change gives way only where the recall takes long.
    pub(crate) fn yield_to_slow_recall(&self) {
        let mut state = self.state.lock();
        let is_slow = |since: &Instant| since.elapsed() > SLOW_RECALL;
        if state.hold.revoking && state.recalled_since.as_ref().is_some_and(is_slow) {
            let end = Instant::now() + YIELD_TO_SLOW;
            while state.hold.revoking && !self.changed.wait_until(&mut state, end).timed_out() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_an_earlier_server_or_session_grants_nothing() {
        let mut state = InodeState::default();
        let grant = |boot: u64| {
            let number = (boot << Grant::EPOCH_SHIFT) + 7;
            Some(Grant { mode: LeaseMode::Write, number })
        };
        let standing = GrantValidity { server_boot: 2, void: 0 };
        state.apply(&Attr::default(), grant(1), standing);
        assert_eq!(state.hold.mode, None);
        state.apply(&Attr::default(), grant(2), GrantValidity { void: u64::MAX, ..standing });
        assert_eq!(state.hold.mode, None, "granted to a session that ended");
        state.apply(&Attr::default(), grant(2), standing);
        assert_eq!(state.hold.mode, Some(LeaseMode::Write));
    }

    #[test]
    fn what_a_recalled_grant_told_is_not_taken_for_what_a_later_one_tells() {
        let mut state = InodeState::default();
        let grant = |number| Some(Grant { mode: LeaseMode::Read, number });
        let attr = |change| Attr { change, ..Attr::default() };
        let standing = GrantValidity { server_boot: 0, void: 0 };
        state.hold.recalled = 5;
        state.apply(&attr(7), grant(6), standing);
        state.attr = None;
        state.apply(&attr(3), grant(4), standing);
        assert_eq!((state.hold.mode, state.attr), (Some(LeaseMode::Read), None));
        assert!(!state.hold.counts(grant(5).unwrap(), standing));
        state.apply(&attr(7), grant(6), standing);
        state.apply(&attr(6), grant(7), standing);
        assert_eq!(state.attr, Some(attr(7)), "an older answer");
    }

    /// Catches `broken!("orphan_between_calls")`.
    #[test]
    fn a_file_without_a_name_stays_between_a_look_up_and_its_open() {
        let mut state = InodeState::default();
        assert!(!state.is_awaited());
        state.looking = 1;
        assert!(state.is_awaited());
        state.looking = 0;
        assert!(state.is_awaited(), "the open may be on its way");
        state.active = 1;
        assert!(state.is_awaited());
        (state.active, state.opens) = (0, 1);
        assert!(!state.is_awaited(), "it is open");
        state.opens = 0;
        assert!(!state.is_awaited(), "it was closed");
    }

    /// Catches `broken!("old_after_forgotten")`.
    #[test]
    fn an_answer_from_before_an_own_change_says_nothing() {
        let mut state = InodeState::default();
        let attr = |change| Attr { change, ..Attr::default() };
        let standing = GrantValidity { server_boot: 0, void: 0 };
        let grant = |number| Some(Grant { mode: LeaseMode::Write, number });
        state.apply(&attr(7), grant(1), standing);
        state.outdate_attr();
        state.apply(&attr(7), grant(2), standing);
        assert_eq!(state.attr, None, "it is from before the change");
        state.apply(&attr(6), grant(2), standing);
        assert_eq!(state.attr, None);
        state.apply(&attr(8), grant(3), standing);
        assert_eq!(state.attr, Some(attr(8)));
        state.outdate_attr();
        state.forget_leased();
        state.apply(&attr(2), grant(4), standing);
        assert_eq!(state.attr, Some(attr(2)), "under another lease");
        state.outdate_attr();
        (0..2).for_each(|_| state.apply(&attr(2), grant(5), standing));
        assert_eq!(state.attr, Some(attr(2)), "what is told again is believed");
    }

    #[test]
    fn answers_of_calls_side_by_side_never_go_back() {
        let attr = |change| Attr { change, ..Attr::default() };
        let mut state = InodeState::default();
        state.hold.mode = Some(LeaseMode::Read);
        state.directory_changed(attr(11), 0);
        state.directory_changed(attr(10), 0);
        assert_eq!(state.attr, Some(attr(11)));
        state.forget_leased();
        state.directory_changed(attr(12), 0);
        assert_eq!(state.attr, None, "the lease went in between");
    }
    #[test]
    fn changes_of_the_size_give_way_to_a_recall_that_takes_long() {
        let inode = Inode::new(Ino(7), 0);
        let waited = |revoking, age| {
            let mut state = inode.state.lock();
            state.hold.revoking = revoking;
            state.recalled_since = Instant::now().checked_sub(age);
            drop(state);
            let start = Instant::now();
            inode.yield_to_slow_recall();
            start.elapsed()
        };
        assert!(waited(true, 2 * SLOW_RECALL) >= YIELD_TO_SLOW);
        assert!(waited(true, SLOW_RECALL / 4) < YIELD_TO_SLOW / 2);
        assert!(waited(false, 2 * SLOW_RECALL) < YIELD_TO_SLOW / 2, "it ended");
    }
}
