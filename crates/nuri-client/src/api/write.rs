//! Writes: under a lease into the buffer, and further where room is short.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::Ino;
use nuri_proto::limit::{MAX_FILE, MAX_INLINE};
use nuri_proto::op::meta::LeaseMode;
use nuri_proto::op::part::Ahead;
use nuri_proto::range_map::Span;

use crate::api::file::Position;
use crate::api::write_payload::WritePayload;
use crate::api::xattr::Privileges;
use crate::client::{Client, Entered, Shared};
use crate::inode::{FileData, Inode};
use crate::lease::invalidate::Awaiting;
use crate::lease::range::{Wanted, span_of};
use crate::reservation::charge::{CostEstimate, is_current};
use crate::reservation::ledger::Short;
use crate::writeback::buffer::{BLOCK, Fill, WriteBuffer};
use crate::writeback::push_row::Rows;

/// How long a write waits for room that was promised to others: somewhat longer than it takes them
/// to give back what they do not use.
pub(crate) const KEPT: Duration = Duration::from_secs(2);

/// Where the bytes of a write went, and how many there were room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteResult {
    pub at: u64,
    pub len: u64,
}

/// Whether a write may end without its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// Somebody waits for it who can be told.
    Told,
    Impossible,
}

impl Client {
    /// Writes all of `data`; durable only after a sync. What of the file's privileges a write takes
    /// away is gone before.
    ///
    /// # Errors
    /// `FBIG`; `IO` where a lock taken through the open file was lost; `NOSPC` where the targets
    /// have no room, if they had little. Else `NOSPC` and `IO` appear at sync and close, where the
    /// bytes could not be kept.
    pub fn write(
        &self,
        (ino, fh): (Ino, u64),
        position: Position,
        data: &[u8],
        taken: Privileges,
    ) -> Result<WriteResult, Status> {
        self.write_bytes((ino, fh), position, data.into(), taken)
    }

    pub(crate) fn write_bytes(
        &self,
        (ino, fh): (Ino, u64),
        position: Position,
        data: WritePayload<'_>,
        taken: Privileges,
    ) -> Result<WriteResult, Status> {
        let wanted = match position {
            Position::At(offset) => {
                let ahead = self.foresee(fh, offset, &data);
                Some(Wanted { span: span_of(offset, data.len()), ahead })
            }
            // Those are not buffered by the kernel.
            Position::End => None,
        };
        let enter = || match wanted {
            Some(wanted) => self.shared.enter_write(ino, wanted),
            None => self.shared.enter(ino, LeaseMode::Write),
        };
        self.write_under(position, &data, Refusal::Told, || {
            let mut entered = enter()?;
            if !self.shared.has_no_privileges(ino, taken) {
                let node = entered.0.clone();
                drop(entered);
                let _awaiting = wanted.map(|wanted| Awaiting::write(node, wanted.span));
                self.drop_privileges(ino, taken)?;
                entered = enter()?;
            }
            // After what was waited for: a lock lost meanwhile must not be written under.
            self.shared.locks.check_locks(fh)?;
            Ok(entered)
        })
    }

    /// What a program that writes so through the open file will write next.
    fn foresee(&self, fh: u64, offset: u64, data: &[u8]) -> Ahead {
        let handle = self.handle(fh);
        handle.map_or_else(
            |_| Ahead::default(),
            |handle| handle.pattern.lock().write(offset, data.len() as u64),
        )
    }

