//! What a file may hold: every value written to each cell, and which of them must not be lost.
//!
//! A cell is 512 bytes of one write. Its bytes name that write, the file and the place, so that
//! bytes that lie at the wrong place or are of two writes are known as such.

use nuri_proto::checksum::mix;

/// Bytes of a cell: what a disk writes whole or not at all.
pub const CELL: usize = 512;

/// What was written to one cell, oldest first. The first value is "never written".
#[derive(Clone)]
struct Cell {
    ids: Vec<u64>,
    /// Values before this one must not come back: it was flushed.
    floor: usize,
    /// The last write failed: it may be there or not.
    unsure: bool,
}

/// The history of one object's cells.
pub struct History {
    object: u64,
    cells: Vec<Cell>,
}

/// A cell holds something that it must not hold.
pub type Wrong = String;

impl History {
    pub fn new(object: u64, cells: usize) -> History {
        let cell = Cell { ids: vec![0], floor: 0, unsure: false };
        History { object, cells: vec![cell; cells] }
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
            cell.unsure = false;
        }
    }

    /// The write was refused: old or new, cell by cell.
    pub fn refused(&mut self, cells: std::ops::Range<usize>) {
        self.cells[cells].iter_mut().for_each(|cell| cell.unsure = true);
    }

    /// Everything written so far was said to be durable.
    pub fn flushed(&mut self, cells: std::ops::Range<usize>) {
        for cell in self.cells[cells].iter_mut().filter(|cell| !cell.unsure) {
            cell.floor = cell.ids.len() - 1;
        }
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
                return Err(format!("{} holds bytes that no write put there", at()));
            }
            let oldest = match latest {
                Latest::Required if !cell.unsure => cell.ids.len() - 1,
                _ => cell.floor,
            };
            if !cell.ids[oldest..].contains(&id) {
                return Err(format!(
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
