//! A simulated client: cuts writes into pieces, keeps what is not synced (rule DATA-8), sends
//! again.
//!
//! One operation at a time. Its requests go out together and come back in any order; a request
//! without an answer breaks the connection to that target, and everything that waits there is sent
//! again over a new one. What was sent over a broken connection does not arrive any more.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use nuri_io::rng::Rng;
use nuri_proto::Status;
use nuri_proto::id::{ObjectId, TargetId};
use nuri_proto::layout::Layout;
use nuri_proto::op::data::Durability;
use nuri_stripe::locate::{Piece, pieces};
use nuri_stripe::unsynced::{FlushTicket, Unsynced};

use crate::check::{CELL, History, Latest, Wrong};
use crate::target::{Answer, Ask};

/// Cells of a file: a few chunks.
pub const CELLS: usize = 768;

/// An open file of the client.
pub struct File {
    pub name: String,
    pub layout: Layout,
    pub history: History,
    /// Cells whose bytes a target holds in memory only, with how many acknowledgements.
    dirty: HashMap<usize, u32>,
}

/// Bytes kept until they are durable.
#[derive(Clone)]
struct Kept {
    file: usize,
    object: u64,
    cells: Range<usize>,
}

enum Purpose {
    Write(Kept, Durability),
    Flush(FlushTicket),
    Read { file: usize, first: usize },
}

/// A request that waits for its answer.
pub struct Waiting {
    pub target: TargetId,
    pub ask: Ask,
    purpose: Purpose,
    pub attempt: u32,
    pub since: u64,
}

#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub enum Doing {
    Nothing,
    Writing,
    Syncing,
    Reading,
}

pub struct Client {
    pub files: Vec<File>,
    unsynced: Unsynced<Kept>,
    pub waiting: BTreeMap<u64, Waiting>,
    /// Requests to be sent, by number.
    pub outbox: Vec<u64>,
    pub connection: HashMap<TargetId, u32>,
    pub doing: Doing,
    next_request: u64,
    next_write: u64,
    pub done: u64,
}

impl Client {
    pub fn new(number: u64) -> Client {
        Client {
            files: Vec::new(),
            unsynced: Unsynced::default(),
            waiting: BTreeMap::new(),
            outbox: Vec::new(),
            connection: HashMap::new(),
            doing: Doing::Nothing,
            next_request: 0,
            next_write: number << 40,
            done: 0,
        }
    }

    pub fn add_file(&mut self, name: String, object: ObjectId, layout: Layout) {
        let history = History::new(object.0, CELLS);
        self.files.push(File { name, layout, history, dirty: HashMap::new() });
    }

    /// The file was cut to nothing: it goes on with another object.
    pub fn emptied(&mut self, file: usize, object: ObjectId) {
        self.files[file].history = History::new(object.0, CELLS);
        self.files[file].dirty.clear();
    }

    /// Begins a random operation.
    pub fn begin(&mut self, rng: &mut Rng, now: u64) {
        let file = rng.below(self.files.len() as u64) as usize;
        let first = rng.below(CELLS as u64) as usize;
        let most = if rng.one_in(3) { 400 } else { 12 };
        let cells = first..(first + 1 + rng.below(most) as usize).min(CELLS);
        match rng.below(10) {
            0..5 => {
                let stable = rng.one_in(4);
                let how = if stable { Durability::Stable } else { Durability::Memory };
                self.next_write += 1;
                self.files[file].history.written(cells.clone(), self.next_write);
                self.send_write(file, cells, how, now);
                self.doing = Doing::Writing;
            }
            5..7 => self.begin_sync(now),
            _ => {
                self.doing = Doing::Reading;
                for (piece, cells) in self.pieces(file, &cells) {
                    let ask = Ask::Read { key: piece.key, offset: piece.offset, len: piece.len };
                    let purpose = Purpose::Read { file, first: cells.start };
                    self.send(TargetId(piece.group.0), ask, purpose, now);
                }
            }
        }
    }

    pub fn begin_sync(&mut self, now: u64) {
        self.doing = Doing::Syncing;
        for target in self.unsynced.targets() {
            let ticket = self.unsynced.begin_flush(target);
            self.send(target, Ask::Flush, Purpose::Flush(ticket), now);
        }
    }

    /// Whether the operation came to its end; a sync goes on while anything is unsynced.
    pub fn settle(&mut self, now: u64) -> bool {
        if !self.waiting.is_empty() {
            return false;
        }
        if self.doing == Doing::Syncing {
            if !self.unsynced.targets().is_empty() {
                self.begin_sync(now);
                return false;
            }
            self.files.iter_mut().for_each(|f| f.history.flushed(0..CELLS));
        }
        self.done += 1;
        self.doing = Doing::Nothing;
        true
    }

