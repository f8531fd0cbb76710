//! What a file may hold: every value written to each cell, and which of these values must not be
//! lost.
//!
//! A cell is 512 bytes of one write. Its bytes name that write, the file and the place. So the
//! checker sees bytes that lie at the wrong place, or that mix two writes.

use std::fmt;

use nuri_proto::Status;
use nuri_proto::checksum::mix;

/// Bytes of a cell: what a disk writes whole or not at all.
pub const CELL: usize = 512;

/// What was written to one cell, oldest first. The first value is "never written".
#[derive(Clone)]
struct Cell {
    ids: Vec<u64>,
    /// Values before this one must not come back: it was flushed.
    floor: usize,
    /// Writes up to this one may have failed: they may be there or not.
    unsure: Option<usize>,
}

impl Default for Cell {
    fn default() -> Cell {
        Cell { ids: vec![0], floor: 0, unsure: None }
    }
}

impl Cell {
    fn doubt(&mut self) {
        self.unsure = Some(self.ids.len() - 1);
    }

    fn is_sure(&self, write: usize) -> bool {
        self.unsure.is_none_or(|unsure| write > unsure)
    }
}

/// The history of one object's cells.
pub struct History {
    object: u64,
    cells: Vec<Cell>,
}

/// What a run found that must not be: a cell that holds something else, a rule that was broken, or
/// a part of the simulated world that failed. It says so in words, for the one who plays the seed
/// again.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong(String);

/// A [`Wrong`] in words, which are those of `format!`.
macro_rules! wrong {
    ($($words:tt)*) => {
        $crate::check::Wrong::from(format!($($words)*))
    };
}
pub(crate) use wrong;

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Wrong {
    fn from(words: String) -> Wrong {
        Wrong(words)
    }
}

impl From<&str> for Wrong {
    fn from(words: &str) -> Wrong {
        Wrong(words.to_owned())
    }
}

impl From<Status> for Wrong {
    fn from(status: Status) -> Wrong {
        Wrong(status.to_string())
    }
}

impl History {
    pub fn new(object: u64, cells: usize) -> History {
        History { object, cells: vec![Cell::default(); cells] }
    }

    pub fn len(&self) -> usize {
        self.cells.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    pub fn object(&self) -> u64 {
        self.object
    }

    /// A write of these cells is about to be sent.
    pub fn written(&mut self, cells: std::ops::Range<usize>, id: u64) {
        for cell in &mut self.cells[cells] {
            cell.ids.push(id);
        }
    }

    /// The write was refused: old or new, cell by cell.
    pub fn refused(&mut self, cells: std::ops::Range<usize>) {
        self.cells[cells].iter_mut().for_each(Cell::doubt);
    }

    /// Bytes on their way from the inode to the targets were refused: the targets have none of
    /// them. A mount reserves room for these bytes first.
    pub fn refused_to_move(&mut self, cells: std::ops::Range<usize>) {
        self.cells[cells].iter_mut().for_each(|cell| cell.floor = 0);
    }

    /// How often each cell was written so far.
    pub fn snapshot(&self) -> Vec<usize> {
        self.cells.iter().map(|cell| cell.ids.len() - 1).collect()
    }

    /// What was written before the snapshot was taken is said to be durable, of so many cells.
    pub fn flushed_as_of(&mut self, snapshot: &[usize], count: usize) {
        let cells = self.cells.iter_mut().zip(snapshot).take(count);
        for (cell, written) in cells.filter(|(cell, written)| cell.is_sure(**written)) {
            cell.floor = cell.floor.max(*written);
        }
    }

    /// The writer died: what it had not synced may be there or not.
    pub fn died(&mut self) {
        self.cells.iter_mut().for_each(Cell::doubt);
    }

    /// The file has so many cells, says the server after its writer died: there is nothing beyond.
    ///
    /// # Errors
    /// Names a cell that was said to be durable.
    pub fn sized(&mut self, count: usize) -> Result<(), Wrong> {
        let object = self.object;
        for (index, cell) in self.cells.iter_mut().enumerate().skip(count) {
            if cell.floor > 0 {
                return Err(wrong!("object {object} ends at cell {count}, {index} was synced"));
            }
            *cell = Cell::default();
        }
        Ok(())
    }

    /// The bytes that the cells hold now, as their writer sees them.
    pub fn bytes(&self, cells: std::ops::Range<usize>) -> Vec<u8> {
        let mut out = Vec::with_capacity(cells.len() * CELL);
        for cell in cells {
            let id = self.cells[cell].ids.last().copied().unwrap_or(0);
            out.extend_from_slice(&pattern(self.object, cell, id));
        }
        out
    }

    /// Checks what a reader without a cache was given.
    ///
    /// # Errors
    /// Names the cell.
    pub fn check_stored(&self, first: usize, bytes: &[u8], latest: Latest) -> Result<(), Wrong> {
        for (i, found) in bytes.chunks(CELL).enumerate() {
            let index = first + i;
            let cell = &self.cells[index];
            let id = u64::from_le_bytes(found[..8].try_into().unwrap_or_default());
            let at = || format!("object {} cell {index}", self.object);
            if found != pattern(self.object, index, id) {
                return Err(wrong!("{} holds bytes that no write put there", at()));
            }
            let newest = cell.ids.len() - 1;
            let oldest = match latest {
                Latest::Required if cell.is_sure(newest) => newest,
                _ => cell.floor,
            };
            if !cell.ids[oldest..].contains(&id) {
                return Err(wrong!(
                    "{} holds write {id:#x}, which is older than write {:#x} or was never made \
                     ({:x?} from {})",
                    at(),
                    cell.ids[oldest],
                    cell.ids,
                    cell.floor
                ));
            }
        }
        Ok(())
    }
}

/// How new a value must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Latest {
    /// The last write: nothing of it can have been lost.
    Required,
    /// Any since the last flush.
    NotRequired,
}

fn pattern(object: u64, cell: usize, id: u64) -> [u8; CELL] {
    let mut out = [0; CELL];
    if id == 0 {
        return out;
    }
    for (i, word) in out.chunks_mut(8).enumerate() {
        let value = if i == 0 { id } else { mix(&[object, cell as u64, id, i as u64]) };
        word.copy_from_slice(&value.to_le_bytes());
    }
    out
}
