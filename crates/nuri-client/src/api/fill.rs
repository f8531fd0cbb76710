//! Allocates space for a range of a file before its bytes are written (`fallocate`).
//!
//! Where a chunk has a hole in the range, the client writes zeros. The zeros are written through
//! and durable. They take only space that is promised to nobody, and are refused where there is
//! none. From then on the blocks exist, and a write over existing blocks never lacks space
//! (RESERVE-4, `nuri-target/src/store/credits.rs`). Where space runs out in the middle of the
//! range, the client gives back the part that it allocated. The file is then as it was before.
//!
//! A range is allocated in steps. Between two steps the lease may go to other clients, so each step
//! looks for holes anew.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::{GroupId, Ino, ObjectId};
use nuri_proto::layout::Layout;
use nuri_proto::limit::MAX_INLINE;
use nuri_proto::map::Map;
use nuri_proto::op::meta::LeaseMode;
use nuri_rpc::Awake;
use nuri_stripe::locate::pieces;

use crate::api::write::KEPT;
use crate::client::Client;
use crate::inode::Inode;
use crate::lease::range::span_of;
use crate::reservation::charge::{CostEstimate, Place};
use crate::writeback::accept::RetryReason;
use crate::writeback::buffer::{BLOCK, PAGE, WriteBuffer};
use crate::writeback::machine::SyncScope;
use crate::writeback::payload::Position;
use crate::writeback::write_through::{Progress, begin, row_of};

/// Bytes between two looks at who else wants the file.
const STEP: u64 = 8 * BLOCK;

/// Zeros for one block of a buffer.
static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];

/// What became of a step.
enum Step {
    Done,
    Wait(RetryReason),
}

impl Client {
    /// Makes sure that the range has space.
    ///
    /// # Errors
    /// `NOSPC`, and nothing was kept; the servers'.
    pub(crate) fn have_room(&self, ino: Ino, at: u64, end: u64) -> Result<(), Status> {
        let (mut given, mut from) = (Vec::new(), at / PAGE * PAGE);
        let mut since = Awake::now();
        while from < end {
            let to = ((from / STEP + 1) * STEP).min(end.next_multiple_of(PAGE));
            match self.room_for_step(ino, from..to, end, &mut given) {
                Ok(Step::Done) => (from, since) = (to, Awake::now()),
                Ok(Step::Wait(RetryReason::Kept)) if since.elapsed() >= KEPT => {
                    return self.take_back(ino, &given, Status::NOSPC);
                }
                Ok(Step::Wait(why)) if since.elapsed() < REQUEST => {
                    let node = self.inodes.with(ino, |node, _| node.clone());
                    self.wait_for_turn(&node, why)?;
                }
                Ok(Step::Wait(_)) => return self.take_back(ino, &given, Status::IO),
                Err(status) => return self.take_back(ino, &given, status),
            }
        }
        Ok(())
    }

    fn room_for_step(
        &self,
        ino: Ino,
        bytes: Range<u64>,
        end: u64,
        given: &mut Vec<Range<u64>>,
    ) -> Result<Step, Status> {
        let entered = self.leases.enter(ino, LeaseMode::Write)?;
        let node = &entered.0;
        let len = bytes.end - bytes.start;
        let is_inline = |node: &Inode| {
            let state = node.state.lock();
            state.file.as_ref().is_some_and(|file| file.own.inline().is_some())
        };
        if is_inline(node) && end <= MAX_INLINE {
            // The metadata server has room for those.
            return Ok(Step::Done);
        }
        self.journal.ensure_placed_to_grow(ino)?;
        self.writeback.spill(node, end);
        self.writeback.sync_node(node, SyncScope::All)?;
        let bill = self.reservations.bill(node, Position::At(bytes.start), len, Place::Now)?;
        self.reservations.return_surplus(&bill, &*self.writeback);
        let Some(_no_take_over) = node.taking_over.try_lock() else {
            return Ok(Step::Wait(RetryReason::Busy));
        };
        self.fill_holes(node, bytes, end, &bill, given)
    }

