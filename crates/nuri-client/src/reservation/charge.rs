//! Charges writes for the space that they will take, and asks the targets to promise it
//! (`ledger.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::MEMBER_TIMEOUT;
use nuri_proto::id::{BootId, GroupId, ObjectId, TargetId};
use nuri_proto::layout::Layout;
use nuri_proto::limit::{self, MAX_INLINE};
use nuri_proto::op::data::DataRoom;
use nuri_rules::broken;
use nuri_volume::{Cluster, DataPlane};

use crate::inode::{FileData, Inode};
use crate::journal::Journal;
use crate::reservation::cost::{BlockCosts, Cost, costs, costs_anywhere};
use crate::reservation::ledger::{Question, Reservation, ReservationLedger, Short};
use crate::session::MetaSession;
use crate::writeback::buffer::BLOCK;
use crate::writeback::payload::Position;

/// How often targets that writes wait for are asked whether they are back.
const TICK: Duration = Duration::from_millis(100);

/// What a write takes, where it goes.
#[derive(Default)]
pub(crate) struct CostEstimate {
    pub(crate) at: u64,
    /// Nothing where the bytes lie with the inode.
    pub(crate) blocks: BlockCosts,
    /// The map does not know all groups that the bytes go to, nor did a fresh one.
    is_unknown: bool,
    /// A group of the file refused lately what it had promised.
    is_refused: bool,
    /// The file has no place yet: it may take so much at each target.
    pub(crate) is_anywhere: bool,
}

/// Files up to this length are written before they have a place.
pub(crate) const UNPLACED: u64 = limit::LOG_FIRST;
/// With more targets every write would ask too many for room.
const MOST_TARGETS: usize = 16;

impl CostEstimate {
    pub(crate) fn costs(&self) -> Vec<Cost> {
        self.blocks.iter().flat_map(|(_, costs)| costs).copied().collect()
    }
}

/// When a file gets its place on the targets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Now,
    /// Before the first of its bytes leave, where it is short.
    Later,
}

/// By the blocks of a write buffer.
pub(crate) type Charges = Vec<(u64, Reservation)>;

/// What of a write goes to the targets: with it that of a small file that lay with its inode.
fn placed(file: &FileData, at: u64, len: u64) -> Option<(u64, u64)> {
    let end = at + len;
    match file.own.inline() {
        _ if len == 0 => None,
        Some(_) if end <= MAX_INLINE => None,
        Some(inline) if !inline.is_empty() => Some((0, end)),
        _ => Some((at, len)),
    }
}

/// Whether the estimate still fits the write.
pub(crate) fn is_current(bill: &CostEstimate, file: &FileData, at: u64, len: u64) -> bool {
    let first = placed(file, at, len).map(|(at, _)| at / BLOCK);
    let was = bill.blocks.first().map(|(block, _)| *block);
    let has_place = first.is_none() || file.is_placed() != bill.is_anywhere;
    bill.at == at && first == was && has_place
}

/// The part that has to know that a target answered under a boot id, before the answer counts.
pub(crate) trait TargetLives {
    fn target_lives(&self, target: TargetId, boot: BootId);
}

/// Space on targets that writes are charged with.
pub(crate) struct Reservations {
    cluster: Cluster,
    data: DataPlane,
    session: Arc<MetaSession>,
    journal: Arc<Journal>,
    ledger: ReservationLedger,
}

impl Reservations {
    pub(crate) fn new(
        cluster: &Cluster,
        data: &DataPlane,
        session: Arc<MetaSession>,
        journal: Arc<Journal>,
    ) -> Reservations {
        let (cluster, data) = (cluster.clone(), data.clone());
        Reservations { cluster, data, session, journal, ledger: ReservationLedger::default() }
    }

    /// Notes what a group's target answered to a write.
    pub(crate) fn heard(&self, group: GroupId, took: Result<u64, Status>) {
        self.ledger.heard(group, took, Instant::now());
    }

    /// Whether space that the write lacks was promised to others, who may give it back.
    pub(crate) fn is_kept(&self, estimate: &CostEstimate) -> bool {
        self.ledger.is_kept(&estimate.costs())
    }

    /// What a write takes at the targets.
    ///
    /// # Errors
    /// The server's, where the file needs a place.
    pub(crate) fn bill(
        &self,
        node: &Inode,
        position: Position,
        len: u64,
        place: Place,
    ) -> Result<CostEstimate, Status> {
        loop {
            let (at, bytes, layout, object) = {
                let state = node.state.lock();
                let file = state.file.as_ref().ok_or(Status::IO)?;
                let at = position.within(file.own.size());
                let Some(bytes) = placed(file, at, len) else {
                    return Ok(CostEstimate { at, ..CostEstimate::default() });
                };
                (at, bytes, file.is_placed().then(|| file.layout.clone()), file.object)
            };
            let Some(layout) = layout else {
                if let Some(blocks) = self.costs_anywhere(bytes).filter(|_| place == Place::Later) {
                    return Ok(CostEstimate {
                        at,
                        blocks,
                        is_anywhere: true,
                        ..Default::default()
                    });
                }
                self.journal.ensure_placed_to_grow(node.ino)?;
                continue;
            };
            let mut groups = layout.components.iter().flat_map(|c| &c.groups);
            let is_refused = groups.any(|group| self.ledger.is_refused(*group));
            let (blocks, is_known) = self.costs(&layout, object, bytes);
            let is_unknown = !is_known;
            return Ok(CostEstimate { at, blocks, is_unknown, is_refused, is_anywhere: false });
        }
    }