    /// Takes pages that a program changed through a mapping, from the kernel's cache. While the
    /// lease is recalled that is part of the recall, whatever the lease was.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_mapped(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<WriteResult, Status> {
        self.write_under(Position::At(offset), &data.into(), Refusal::Impossible, || {
            let span = span_of(offset, data.len());
            let recalled = self.shared.enter_recalled(ino, span);
            let wanted = Wanted { span, ahead: Ahead::default() };
            recalled.map_or_else(|| self.shared.enter_write(ino, wanted), Ok)
        })
    }

    /// Buffers a write under the lease that `enter` gets. Where room is short and it may be
    /// refused it is written through.
    fn write_under(
        &self,
        position: Position,
        data: &WritePayload<'_>,
        refusal: Refusal,
        enter: impl Fn() -> Result<Entered, Status>,
    ) -> Result<WriteResult, Status> {
        let len = data.len() as u64;
        if let Position::At(offset) = position
            && offset.saturating_add(len) > MAX_FILE
        {
            return Err(Status::FBIG);
        }
        self.shared.reserve(len);
        match self.write_in_turn(position, data, refusal, enter) {
            Ok((entered, WriteOutcome::Behind(written))) => {
                self.shared.adjust(len, written.charged);
                self.shared.mark_dirty(&entered.0);
                let push = |block: &u64| self.shared.queue_push(&entered.0, *block, Rows::Full);
                written.full.iter().for_each(push);
                Ok(WriteResult { at: written.at, len })
            }
            outcome => {
                self.shared.unreserve(len);
                match outcome?.1 {
                    WriteOutcome::Through(wrote) => Ok(wrote),
                    _ => Err(Status::IO),
                }
            }
        }
    }

    /// Tries until it is the write's turn, or a request's time is over.
    fn write_in_turn(
        &self,
        position: Position,
        data: &WritePayload<'_>,
        refusal: Refusal,
        enter: impl Fn() -> Result<Entered, Status>,
    ) -> Result<(Entered, WriteOutcome), Status> {
        let start = Instant::now();
        loop {
            let entered = enter()?;
            match self.shared.write_entered(&entered.0, position, data, refusal)? {
                WriteOutcome::Nowhere(RetryReason::Kept) if start.elapsed() >= KEPT => {
                    return Err(Status::NOSPC);
                }
                WriteOutcome::Nowhere(why) if start.elapsed() < REQUEST => {
                    let node = entered.0.clone();
                    // A recall waits for who has entered.
                    drop(entered);
                    self.shared.wait_for_turn(&node, why)?;
                }
                went => return Ok((entered, went)),
            }
        }
    }
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
    at: u64,
    /// Bytes charged, and blocks that are full.
    charged: u64,
    full: Vec<u64>,
}

impl Shared {
    fn write_entered(
        &self,
        node: &Arc<Inode>,
        position: Position,
        data: &WritePayload<'_>,
        refusal: Refusal,
    ) -> Result<WriteOutcome, Status> {
        let (now, len) = (self.session.now(), data.len() as u64);
        loop {
            let bill = self.bill(node, position, len)?;
            let charges = match self.charge(&bill) {
                Ok(charges) => charges,
                Err(_) if refusal == Refusal::Impossible => self.claim(&bill),
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
            let at = position.within(file.size);
            if !is_current(&bill, file, at, len) {
                continue;
            }
            let (charged, full) = buffer_write(file, at, data);
            charges.into_iter().for_each(|(block, charge)| file.buffer.charge(block, charge));
            file.size = file.size.max(at + len);
            file.touch(now);
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
        let is_part = node.state.lock().file.as_ref().is_some_and(|file| file.beside.is_some());
        self.return_surplus(bill);
        let outcome = match is_part {
            true => Err(Status::NOSPC),
            false => self.write_through(node, position, data),
        };
        match outcome {
            Err(Status::NOSPC) if self.reservations.is_kept(&bill.costs()) => {
                Ok(WriteOutcome::Nowhere(RetryReason::Kept))
            }
            outcome => outcome,
        }
    }

    pub(crate) fn wait_for_turn(&self, node: &Arc<Inode>, why: RetryReason) -> Result<(), Status> {
        match why {
            RetryReason::Busy => {
                node.changed.wait_for(&mut node.state.lock(), Duration::from_millis(10));
                Ok(())
            }
            RetryReason::Untaken => self.acquire(node.ino, LeaseMode::Write),
            RetryReason::Kept => {
                // Perhaps for what is buffered here.
                let _ = self.settle_part(node, Span::ALL);
                std::thread::sleep(Duration::from_millis(100));
                Ok(())
            }
            RetryReason::Silent => {
                std::thread::sleep(Duration::from_millis(100));
                // Its group may go on without it. Without an authority the old map is the best.
                let _ = self.cluster.refresh();
                Ok(())
            }
        }
    }

    /// Corrects a reservation once it is known how much a write really added.
    fn adjust(&self, reserved: u64, used: u64) {
        if used <= reserved {
            self.unreserve(reserved - used);
        } else {
            self.overdraw(used - reserved);
        }
    }
}

/// Buffers a write; returns bytes charged and blocks that are full.
fn buffer_write(file: &mut FileData, at: u64, data: &WritePayload<'_>) -> (u64, Vec<u64>) {
    let mut used = 0;
    if let Some(inline) = &mut file.inline {
        let end = at as usize + data.len();
        if end as u64 <= MAX_INLINE {
            inline.resize(inline.len().max(end), 0);
            inline[at as usize..end].copy_from_slice(data);
            return (0, Vec::new());
        }
        let moved = std::mem::take(inline);
        file.inline = None;
        if !moved.is_empty() {
            used += file.buffer.write(0, 0, &moved).0;
        }
    }
    let (charged, full) = buffer_pieces(&mut file.buffer, at, data);
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