    /// Writes zeros into the holes of these bytes.
    fn fill_holes(
        &self,
        node: &Arc<Inode>,
        bytes: Range<u64>,
        end: u64,
        bill: &CostEstimate,
        given: &mut Vec<Range<u64>>,
    ) -> Result<Step, Status> {
        let Some((_, alone)) = begin(node, Position::At(bytes.start))? else {
            return Ok(Step::Wait(RetryReason::Untaken));
        };
        // What the kernel pushed since is on the targets before holes are looked for.
        let span = span_of(bytes.start, (bytes.end - bytes.start) as usize);
        self.writeback.settle_part(node, span)?;
        let (mut row, allocated) = {
            let mut state = node.state.lock();
            let file = alone.of(&mut state.file)?;
            (row_of(file), file.own.allocated())
        };
        // Wherever they lie, so many bytes are there already.
        let rest = end.saturating_sub(bytes.start + allocated);
        if self.cluster.with_map(|map| is_hopeless(map, &row.layout, rest)) {
            return Err(Status::NOSPC);
        }
        let holes = self.holes(&row.layout, row.object, &bytes)?;
        let mut zeros = zeros(&holes);
        given.extend(holes);
        let mut done = Progress::towards(bytes.end);
        for block in zeros.pushable_blocks() {
            alone.check()?;
            row.pushes = zeros.begin_push(block).into_iter().collect();
            self.writeback.send(node, &row, &mut done);
            if done.outcome.is_err() {
                break;
            }
        }
        let now = self.session.now();
        let mut state = node.state.lock();
        let file = alone.of(&mut state.file)?;
        file.own.written_through(done.allocated);
        file.own.touch(now, Instant::now());
        drop(state);
        self.writeback.mark_dirty(node);
        match done.outcome {
            Ok(()) => Ok(Step::Done),
            Err(Status::NOSPC) if self.reservations.is_kept(bill) => {
                Ok(Step::Wait(RetryReason::Kept))
            }
            Err(status) => Err(status),
        }
    }

    /// Which of these bytes have no blocks.
    fn holes(
        &self,
        layout: &Layout,
        object: ObjectId,
        bytes: &Range<u64>,
    ) -> Result<Vec<Range<u64>>, Status> {
        let mut holes = Vec::new();
        for piece in pieces(layout, object, bytes.start, bytes.end - bytes.start) {
            let base = piece.file_offset - u64::from(piece.offset);
            let (mut at, end) = (piece.offset, piece.offset + piece.len);
            for (start, len) in self.data.extents(&piece)? {
                let (start, over) = (start.clamp(at, end), (start + len).clamp(at, end));
                if at < start {
                    holes.push(base + u64::from(at)..base + u64::from(start));
                }
                at = over;
            }
            if at < end {
                holes.push(base + u64::from(at)..base + u64::from(end));
            }
        }
        Ok(holes)
    }

    /// Gives back what was taken before the room ended: zeros still, unless somebody wrote there.
    fn take_back(&self, ino: Ino, given: &[Range<u64>], why: Status) -> Result<(), Status> {
        let entered = self.leases.enter(ino, LeaseMode::Write)?;
        let node = &entered.0;
        let (session, layout, object) = {
            let state = node.state.lock();
            let file = state.file.as_ref().ok_or(why)?;
            (file.session, file.layout.clone(), file.object)
        };
        let give_back = |bytes: &Range<u64>| {
            let range = (bytes.start, bytes.end - bytes.start);
            self.data.give_back(session, (&layout, object), range)
        };
        let freed: u64 = given.iter().map(give_back).sum();
        let now = self.session.now();
        if let Some(file) = &mut node.state.lock().file {
            file.own.gave_back(freed, (file.own.size(), u64::MAX));
            file.own.touch(now, Instant::now());
        }
        self.writeback.mark_dirty(node);
        Err(why)
    }
}

/// Whether all that the file's targets have left is less than this: nothing is tried then.
fn is_hopeless(map: &Map, layout: &Layout, bytes: u64) -> bool {
    let Some(component) = layout.components.first() else { return false };
    let mut targets: Vec<_> = component
        .groups
        .iter()
        .filter_map(|id: &GroupId| map.group(*id))
        .flat_map(|group| group.members.iter().map(|member| member.target))
        .collect();
    targets.sort_unstable();
    targets.dedup();
    let left = |target: &_| map.target(*target).map_or(0, |t| t.size.saturating_sub(t.used));
    let (members, data) = (component.shape.members() as u64, component.shape.data() as u64);
    targets.iter().map(left).sum::<u64>() < bytes / data * members
}

/// A buffer of zeros there.
fn zeros(holes: &[Range<u64>]) -> WriteBuffer {
    let mut buffer = WriteBuffer::default();
    for hole in holes {
        let mut at = hole.start;
        while at < hole.end {
            let to = ((at / BLOCK + 1) * BLOCK).min(hole.end);
            buffer.write(at / BLOCK, (at % BLOCK) as u32, &ZEROS[..(to - at) as usize]);
            at = to;
        }
    }
    buffer
}
