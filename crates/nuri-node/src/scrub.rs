//! The scrub: reads all data on the targets at a bounded rate, while no member is brought up to
//! date.
//!
//! The node of a group's first live member looks at the group's stripes, and repairs what it can.
//! Data that belongs to no redundant group is read by the node that holds it, and faults in it are
//! only reported. The map says which scrub is due. A node that restarts in the middle begins its
//! part anew.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::id::{ChunkKey, GroupId, NodeId, TargetId};
use nuri_proto::map::{Group, Map, Pace, Standing};
use nuri_proto::op::cluster::Scrub;
use nuri_target::server::TargetServer;
use nuri_volume::group::{Finding, Flaw, Groups, RpcPort, Verdict};
use nuri_volume::{Cluster, DataPlane};
use parking_lot::Mutex;

use crate::directory::{load_json, save_json};

const IDLE: Duration = Duration::from_secs(1);
/// A stripe that its writers keep busy is looked at again this often, then once more at the end.
const TRIES: usize = 10;
const TRY_PAUSE: Duration = Duration::from_millis(20);
/// So long a deletion that is under way may look like a loss.
const SETTLE: Duration = Duration::from_secs(5);
/// Findings that are told in words.
const MOST_TOLD: usize = 16;
const FILE: &str = "scrub.json";

/// How far it is, for the node's heartbeats; what the last one found outlives the process.
pub struct Progress {
    file: PathBuf,
    report: Mutex<Scrub>,
}

impl Progress {
    /// What the last scrub of this node found. A file that cannot be read costs another scrub.
    pub fn load(dir: &Path) -> Progress {
        let file = dir.join(FILE);
        let last = load_json(&file).ok().flatten().unwrap_or_default();
        Progress { file, report: Mutex::new(last) }
    }

    pub fn report(&self) -> Scrub {
        self.report.lock().clone()
    }

    fn is_due(&self, number: u64) -> bool {
        let report = self.report.lock();
        number > report.number || number == report.number && number > 0 && !report.has_ended
    }

    fn change(&self, change: impl FnOnce(&mut Scrub)) {
        change(&mut self.report.lock());
    }

    fn find(&self, repaired: bool, sentence: String) {
        match repaired {
            true => tracing::info!("scrub: {sentence}"),
            false => tracing::error!("scrub: {sentence}"),
        }
        self.change(|r| {
            // Those that somebody must look after come first.
            let at = if repaired { r.findings.len() } else { 0 };
            r.findings.insert(at, sentence);
            r.findings.truncate(MOST_TOLD);
            *(if repaired { &mut r.repaired } else { &mut r.unrepaired }) += 1;
        });
    }

    fn end(&self) {
        self.change(|r| r.has_ended = true);
        if let Err(failure) = save_json(&self.file, &self.report()) {
            tracing::warn!("scrub: {failure}");
        }
    }
}

/// Scrubs whenever the map says so, for as long as the process lives.
pub fn run(node: NodeId, cluster: &Cluster, targets: &TargetServer, progress: &Progress) {
    let data = DataPlane::new(cluster);
    loop {
        std::thread::sleep(IDLE);
        let policy = cluster.map().scrub;
        if cluster.refresh().is_err() || policy.is_stopped || !progress.is_due(policy.number) {
            continue;
        }
        let (groups, number) = (data.groups(), policy.number);
        let mut worker =
            Worker { node, number, cluster, groups, targets, progress, looked: Instant::now() };
        if worker.scrub().is_ok() {
            progress.end();
        }
    }
}

/// This scrub was stopped, or another one began.
struct Over;

struct Worker<'a> {
    node: NodeId,
    number: u64,
    cluster: &'a Cluster,
    groups: &'a Groups<RpcPort>,
    targets: &'a TargetServer,
    progress: &'a Progress,
    /// When the map was looked at.
    looked: Instant,
}

