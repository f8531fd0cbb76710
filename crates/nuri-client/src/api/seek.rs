//! The client's API: finds data and holes in a file (`lseek`).

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::LeaseMode;
use nuri_stripe::locate::pieces;

use crate::client::Client;

/// What `lseek` looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    Data,
    Hole,
}

impl Client {
    /// Finds the next data or hole at or after `offset`.
    ///
    /// # Errors
    /// `NXIO` beyond the end, or where no data follows.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Status> {
        let entered = self.leases.enter(ino, LeaseMode::Read)?;
        self.writeback.push_all(&entered.0);
        drop(entered);
        self.seek_on_targets(ino, offset, what)
    }

    /// As [`Client::seek`], over what the targets have: bytes that are only buffered may look like
    /// a hole.
    ///
    /// # Errors
    /// As [`Client::seek`].
    pub fn seek_on_targets(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Status> {
        let entered = self.leases.enter(ino, LeaseMode::Read)?;
        let (size, object, layout) = {
            let state = entered.0.state.lock();
            let file = state.file.as_ref().ok_or(Status::IO)?;
            if offset >= file.own.size() {
                return Err(Status::NXIO);
            }
            if file.own.inline().is_some() {
                return Ok(if what == Seek::Data { offset } else { file.own.size() });
            }
            if !file.is_placed() {
                // No target has anything of it.
                let has_data = !file.own.buffer.is_empty();
                return match (what, has_data) {
                    (Seek::Data, true) | (Seek::Hole, false) => Ok(offset),
                    (Seek::Hole, true) => Ok(file.own.size()),
                    (Seek::Data, false) => Err(Status::NXIO),
                };
            }
            (file.own.size(), file.object, file.layout.clone())
        };
        let mut at = offset;
        while at < size {
            let Some(piece) = pieces(&layout, object, at, size - at).next() else {
                break;
            };
            let chunk = layout.components[0].chunk_size.bytes();
            let base = piece.file_offset - u64::from(piece.offset);
            let found = self.data.extents(&piece)?;
            if let Some(hit) = seek_in(&found, at - base, chunk, what) {
                let hit = base + hit;
                return if hit < size { Ok(hit) } else { end_of_seek(size, what) };
            }
            at = base + chunk;
        }
        end_of_seek(size, what)
    }
}

fn end_of_seek(size: u64, what: Seek) -> Result<u64, Status> {
    if what == Seek::Hole { Ok(size) } else { Err(Status::NXIO) }
}

/// First offset from `at` on, within a chunk, that is data (or not).
fn seek_in(extents: &[(u32, u32)], at: u64, chunk: u64, what: Seek) -> Option<u64> {
    let mut at = at;
    for &(start, len) in extents {
        let (start, end) = (u64::from(start), u64::from(start) + u64::from(len));
        if end <= at {
            continue;
        }
        match what {
            Seek::Data => return Some(at.max(start)),
            Seek::Hole if at < start => return Some(at),
            Seek::Hole => at = end,
        }
    }
    (what == Seek::Hole && at < chunk).then_some(at)
}
