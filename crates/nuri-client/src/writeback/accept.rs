//! Accepts a write. The write is charged for the space that it takes and buffered, or written
//! through where space is short.

use std::sync::Arc;
use std::time::Instant;

use nuri_proto::Status;
use nuri_rules::broken;

use super::Writeback;
use super::buffer::{BLOCK, Fill, WriteBuffer};
use crate::inode::{FileData, Inode};
use crate::reservation::charge::{CostEstimate, Place, is_current};
use crate::reservation::ledger::Short;
use crate::writeback::payload::{Position, WritePayload, WriteResult};

/// Whether a write may end without its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Somebody waits for it who can be told.
    Told,
    Impossible,
}

/// What became of a write.
pub(crate) enum WriteOutcome {
    Behind(Written),
    Through(WriteResult),
    /// To be tried again.
    Nowhere(RetryReason),
}

/// Why a write has to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryReason {
    /// Another one is written through, or data is just taken over.
    Busy,
    /// The file's data was not taken over for writing.
    Untaken,
    /// What room there is was promised to others, who may give it back.
    Kept,
    /// A target that must take it does not answer, and promised no room for it.
    Silent,
}

/// What a write made of the buffer.
pub(crate) struct Written {
    pub(crate) at: u64,
    /// Bytes charged, and blocks that are full.
    pub(crate) charged: u64,
    pub(crate) full: Vec<u64>,
}

impl Writeback {
    pub(crate) fn write_entered(
        &self,
        node: &Arc<Inode>,
        position: Position,
        data: &WritePayload<'_>,
        refusal: Refusal,
    ) -> Result<WriteOutcome, Status> {
        let (now, len) = (self.session.now(), data.len() as u64);
        let mut place = Place::Later;
        loop {
            let bill = self.reservations.bill(node, position, len, place)?;
            let charges = match self.reservations.charge(&bill, self) {
                _ if bill.is_anywhere && broken!("unplaced_has_room") => Vec::new(),
                Ok(charges) => charges,
                // Where it goes there may be more room than anywhere.
                Err(_) if bill.is_anywhere => {
                    place = Place::Now;
                    continue;
                }
                Err(_) if refusal == Refusal::Impossible => self.reservations.claim(&bill),
                Err(Short::Silent) => return Ok(WriteOutcome::Nowhere(RetryReason::Silent)),
                Err(Short::Unpromised(_)) => {
                    return self.write_short(node, position, data, &bill);
                }
            };
            let mut state = node.state.lock();
            let file = state.file.as_mut().ok_or(Status::IO)?;
            if file.is_written_through {
                return Ok(WriteOutcome::Nowhere(RetryReason::Busy));
            }
            let at = position.within(file.own.size());
            if !is_current(&bill, file, at, len) {
                continue;
            }
            let (charged, full) = buffer_write(file, at, data);
            charges.into_iter().for_each(|(block, charge)| file.own.buffer.charge(block, charge));
            data.note_reach(file.own.size(), at + len);
            file.own.reached(at + len);
            file.own.touch(now, Instant::now());
            return Ok(WriteOutcome::Behind(Written { at, charged, full }));
        }
    }

    /// A write for which the targets promise no room: what is left it may have by writing through.
    /// Parts of files that several mounts write are not written through: a recall must not wait for
    /// that.
    fn write_short(
        &self,
        node: &Arc<Inode>,
        position: Position,
        data: &WritePayload<'_>,
        bill: &CostEstimate,
    ) -> Result<WriteOutcome, Status> {
        let is_part =
            node.state.lock().file.as_ref().is_some_and(|file| file.own.is_written_beside());
        self.reservations.return_surplus(bill, self);
        let outcome = match is_part {
            true => Err(Status::NOSPC),
            false => self.write_through(node, position, data),
        };
        match outcome {
            Err(Status::NOSPC) if self.reservations.is_kept(bill) => {
                Ok(WriteOutcome::Nowhere(RetryReason::Kept))
            }
            outcome => outcome,
        }
    }

    /// Corrects a reservation once it is known how much a write really added.
    pub(crate) fn adjust(&self, reserved: u64, used: u64) {
        if used <= reserved {
            self.unreserve(reserved - used);
        } else {
            self.overdraw(used - reserved);
        }
    }
}

/// Buffers a write; returns bytes charged and blocks that are full.
fn buffer_write(file: &mut FileData, at: u64, data: &WritePayload<'_>) -> (u64, Vec<u64>) {
    let Err(used) = file.own.write_inline(at, data) else { return (0, Vec::new()) };
    let (charged, full) = buffer_pieces(&mut file.own.buffer, at, data);
    (used + charged, full)
}

/// As [`buffer_write`], of what does not lie with the inode.
pub(crate) fn buffer_pieces(
    buffer: &mut WriteBuffer,
    at: u64,
    data: &WritePayload<'_>,
) -> (u64, Vec<u64>) {
    let (mut used, mut full) = (0, Vec::new());
    let mut done = 0;
    while done < data.len() {
        let pos = at + done as u64;
        let within = pos % BLOCK;
        let len = ((BLOCK - within) as usize).min(data.len() - done);
        let (charged, fill) = match data.block() {
            Some(block) if len as u64 == BLOCK => buffer.put(pos / BLOCK, block),
            _ => buffer.write(pos / BLOCK, within as u32, &data[done..done + len]),
        };
        used += charged;
        if fill == Fill::Full {
            full.push(pos / BLOCK);
        }
        done += len;
    }
    (used, full)
}
