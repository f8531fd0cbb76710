//! Brings the targets of this node up to date where their groups went on without them.
//!
//! The map says which targets are still behind. So after a restart the node begins anew with these,
//! and with nothing else.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::PROOF;
use nuri_proto::id::{BootId, ChunkKey, GroupId, TargetId};
use nuri_proto::map::{Map, Pace, Standing};
use nuri_proto::op::cluster::{GroupRenew, JoinTarget, MemberSynced, Resync, TargetProved};
use nuri_target::server::TargetServer;
use nuri_volume::group::{Compared, Found, Groups, Kept, Missed, Proofs, RpcPort, Unheard};
use nuri_volume::{Cluster, DataPlane};
use parking_lot::Mutex;

const IDLE: Duration = Duration::from_millis(300);
/// Between two rounds that met stripes which nobody can give.
const DAMAGED_PAUSE: Duration = Duration::from_secs(5);
/// Rest after each repaired stripe, as a multiple of the time that it took: leaves programs most
/// of the disks and the network.
const REST: f64 = 1.0;
/// Stripes brought at the same time where a rate was said: one is read while another is written.
/// Otherwise it is one, which leaves programs the most.
const LANES: usize = 3;
/// A stripe that its writers keep busy is looked at again this often, then with the next round.
const TRIES: usize = 20;
const TRY_PAUSE: Duration = Duration::from_millis(20);
/// The map is fetched anew so often, for a new pace.
const MAP_EVERY: Duration = Duration::from_millis(500);

/// How far it is, for the node's heartbeats.
#[derive(Default)]
pub struct Progress {
    targets: Mutex<HashMap<TargetId, (Resync, Instant)>>,
}

impl Progress {
    pub fn report(&self) -> Vec<Resync> {
        let timed =
            |(r, began): &(Resync, Instant)| Resync { seconds: began.elapsed().as_secs(), ..*r };
        self.targets.lock().values().map(timed).collect()
    }

    fn change(&self, target: TargetId, change: impl FnOnce(&mut Resync)) {
        let mut targets = self.targets.lock();
        let new = || (Resync { target, stripes: 0, done: 0, bytes: 0, seconds: 0 }, Instant::now());
        change(&mut targets.entry(target).or_insert_with(new).0);
    }

    fn keep_only(&self, syncing: &[(GroupId, TargetId)]) {
        self.targets.lock().retain(|target, _| syncing.iter().any(|(_, t)| t == target));
    }
}

/// Looks after the node's targets for as long as the process lives.
pub fn run(cluster: &Cluster, targets: &Arc<TargetServer>, progress: &Progress) {
    let data = DataPlane::new(cluster);
    let (told, kept, began) = (Mutex::default(), Mutex::default(), Instant::now());
    let worker = Worker { cluster, groups: data.groups(), progress, told, kept, began };
    std::thread::scope(|scope| {
        scope.spawn(|| worker.prove_all(targets));
        worker.bring_up_all(targets);
    });
}

fn is_unproven(map: &Map, target: TargetId) -> bool {
    map.groups.iter().any(|g| g.place(target).is_some_and(|place| g.unproven().has(place)))
}

/// Before the next round. The first failure is most likely that somebody has not heard of a new
/// member yet.
fn pause_after(failed_rounds: u32) -> Duration {
    match failed_rounds.checked_sub(1) {
        None => IDLE,
        Some(doublings) => (TRY_PAUSE * (1 << doublings.min(8))).min(IDLE),
    }
}

fn syncing(map: &Map, own: &[TargetId]) -> Vec<(GroupId, TargetId)> {
    let members = map.groups.iter().flat_map(|g| g.members.iter().map(|m| (g.id, m)));
    let behind = members.filter(|(_, m)| matches!(m.standing, Standing::Syncing { .. }));
    behind.map(|(id, m)| (id, m.target)).filter(|(_, target)| own.contains(target)).collect()
}

struct Worker<'a> {
    cluster: &'a Cluster,
    groups: &'a Groups<RpcPort>,
    progress: &'a Progress,
    /// What nobody can give, and was said.
    told: Mutex<HashSet<(TargetId, ChunkKey)>>,
    kept: Mutex<Kept>,
    began: Instant,
}

