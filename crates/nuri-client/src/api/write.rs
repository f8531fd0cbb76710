//! The client's API: writes. A write goes into the buffer under a lease. Where space is short, the
//! write goes on to the targets before it returns.

use std::sync::Arc;
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_FILE;
use nuri_proto::op::meta::LeaseMode;
use nuri_proto::op::part::Ahead;
use nuri_proto::range_map::Span;
use nuri_rpc::Awake;
use nuri_rules::broken;

use crate::api::xattr::Privileges;
use crate::client::Client;
use crate::inode::Inode;
use crate::lease::acquire::Entered;
use crate::lease::invalidate::Awaiting;
use crate::lease::range::{Wanted, span_of};
use crate::writeback::accept::{Refusal, RetryReason, WriteOutcome};
use crate::writeback::payload::{Position, WritePayload, WriteResult};
use crate::writeback::push_row::Rows;

/// How long a write waits for space that was promised to others. That is somewhat longer than
/// others take to give back what they do not use.
pub(crate) const KEPT: Duration = Duration::from_secs(5);

/// What a write goes past that keeps others away from changes of the file's size.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Past {
    Nothing,
    Kernel,
}

impl Client {
    /// Writes all of `data`; the bytes are durable only after a sync. Privileges of the file that a
    /// write takes away are gone before.
    ///
    /// # Errors
    /// `FBIG`; `IO` where a lock taken through the open file was lost; `NOSPC` where the targets
    /// have no room, if they had little. Else `NOSPC` and `IO` appear at sync and close, where the
    /// bytes could not be kept.
    pub fn write<'a>(
        &self,
        (ino, fh): (Ino, u64),
        position: Position,
        data: impl Into<WritePayload<'a>>,
        taken: Privileges,
    ) -> Result<WriteResult, Status> {
        self.write_bytes((ino, fh), position, data.into(), (taken, Past::Nothing))
    }

    fn write_bytes(
        &self,
        (ino, fh): (Ino, u64),
        position: Position,
        data: WritePayload<'_>,
        (taken, past): (Privileges, Past),
    ) -> Result<WriteResult, Status> {
        let (in_pages, ahead) = match position {
            Position::At(offset) => (Some(offset), self.foresee(fh, offset, &data)),
            Position::EndInPages(offset) => (Some(offset), Ahead::default()),
            Position::End => (None, Ahead::default()),
        };
        // The kernel keeps a page of these locked.
        let in_pages = in_pages.map(|offset| span_of(offset, data.len()));
        let enter = || match (position, in_pages) {
            (Position::At(_), Some(span)) => self.leases.enter_write(ino, Wanted { span, ahead }),
            (_, Some(span)) => self.leases.enter_append(ino, span),
            (_, None) => self.leases.enter(ino, LeaseMode::Write),
        };
        let goes_past = past == Past::Kernel && !broken!("past_truncate");
        self.write_under(position, &data, Refusal::Told, || {
            let mut kept = None;
            loop {
                let mut entered = enter()?;
                if !self.has_no_privileges(ino, taken) {
                    let node = entered.0.clone();
                    drop(entered);
                    let _awaiting = in_pages.map(|span| Awaiting::write(node, span));
                    self.drop_privileges(ino, taken)?;
                    entered = enter()?;
                }
                if goes_past && !entered.goes_past_the_kernel(kept.as_ref()) {
                    let node = entered.0.clone();
                    drop(entered);
                    kept = Some(node.wait_for_size_change(kept));
                    continue;
                }
                // After what was waited for: a lock lost meanwhile must not be written under.
                self.locks.check_locks(fh)?;
                return Ok(entered);
            }
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

    /// Accepts pages that a program changed through a mapping, from the kernel's cache. While the
    /// lease is recalled, this is part of the recall, whatever mode the lease had.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_mapped(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<WriteResult, Status> {
        self.write_under(Position::At(offset), &data.into(), Refusal::Impossible, || {
            let span = span_of(offset, data.len());
            let recalled = self.leases.enter_recalled(ino, span);
            let wanted = Wanted { span, ahead: Ahead::default() };
            recalled.map_or_else(|| self.leases.enter_write(ino, wanted), Ok)
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
        self.writeback.reserve(len);
        match self.write_in_turn(position, data, refusal, enter) {
            Ok((entered, WriteOutcome::Behind(written))) => {
                self.writeback.adjust(len, written.charged);
                self.writeback.mark_dirty(&entered.0);
                let push = |block: &u64| self.writeback.queue_push(&entered.0, *block, Rows::Full);
                written.full.iter().for_each(push);
                Ok(WriteResult { at: written.at, len })
            }
            outcome => {
                self.writeback.unreserve(len);
                match outcome?.1 {
                    WriteOutcome::Through(wrote) => Ok(wrote),
                    _ => Err(Status::IO),
                }
            }
        }
    }

    /// Waits until a write may be tried again.
    pub(crate) fn wait_for_turn(&self, node: &Arc<Inode>, why: RetryReason) -> Result<(), Status> {
        match why {
            RetryReason::Busy => {
                node.changed.wait_for(&mut node.state.lock(), Duration::from_millis(10));
                Ok(())
            }
            RetryReason::Untaken => self.leases.acquire(node.ino, LeaseMode::Write),
            RetryReason::Kept => {
                // Perhaps for what is buffered here.
                let _ = self.writeback.settle_part(node, Span::ALL);
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

    /// Tries until it is the write's turn, or a request's time is over.
    fn write_in_turn(
        &self,
        position: Position,
        data: &WritePayload<'_>,
        refusal: Refusal,
        enter: impl Fn() -> Result<Entered, Status>,
    ) -> Result<(Entered, WriteOutcome), Status> {
        let start = Awake::now();
        loop {
            let entered = enter()?;
            match self.writeback.write_entered(&entered.0, position, data, refusal)? {
                WriteOutcome::Nowhere(RetryReason::Kept) if start.elapsed() >= KEPT => {
                    return Err(Status::NOSPC);
                }
                WriteOutcome::Nowhere(why) if start.elapsed() < REQUEST => {
                    let node = entered.0.clone();
                    // A recall waits for who has entered.
                    drop(entered);
                    self.wait_for_turn(&node, why)?;
                }
                went => return Ok((entered, went)),
            }
        }
    }
}

impl Client {
    /// As [`Client::write`] at an offset, for a caller that bypasses the kernel. No lock of the
    /// kernel keeps such a write apart from a truncation, a growth or a sync. A block that begins
    /// at a multiple of [`OwnBlock::LEN`] is buffered as it is.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_past<'a>(
        &self,
        (ino, fh): (Ino, u64),
        offset: u64,
        data: impl Into<WritePayload<'a>>,
        taken: Privileges,
    ) -> Result<WriteResult, Status> {
        // What was closed meanwhile is not written.
        self.handle(fh)?;
        let position = Position::At(offset);
        self.write_bytes((ino, fh), position, data.into(), (taken, Past::Kernel))
    }
}