impl Worker<'_> {
    fn scrub(&mut self) -> Result<(), Over> {
        let number = self.number;
        self.progress.change(|r| *r = Scrub { number, ..Scrub::default() });
        self.wait_for_leave()?;
        let stripes = self.stripes()?;
        let plain = self.targets.plain_chunks();
        self.progress.change(|r| r.stripes += (stripes.len() + plain.len()) as u64);
        let mut later = Vec::new();
        for (group, key) in stripes {
            if !self.look_at(group, key, false)? {
                later.push((group, key));
            }
        }
        for (target, key) in plain {
            self.prove(target, key)?;
        }
        if !later.is_empty() {
            std::thread::sleep(SETTLE);
        }
        for (group, key) in later {
            self.look_at(group, key, true)?;
        }
        Ok(())
    }

    /// The stripes that this node looks at.
    fn stripes(&mut self) -> Result<Vec<(GroupId, ChunkKey)>, Over> {
        let mut all = Vec::new();
        for group in &self.cluster.map().groups {
            let mut tries = TRIES;
            while tries > 0 && self.looks_after(group) {
                if let Ok(keys) = self.groups.stripes_of(group) {
                    all.extend(keys.into_iter().map(|key| (group.id, key)));
                    break;
                }
                tries -= 1;
                std::thread::sleep(IDLE);
                self.wait_for_leave()?;
            }
            if tries == 0 {
                self.progress.change(|r| r.skipped += 1);
            }
        }
        Ok(all)
    }

    fn looks_after(&self, group: &Group) -> bool {
        let first = group.live().iter().next().map(|place| group.members[place].target);
        let map = self.cluster.map();
        let node = first.and_then(|target| map.target(target)).map(|target| target.node);
        group.shape.is_redundant() && node == Some(self.node)
    }

    /// Looks at one stripe. Returns whether that is all; the `last` look always is.
    fn look_at(&mut self, group: GroupId, key: ChunkKey, last: bool) -> Result<bool, Over> {
        let began = Instant::now();
        let mut verdict = Verdict::default();
        let mut outcome = self.scrub_once(group, key, &mut verdict);
        for _ in 1..TRIES {
            if outcome.is_ok() {
                break;
            }
            std::thread::sleep(TRY_PAUSE);
            outcome = self.scrub_once(group, key, &mut verdict);
        }
        let is_missing = |f: &Finding| f.flaw == Flaw::Missing;
        let is_all = last || outcome.is_ok() && !verdict.findings.iter().any(is_missing);
        for finding in verdict.findings.iter().filter(|f| is_all || f.repaired) {
            self.progress.find(finding.repaired, finding.sentence(key));
        }
        if is_all {
            let skipped = u64::from(outcome.is_err());
            self.progress.change(|r| (r.done, r.skipped) = (r.done + 1, r.skipped + skipped));
        }
        self.rest(began, verdict.bytes)?;
        Ok(is_all)
    }

    fn scrub_once(
        &self,
        group: GroupId,
        key: ChunkKey,
        verdict: &mut Verdict,
    ) -> Result<(), Status> {
        let group = self.cluster.group(group).ok_or(Status::NOENT)?;
        self.groups.scrub(&self.groups.stripe(&group, key), verdict)
    }

    /// Reads a chunk that nobody else has.
    fn prove(&mut self, target: TargetId, key: ChunkKey) -> Result<(), Over> {
        let began = Instant::now();
        let proof = self.targets.prove(target, key);
        let skipped = u64::from(proof.is_err());
        let proof = proof.unwrap_or_default();
        if let Some(first) = proof.bad.first() {
            let (ChunkKey { object, stripe, .. }, count) = (key, proof.bad.len());
            self.progress.find(
                false,
                format!(
                    "target {target}: {count} blocks of stripe {stripe} of object {object}, from \
                     block {first} on, fail their checksum: there is no other copy"
                ),
            );
        }
        self.progress.change(|r| (r.done, r.skipped) = (r.done + 1, r.skipped + skipped));
        self.rest(began, proof.bytes)
    }

    /// Keeps to the rate, and looks at the map now and then.
    fn rest(&mut self, began: Instant, bytes: u64) -> Result<(), Over> {
        self.progress.change(|r| r.bytes += bytes);
        let rate = self.cluster.map().scrub.rate.max(1);
        let wanted = Duration::from_secs_f64(bytes as f64 / rate as f64);
        loop {
            let left = wanted.saturating_sub(began.elapsed());
            std::thread::sleep(left.min(IDLE));
            if self.looked.elapsed() >= IDLE {
                self.wait_for_leave()?;
            }
            if left <= IDLE {
                return Ok(());
            }
        }
    }

    /// Returns once nobody is being brought up to date. Who waits for a paused resync may wait for
    /// ever.
    fn wait_for_leave(&mut self) -> Result<(), Over> {
        loop {
            let _ = self.cluster.refresh();
            self.looked = Instant::now();
            let map = self.cluster.map();
            if map.scrub.is_stopped || map.scrub.number != self.number {
                return Err(Over);
            }
            if !is_syncing(&map) || map.resync == Pace::Paused {
                return Ok(());
            }
            std::thread::sleep(IDLE);
        }
    }
}

fn is_syncing(map: &Map) -> bool {
    let mut members = map.groups.iter().flat_map(|g| &g.members);
    members.any(|m| matches!(m.standing, Standing::Syncing { .. }))
}