    /// The pieces of a range of cells, each with the cells that it holds.
    fn pieces(&self, file: usize, cells: &Range<usize>) -> Vec<(Piece, Range<usize>)> {
        let f = &self.files[file];
        let (at, len) = ((cells.start * CELL) as u64, (cells.len() * CELL) as u64);
        let object = ObjectId(f.history.object());
        let range = |p: &Piece| {
            let first = p.file_offset as usize / CELL;
            first..first + p.len as usize / CELL
        };
        pieces(&f.layout, object, at, len).map(|p| (p, range(&p))).collect()
    }

    /// Sends the cells as they are now.
    fn send_write(&mut self, file: usize, cells: Range<usize>, how: Durability, now: u64) {
        let object = self.files[file].history.object();
        for (piece, cells) in self.pieces(file, &cells) {
            let data = Arc::new(self.files[file].history.bytes(cells.clone()));
            let (key, offset) = (piece.key, piece.offset);
            let ask = Ask::Write { key, offset, data, durability: how };
            let purpose = Purpose::Write(Kept { file, object, cells }, how);
            self.send(TargetId(piece.group.0), ask, purpose, now);
        }
    }

    fn send(&mut self, target: TargetId, ask: Ask, purpose: Purpose, now: u64) {
        self.next_request += 1;
        let waiting = Waiting { target, ask, purpose, attempt: 0, since: now };
        self.waiting.insert(self.next_request, waiting);
        self.outbox.push(self.next_request);
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
    pub fn answered(&mut self, request: u64, answer: Answer, now: u64) -> Result<(), Wrong> {
        let Some(waiting) = self.waiting.remove(&request) else { return Ok(()) };
        match (waiting.purpose, answer) {
            (Purpose::Write(kept, Durability::Memory), Answer::Written(boot)) => {
                let dirty = &mut self.files[kept.file].dirty;
                kept.cells.clone().for_each(|cell| *dirty.entry(cell).or_default() += 1);
                self.unsynced.acknowledged(waiting.target, boot, kept);
            }
            (Purpose::Write(kept, Durability::Stable), Answer::Written(_)) => {
                self.files[kept.file].history.flushed(kept.cells);
            }
            (Purpose::Write(kept, _), Answer::Refused(Status::NOSPC)) => {
                self.files[kept.file].history.refused(kept.cells);
            }
            (Purpose::Flush(ticket), Answer::Flushed(boot)) => {
                let settled = self.unsynced.end_flush(ticket, boot);
                for kept in settled.durable.iter().chain(&settled.lost) {
                    self.forget(kept);
                }
                for kept in settled.lost {
                    // Cut to nothing meanwhile: nobody wants it any more.
                    if self.files[kept.file].history.object() == kept.object {
                        self.send_write(kept.file, kept.cells, Durability::Memory, now);
                    }
                }
            }
            (Purpose::Read { file, first }, Answer::Bytes(bytes)) => {
                return self.check_read(file, first, &bytes);
            }
            (_, Answer::Refused(status)) => return Err(format!("refused: {status:?}")),
            _ => return Err("an answer of another kind".into()),
        }
        Ok(())
    }

    fn forget(&mut self, kept: &Kept) {
        let file = &mut self.files[kept.file];
        if file.history.object() != kept.object {
            return;
        }
        for cell in kept.cells.clone() {
            if let Some(count) = file.dirty.get_mut(&cell) {
                *count -= 1;
                if *count == 0 {
                    file.dirty.remove(&cell);
                }
            }
        }
    }

    /// What is kept here covers what the target may have lost; all else must be the latest.
    fn check_read(&self, file: usize, first: usize, bytes: &[u8]) -> Result<(), Wrong> {
        let f = &self.files[file];
        for (i, cell) in bytes.chunks(CELL).enumerate() {
            let dirty = f.dirty.contains_key(&(first + i));
            let latest = if dirty { Latest::NotRequired } else { Latest::Required };
            f.history.check_stored(first + i, cell, latest)?;
        }
        Ok(())
    }

    /// Every piece of every file, for the last check.
    pub fn all_pieces(&self) -> Vec<(usize, Piece, Range<usize>)> {
        let one = |file| {
            let pieces = self.pieces(file, &(0..CELLS));
            pieces.into_iter().map(move |(piece, cells)| (file, piece, cells))
        };
        (0..self.files.len()).flat_map(one).collect()
    }
}
