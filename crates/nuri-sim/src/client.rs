//! A simulated client: the writeback of a mount (`nuri_client::machine`) against stores that lose
//! power. Nothing of the mount's shell is copied: the machine says what a sync does next, and the
//! world carries it out message by message.
//!
//! Programs write, read and sync; pushes and syncs go on beside them. The requests of a client come
//! back in any order. A request without an answer breaks the connection to that target, and
//! everything that waits there is sent again over a new one. What was sent over a broken connection
//! does not arrive any more.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use nuri_client::buffer::{BLOCK, PushedBytes};
use nuri_client::machine::{FileSync, FileWriteback, Goal, Publication, Step, SyncScope, Told};
use nuri_io::rng::Rng;
use nuri_proto::Status;
use nuri_proto::id::{Ino, ObjectId, TargetId};
use nuri_proto::layout::Layout;
use nuri_proto::limit::MAX_INLINE;
use nuri_proto::op::data::Durability;
use nuri_proto::op::meta::{Attr, FileRecord, PublishData, Time};
use nuri_stripe::locate::{Piece, pieces};
use nuri_stripe::unsynced::{FlushTicket, Unsynced};

use crate::check::{CELL, History, Latest, Wrong, wrong};
use crate::target::{Answer, Ask};

/// Cells of a file: a little more than a block of the buffer.
pub const CELLS: usize = 2304;

/// An open file of the client.
pub struct File {
    pub name: String,
    pub ino: Ino,
    pub object: ObjectId,
    pub layout: Layout,
    pub history: History,
    pub own: FileWriteback,
}

/// Bytes of a push.
#[derive(Clone)]
struct Pushed {
    file: usize,
    bytes: PushedBytes,
}

enum Purpose {
    Push(Pushed, Durability),
    Flush(FlushTicket),
    /// Bytes from there on of what is read.
    Read(usize),
}

/// A request that waits for its answer.
pub struct Waiting {
    pub target: TargetId,
    pub ask: Ask,
    purpose: Purpose,
    pub attempt: u32,
    pub since: u64,
}

/// A read under way: what was buffered is in the bytes already.
struct Reading {
    file: usize,
    first: usize,
    bytes: Vec<u8>,
}

/// A sync or a push under way.
struct Syncing {
    file: usize,
    goal: Goal,
    sync: FileSync,
    /// What the file held when it began.
    snapshot: Vec<usize>,
    since: u64,
}

/// What the client asks the metadata server.
pub enum MetaCall {
    /// The file grows; a cut that the server does not know to be done.
    Extend {
        file: usize,
        cut: Option<u64>,
    },
    Publish {
        file: usize,
        told: Publication,
    },
}

impl MetaCall {
    pub fn file(&self) -> usize {
        match self {
            MetaCall::Extend { file, .. } | MetaCall::Publish { file, .. } => *file,
        }
    }
}

pub struct Client {
    pub files: Vec<File>,
    unsynced: Unsynced<Pushed>,
    pub waiting: BTreeMap<u64, Waiting>,
    /// Requests to be sent, by number.
    pub outbox: Vec<u64>,
    pub connection: HashMap<TargetId, u32>,
    reading: Option<Reading>,
    syncing: Option<Syncing>,
    /// Whether a program waits for the end of the sync.
    is_sync_awaited: bool,
    /// A program's operation is under way.
    pub is_busy: bool,
    next_request: u64,
    next_write: u64,
    pub done: u64,
    /// Any moment: the machine compares moments only.
    start: Instant,
}

impl Client {
    pub fn new(number: u64) -> Client {
        Client {
            files: Vec::new(),
            unsynced: Unsynced::default(),
            waiting: BTreeMap::new(),
            outbox: Vec::new(),
            connection: HashMap::new(),
            reading: None,
            syncing: None,
            is_sync_awaited: false,
            is_busy: false,
            next_request: 0,
            next_write: number << 40,
            done: 0,
            start: Instant::now(),
        }
    }

    pub fn add_file(&mut self, name: String, attr: &Attr, record: FileRecord) {
        let history = History::new(record.object.0, CELLS);
        let own = FileWriteback::new(record.inline, attr, self.start);
        let (object, layout, ino) = (record.object, record.layout, attr.ino);
        self.files.push(File { name, ino, object, layout, history, own });
    }