    /// Of a file without a place, where it is short and the targets are few.
    fn costs_anywhere(&self, (at, len): (u64, u64)) -> Option<BlockCosts> {
        let may = at + len <= UNPLACED && !self.ledger.has_refused();
        self.cluster.with_map(|map| {
            let are_few = (1..=MOST_TARGETS).contains(&map.targets.len());
            (may && are_few).then(|| costs_anywhere(map, (at, len)))
        })
    }

    /// By a fresh map where need be: the groups of a shape are made when it is first asked for.
    fn costs(&self, layout: &Layout, object: ObjectId, bytes: (u64, u64)) -> (BlockCosts, bool) {
        let by_map = || self.cluster.with_map(|map| costs(map, layout, object, bytes));
        match by_map() {
            (blocks, _) if broken!("unknown_has_room") => (blocks, true),
            (_, false) if self.cluster.refresh().is_ok() => by_map(),
            found => found,
        }
    }

    /// Charges a write.
    ///
    /// # Errors
    /// Why the targets do not promise as much.
    pub(crate) fn charge(
        &self,
        bill: &CostEstimate,
        lives: &dyn TargetLives,
    ) -> Result<Charges, Short> {
        if broken!("room_unasked") {
            return Ok(Vec::new());
        }
        if bill.is_unknown {
            return Err(Short::Silent);
        }
        if bill.is_refused {
            return Err(Short::Unpromised(Vec::new()));
        }
        let costs = bill.costs();
        match self.ledger.take(&costs, Instant::now()) {
            Err(Short::Unpromised(targets)) => {
                targets.into_iter().for_each(|target| self.ask_for(target, &costs, lives));
                self.ledger.take(&costs, Instant::now())?;
            }
            taken => taken?,
        }
        Ok(self.charges(bill))
    }

    /// Charges bytes that cannot be refused.
    pub(crate) fn claim(&self, bill: &CostEstimate) -> Charges {
        self.ledger.claim(&bill.costs(), Instant::now());
        self.charges(bill)
    }

    fn charges(&self, bill: &CostEstimate) -> Charges {
        let charge =
            |(block, costs): &(u64, Vec<Cost>)| (*block, self.ledger.charge(costs.clone()));
        bill.blocks.iter().map(charge).collect()
    }

    /// Charges bytes that are buffered already and cannot be refused any more. These are bytes that
    /// a restarted target lost, and inline data that moves to the targets.
    pub(crate) fn charge_again(&self, node: &Inode, at: u64, len: u64) {
        let Ok(bill) = self.bill(node, Position::At(at), len, Place::Now) else { return };
        let charges = self.claim(&bill);
        if let Some(file) = &mut node.state.lock().file {
            charges.into_iter().for_each(|(block, charge)| file.own.buffer.charge(block, charge));
        }
    }

    fn ask_for(&self, target: TargetId, costs: &[Cost], lives: &dyn TargetLives) {
        let asking = self.ledger.asking(target);
        let _one_at_a_time = asking.lock();
        let more = costs.iter().filter(|cost| cost.target == target).map(|cost| cost.bytes).sum();
        if let Some(question) = self.ledger.question(self.session.id(), target, more) {
            self.ask(target, question, lives);
        }
    }

    /// Gives back what the targets promised beyond the bytes that wait for them, because it is in
    /// the way of writes without a promise.
    pub(crate) fn return_surplus(&self, bill: &CostEstimate, lives: &dyn TargetLives) {
        for Cost { target, .. } in bill.costs() {
            let asking = self.ledger.asking(target);
            let _one_at_a_time = asking.lock();
            if let Some(question) = self.ledger.surplus(self.session.id(), target) {
                self.ask(target, question, lives);
            }
        }
    }

    /// The caller holds what [`ReservationLedger::asking`] gave.
    fn ask(&self, target: TargetId, question: Question, lives: &dyn TargetLives) {
        let Question { needed, wanted, .. } = question;
        let call = DataRoom { target, needed, wanted };
        let answer = self.data.ask(self.session.id(), target, &call, MEMBER_TIMEOUT);
        if let Ok(reply) = &answer {
            // Before the answer counts: what was lost is charged to it.
            lives.target_lives(target, reply.boot);
        }
        let is_too_much = self.ledger.answered(target, question, answer, Instant::now());
        if is_too_much && let Some(rest) = self.ledger.surplus(self.session.id(), target) {
            self.ask(target, rest, lives);
        }
    }

    /// The worker: repeats what targets promised, and gives back what is not used.
    pub(crate) fn run(&self, lives: &dyn TargetLives) {
        while !self.session.stopping() {
            std::thread::sleep(TICK);
            for target in self.ledger.to_tend(Instant::now()) {
                let asking = self.ledger.asking(target);
                let _one_at_a_time = asking.lock();
                let question = self.ledger.repeated(self.session.id(), target, Instant::now());
                if let Some(question) = question {
                    self.ask(target, question, lives);
                }
            }
        }
    }
}