impl Worker<'_> {
    /// Compares this node's targets with the others after a start of the machine: they serve only
    /// then (rule EPOCH-5 of `nuri-target/src/epochs.rs`), each group as soon as it was compared.
    fn prove_all(&self, targets: &TargetServer) {
        let is_own = |t: &JoinTarget| t.id.map(|id| (id, t.boot));
        let own: Vec<_> = targets.announce().iter().filter_map(is_own).collect();
        let mut proofs: HashMap<TargetId, Proofs> = HashMap::new();
        loop {
            let map = self.cluster.map();
            let left: Vec<_> = own.iter().filter(|(id, _)| is_unproven(&map, *id)).collect();
            if left.is_empty() {
                return;
            }
            for (target, boot) in left {
                // What fails is tried again.
                let _ = self.prove(&map, (*target, *boot), proofs.entry(*target).or_default());
            }
            std::thread::sleep(TRY_PAUSE);
            let _ = self.cluster.refresh();
        }
    }

    fn prove(
        &self,
        map: &Map,
        (target, boot): (TargetId, BootId),
        proofs: &mut Proofs,
    ) -> Result<(), Status> {
        let had_time = self.began.elapsed() >= PROOF;
        let unheard = if had_time { Unheard::LeftOut } else { Unheard::Waited };
        let Compared { proven, behind } = self.groups.prove(target, &map.groups, (unheard, proofs));
        if proven.is_empty() && behind.is_empty() {
            return Ok(());
        }
        if !behind.is_empty() {
            tracing::warn!(
                "target {target}: after the start of its machine it differs from the other members \
                 of {} groups; it is brought up to date",
                behind.len()
            );
        }
        self.cluster.ask(&TargetProved { target, boot, proven, behind })
    }

    fn bring_up_all(&self, targets: &TargetServer) {
        let mut failed_rounds = 0;
        loop {
            std::thread::sleep(pause_after(failed_rounds));
            if self.cluster.refresh().is_err() {
                continue;
            }
            let own: Vec<_> = targets.reports().iter().map(|r| r.id).collect();
            let syncing = syncing(&self.cluster.map(), &own);
            self.progress.keep_only(&syncing);
            // What fails is tried again with the next round.
            let bring_up = |(group, target)| self.bring_up(group, target);
            let outcomes: Vec<_> = syncing.into_iter().map(bring_up).collect();
            failed_rounds = match outcomes.iter().all(Result::is_ok) {
                true => 0,
                false => failed_rounds + 1,
            };
            if outcomes.contains(&Err(Status::CORRUPT)) {
                // It stays so until the file goes.
                std::thread::sleep(DAMAGED_PAUSE);
            }
        }
    }

    /// Brings all that one target missed in one group, then tells the authority.
    fn bring_up(&self, group: GroupId, target: TargetId) -> Result<(), Status> {
        let Some(missed) = self.groups.missed(group, target)? else { return Ok(()) };
        self.progress.change(target, |r| r.stripes += missed.stripes.len() as u64);
        let next = Mutex::new(missed.stripes.iter());
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let (missed, next) = (&missed, &next);
            let start = |lane| scope.spawn(move || self.lane(lane, missed, next, target));
            let lanes: Vec<_> = (0..LANES).map(start).collect();
            lanes.into_iter().map(|lane| lane.join().unwrap_or(Err(Status::IO))).collect()
        });
        let outcome: Result<(), Status> = outcomes.into_iter().collect();
        let (epoch, mut kept) = (missed.epoch(), self.kept.lock());
        match outcome {
            Ok(()) => kept.forget(group),
            Err(Status::RETRY) if kept.is_for_long(group, epoch, self.began.elapsed()) => {
                let _ = self.cluster.ask(&GroupRenew { group, epoch });
            }
            Err(_) => {}
        }
        drop(kept);
        if outcome.is_err() {
            // What is left is counted anew by the next round.
            let left = missed.stripes.len() as u64;
            self.progress
                .change(target, |r| r.stripes = r.stripes.saturating_sub(left).max(r.done));
            return outcome;
        }
        // The group may have moved on: then the next round finds what is new.
        self.cluster.ask(&MemberSynced { group, target, epoch })
    }

    /// Brings one stripe after the other until none is left, or until fewer lanes are wanted. One
    /// that cannot be brought holds back no other; the first reason is returned in the end.
    fn lane<'m>(
        &self,
        lane: usize,
        missed: &Missed,
        next: &Mutex<impl Iterator<Item = &'m ChunkKey>>,
        target: TargetId,
    ) -> Result<(), Status> {
        let (mut looked_at, mut outcome) = (None, Ok(()));
        loop {
            if looked_at.is_none_or(|at: Instant| at.elapsed() > MAP_EVERY) {
                self.wait_for_leave();
                looked_at = Some(Instant::now());
            }
            if lane >= self.lanes() {
                return outcome;
            }
            let key = next.lock().next();
            let Some(key) = key else { return outcome };
            let began = Instant::now();
            match self.bring(missed, *key) {
                Ok(Found::Repaired(bytes)) => {
                    self.progress.change(target, |r| r.bytes += bytes);
                    self.rest(began.elapsed(), bytes);
                }
                Ok(_) => {}
                // The group moved on, or nobody answers.
                Err(status @ (Status::EPOCH | Status::UNREACHABLE)) => return Err(status),
                Err(status) => {
                    if status == Status::CORRUPT {
                        self.tell_once(*key, target);
                    }
                    outcome = outcome.and(Err(status));
                    continue;
                }
            }
            self.progress.change(target, |r| r.done += 1);
        }
    }

    fn tell_once(&self, key: ChunkKey, target: TargetId) {
        if self.told.lock().insert((target, key)) {
            let ChunkKey { object, stripe, .. } = key;
            tracing::warn!(
                "resync: target {target} cannot get stripe {stripe} of object {object}: too few \
                 others are whole; delete the file"
            );
        }
    }

    fn lanes(&self) -> usize {
        match self.cluster.map().resync {
            Pace::Rate(_) => LANES,
            Pace::Gentle | Pace::Paused => 1,
        }
    }

    fn bring(&self, missed: &Missed, key: ChunkKey) -> Result<Found, Status> {
        let mut outcome = self.groups.bring(missed, key);
        for _ in 0..TRIES {
            if outcome.is_ok() {
                break;
            }
            std::thread::sleep(TRY_PAUSE);
            outcome = self.groups.bring(missed, key);
        }
        outcome
    }

    /// Returns once the work is not paused.
    fn wait_for_leave(&self) {
        loop {
            let _ = self.cluster.refresh();
            if self.cluster.map().resync != Pace::Paused {
                return;
            }
            std::thread::sleep(IDLE);
        }
    }

    fn rest(&self, took: Duration, bytes: u64) {
        let wanted = match self.cluster.map().resync {
            Pace::Gentle | Pace::Paused => took.mul_f64(1.0 + REST),
            Pace::Rate(rate) => {
                Duration::from_secs_f64((bytes * LANES as u64) as f64 / rate.max(1) as f64)
            }
        };
        std::thread::sleep(wanted.saturating_sub(took));
    }
}