    /// Nothing is under way: what is on the servers or here is all there is.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.reading.is_none() && self.syncing.is_none()
    }

    /// Since when the oldest of what is under way is.
    pub fn oldest(&self) -> Option<u64> {
        let requests = self.waiting.values().map(|w| w.since);
        requests.chain(self.syncing.as_ref().map(|syncing| syncing.since)).min()
    }

    /// The file was cut to nothing at the server; it has this object from here on.
    pub fn emptied(&mut self, file: usize, object: ObjectId) {
        let f = &mut self.files[file];
        f.own.buffer.clear();
        f.own.resized(0, self.start);
        // The same object has nothing on the targets: else the server would know of it.
        (f.object, f.history) = (object, History::new(object.0, CELLS));
    }

    /// The client died: another one takes its files over, and knows what the servers do.
    pub fn died(&mut self) {
        (self.unsynced, self.reading, self.syncing) = (Unsynced::default(), None, None);
        (self.is_sync_awaited, self.is_busy) = (false, false);
        self.waiting.clear();
        self.outbox.clear();
        self.connection.values_mut().for_each(|connection| *connection += 1);
        self.files.iter_mut().for_each(|file| file.history.died());
    }

    /// # Errors
    /// What the server lost.
    pub fn take_over(&mut self, file: usize, attr: &Attr, record: FileRecord) -> Result<(), Wrong> {
        let f = &mut self.files[file];
        if record.object != f.object {
            return Err(wrong!("{} has object {}, not {}", f.name, record.object.0, f.object.0));
        }
        f.history.sized(attr.size as usize / CELL)?;
        f.layout = record.layout;
        f.own = FileWriteback::new(record.inline, attr, self.start);
        Ok(())
    }

    /// Begins a random operation.
    pub fn begin(&mut self, rng: &mut Rng, now: u64) -> Result<(), Wrong> {
        let file = rng.below(self.files.len() as u64) as usize;
        self.is_busy = true;
        match rng.below(10) {
            0..5 => {
                let first = match rng.below(4) {
                    0 => rng.below(MAX_INLINE / CELL as u64) as usize,
                    _ => rng.below(CELLS as u64) as usize,
                };
                let most = if rng.one_in(3) { 400 } else { 12 };
                self.write(file, first..(first + 1 + rng.below(most) as usize).min(CELLS));
                if rng.one_in(3) && self.syncing.is_none() {
                    let goal = if rng.one_in(2) { Goal::Aged } else { Goal::Pushed };
                    self.sync(file, goal, now);
                }
            }
            5..7 if self.syncing.is_none() => {
                self.sync(file, Goal::Published, now);
                self.is_sync_awaited = rng.one_in(2);
            }
            _ => self.read(file, rng, now)?,
        }
        Ok(())
    }

    /// A program writes these cells: they are buffered, or lie inline.
    fn write(&mut self, file: usize, cells: Range<usize>) {
        self.next_write += 1;
        let f = &mut self.files[file];
        f.history.written(cells.clone(), self.next_write);
        let bytes = f.history.bytes(cells.clone());
        let at = (cells.start * CELL) as u64;
        if f.own.write_inline(at, &bytes).is_err() {
            for (block, from, range) in blocks(at, bytes.len()) {
                f.own.buffer.write(block, from, &bytes[range]);
            }
        }
        f.own.reached(at + bytes.len() as u64);
        f.own.touch(Time::default(), self.start);
    }

    /// A program reads: what is not buffered is asked of the targets.
    fn read(&mut self, file: usize, rng: &mut Rng, now: u64) -> Result<(), Wrong> {
        let f = &self.files[file];
        let size = f.own.size() as usize / CELL;
        if size == 0 {
            return Ok(());
        }
        let first = rng.below(size as u64) as usize;
        let end = (first + 1 + rng.below(400) as usize).min(size);
        if let Some(inline) = f.own.inline() {
            return f.history.check_stored(first, &inline[first * CELL..end * CELL], NEWEST);
        }
        let mut bytes = vec![0; (end - first) * CELL];
        let (mut asks, at) = (Vec::new(), (first * CELL) as u64);
        for (block, from, range) in blocks(at, bytes.len()) {
            let start = block * BLOCK;
            for (s, e) in f.own.buffer.read(block, from, &mut bytes[range]) {
                let gap = (start + u64::from(s), u64::from(e - s));
                for piece in pieces(&f.layout, f.object, gap.0, gap.1) {
                    let (key, offset, len) = (piece.key, piece.offset, piece.len);
                    let ask = Ask::Read { key, offset, len };
                    asks.push((piece.group.0, ask, (piece.file_offset - at) as usize));
                }
            }
        }
        if asks.is_empty() {
            return f.history.check_stored(first, &bytes, NEWEST);
        }
        self.reading = Some(Reading { file, first, bytes });
        for (target, ask, from) in asks {
            self.send(TargetId(target), ask, Purpose::Read(from), now);
        }
        Ok(())
    }

    /// Begins a sync of the file; one at a time.
    pub fn sync(&mut self, file: usize, goal: Goal, now: u64) {
        let f = &mut self.files[file];
        let (sync, snapshot) = (FileSync::begin(&mut f.own, goal), f.history.snapshot());
        self.syncing = Some(Syncing { file, goal, sync, snapshot, since: now });
    }

    /// The sync goes on, as far as it can without an answer. What the metadata server is asked.
    ///
    /// # Errors
    /// A step that makes no sense.
    pub fn advance(&mut self, now: u64) -> Result<Option<MetaCall>, Wrong> {
        let Some(mut syncing) = self.syncing.take() else { return Ok(None) };
        let file = syncing.file;
        let step = syncing.sync.next(&self.files[file].own, true);
        let is_pushed = syncing.goal == Goal::Pushed && !matches!(step, Step::Push(..));
        if is_pushed {
            return Ok(None);
        }
        let outcome = match step {
            Step::Place => return Err("a file with a place is to be placed".into()),
            Step::Push(blocks, how) => Ok(self.push(file, &blocks, how, now)),
            Step::Await => Ok(None),
            Step::Flush => self.flush(file, now).map(|()| None),
            Step::Publish { durable_to } => {
                let f = &mut self.files[file];
                let told = match f.own.publication(f.ino, SyncScope::All, durable_to) {
                    Told::Early => {
                        let next = syncing.sync.next(&f.own, true);
                        if matches!(next, Step::Publish { .. }) {
                            return Err("what must leave before a publication stays".into());
                        }
                        self.syncing = Some(syncing);
                        return self.advance(now);
                    }
                    Told::Call(told) => {
                        let is_inline = told.call.data == PublishData::Inline;
                        let is_covered = f.own.buffer.is_empty() || told.call.size <= durable_to;
                        if !is_inline && !is_covered {
                            return Err(wrong!("size {} is told early", told.call.size));
                        }
                        Some(MetaCall::Publish { file, told: *told })
                    }
                    Told::Nothing => None,
                };
                // All of that is durable now, says the machine.
                match (syncing.goal, f.own.buffer.first()) {
                    (Goal::Aged, Some(first)) => {
                        let durable = first.min(durable_to) as usize / CELL;
                        f.history.flushed_as_of(&f.history.snapshot(), durable);
                    }
                    _ => {
                        let durable = durable_to as usize / CELL;
                        f.history.flushed_as_of(&syncing.snapshot, durable);
                    }
                }
                return Ok(told);
            }
        };
        self.syncing = Some(syncing);
        outcome
    }

    /// Whether the sync has something to do that needs no answer.
    pub fn may_advance(&self) -> bool {
        let flushes = |w: &Waiting| matches!(w.purpose, Purpose::Flush(_));
        self.syncing.is_some() && !self.waiting.values().any(flushes)
    }

    /// The metadata server did it.
    pub fn told(&mut self, call: MetaCall) {
        let own = &mut self.files[call.file()].own;
        match call {
            MetaCall::Extend { cut, .. } => {
                own.growth_is_known();
                own.cut_is_told(cut);
            }
            MetaCall::Publish { told, .. } => own.published(&told, self.start),
        }
    }

    fn push(&mut self, file: usize, blocks: &[u64], how: Durability, now: u64) -> Option<MetaCall> {
        let f = &self.files[file];
        if blocks.iter().any(|block| f.own.grows(*block)) {
            return Some(MetaCall::Extend { file, cut: f.own.untold_cut() });
        }
        for block in blocks {
            let f = &mut self.files[file];
            let Some(push) = f.own.buffer.begin_push(*block) else { continue };
            let (object, layout, block) = (f.object, f.layout.clone(), *block);
            for (start, end) in push.ranges.iter().copied() {
                let range = (block * BLOCK + u64::from(start), u64::from(end - start));
                for Piece { key, offset, len, file_offset, group, .. } in
                    pieces(&layout, object, range.0, range.1)
                {
                    let from = (file_offset - block * BLOCK) as u32;
                    let range = (from, from + len);
                    let data = Arc::new(push.bytes(range).to_vec());
                    let ask = Ask::Write { key, offset, data, durability: how };
                    let pushed = Pushed { file, bytes: push.part(range) };
                    self.send(TargetId(group.0), ask, Purpose::Push(pushed, how), now);
                }
            }
        }
        None
    }

    fn flush(&mut self, file: usize, now: u64) -> Result<(), Wrong> {
        let targets = self.unsynced.targets_of(|pushed| pushed.file == file);
        if targets.is_empty() {
            return Err("a sync waits for a flush, and no target has anything".into());
        }
        for target in targets {
            let ticket = self.unsynced.begin_flush(target);
            self.send(target, Ask::Flush, Purpose::Flush(ticket), now);
        }
        Ok(())
    }

    fn send(&mut self, target: TargetId, ask: Ask, purpose: Purpose, now: u64) {
        self.next_request += 1;
        let waiting = Waiting { target, ask, purpose, attempt: 0, since: now };
        self.waiting.insert(self.next_request, waiting);
        self.outbox.push(self.next_request);
    }

    /// Whether the program's operation came to its end.
    pub fn settle(&mut self) -> bool {
        let is_read = |w: &Waiting| matches!(w.purpose, Purpose::Read(_));
        self.is_sync_awaited &= self.syncing.is_some();
        let is_reading = self.reading.is_some() && self.waiting.values().any(is_read);
        if !self.is_busy || is_reading || self.is_sync_awaited {
            return false;
        }
        self.done += 1;
        self.is_busy = false;
        true
    }

    /// No answer came: a new connection, and everything that waits there goes out again.
    pub fn reconnect(&mut self, target: TargetId) {
        *self.connection.entry(target).or_default() += 1;
        for (number, waiting) in &mut self.waiting {
            if waiting.target == target {
                waiting.attempt += 1;
                self.outbox.push(*number);
            }
        }
    }

    /// # Errors
    /// What the answer proves to be wrong.
    pub fn answered(&mut self, request: u64, answer: Answer) -> Result<(), Wrong> {
        let Some(waiting) = self.waiting.remove(&request) else { return Ok(()) };
        if let Answer::Written(boot) = answer {
            let lost = self.unsynced.restarted(waiting.target, boot);
            self.lost(lost);
        }
        match (waiting.purpose, answer) {
            (Purpose::Push(pushed, how), Answer::Written(boot)) => {
                let file = &mut self.files[pushed.file];
                file.own.pushed(pushed.bytes, 0);
                match how {
                    Durability::Stable => _ = file.own.buffer.durable(pushed.bytes),
                    Durability::Memory => self.unsynced.acknowledged(waiting.target, boot, pushed),
                }
            }
            (Purpose::Push(pushed, _), Answer::Refused(Status::NOSPC)) => {
                let file = &mut self.files[pushed.file];
                let was_moving = file.own.is_moving();
                if file.own.push_failed(pushed.bytes).is_some() {
                    let first = pushed.bytes.start() as usize / CELL;
                    let count = pushed.bytes.len() as usize / CELL;
                    file.history.refused(first..first + count);
                    let inline = if was_moving { MAX_INLINE as usize / CELL } else { 0 };
                    file.history.refused_to_move(first.min(inline)..(first + count).min(inline));
                }
            }
            (Purpose::Flush(ticket), Answer::Flushed(boot)) => {
                let settled = self.unsynced.end_flush(ticket, boot);
                for Pushed { file, bytes } in settled.durable {
                    self.files[file].own.buffer.durable(bytes);
                }
                self.lost(settled.lost);
            }
            (Purpose::Read(from), Answer::Bytes(found)) => return self.read_came(from, &found),
            (_, Answer::Refused(status)) => return Err(wrong!("refused: {status:?}")),
            _ => return Err("an answer of another kind".into()),
        }
        Ok(())
    }

    /// A restarted target lost these: they are pushed again.
    fn lost(&mut self, pushed: Vec<Pushed>) {
        for Pushed { file, bytes } in pushed {
            self.files[file].own.buffer.lost(bytes);
        }
    }

    fn read_came(&mut self, from: usize, found: &[u8]) -> Result<(), Wrong> {
        let Some(reading) = &mut self.reading else { return Ok(()) };
        reading.bytes[from..from + found.len()].copy_from_slice(found);
        let is_read = |w: &Waiting| matches!(w.purpose, Purpose::Read(_));
        if self.waiting.values().any(is_read) {
            return Ok(());
        }
        let Some(Reading { file, first, bytes }) = self.reading.take() else { return Ok(()) };
        self.files[file].history.check_stored(first, &bytes, NEWEST)
    }

    /// The pieces of a file up to its size, for the last check, or what lies inline.
    pub fn contents(&self, file: usize) -> Result<Vec<(Piece, Range<usize>)>, &[u8]> {
        let f = &self.files[file];
        if let Some(inline) = f.own.inline() {
            return Err(inline);
        }
        let with_cells = |piece: Piece| {
            let first = piece.file_offset as usize / CELL;
            let cells = first..first + piece.len as usize / CELL;
            (piece, cells)
        };
        Ok(pieces(&f.layout, f.object, 0, f.own.size()).map(with_cells).collect())
    }
}

/// Programs read what was written last, wherever it is.
const NEWEST: Latest = Latest::Required;

/// Where bytes lie in the blocks of a buffer: block, offset in it, and their range.
fn blocks(at: u64, len: usize) -> Vec<(u64, u32, Range<usize>)> {
    let (mut out, mut done) = (Vec::new(), 0);
    while done < len {
        let pos = at + done as u64;
        let part = ((BLOCK - pos % BLOCK) as usize).min(len - done);
        out.push((pos / BLOCK, (pos % BLOCK) as u32, done..done + part));
        done += part;
    }
    out
}
