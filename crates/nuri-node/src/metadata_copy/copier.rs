//! The first node's side: it finds another node, makes a copy there under load, and keeps the copy
//! up to date.
//!
//! 1 a generation above all that were ever seen, kept first  crash: a number is left out
//! 2 the copy begins, every change goes there from now on    crash: half made, never used
//! 3 everything that is there goes too, a frame at a time     crash: as above
//! 4 the copy is told that it is whole, and syncs             crash: whole or half made
//! 5 what is synced is synced in both places; the status says two copies
//!
//! A failure on the way ends the copy, never the first node. Then the first node begins another
//! copy, on another node if there is one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_cluster::authority::Authority;
use nuri_cluster::store::{FileStore, MapStore, StoreError};
use nuri_io::paired::{Life, PairedDisk, Sink};
use nuri_proto::Status;
use nuri_proto::clock::{COPY, HEARTBEAT};
use nuri_proto::id::NodeId;
use nuri_proto::map::{Map, Node};
use nuri_proto::op::Call;
use nuri_proto::op::copy::{
    Change, CopyBegin, CopyFile, CopyLatest, CopyMap, CopyWhole, CopyWrite, Origin,
};
use nuri_proto::op::data::Durability;
use nuri_rpc::{CallContext, Conn, Pending, Secret};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::directory::{load_json, save_json};
use crate::disk_reserve::DiskReserve;
use crate::failure::{Failure, at};

const TICK: Duration = Duration::from_millis(100);
/// Pauses after copies that could not be made: doubled, ended by any change of membership.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The copy syncs its whole files once; nobody waits for that.
const WHOLE: Duration = Duration::from_secs(60);

/// `meta-copies.json`: the last generation that was begun.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counter {
    pub(super) format: u32,
    pub(super) generation: u64,
}

pub(super) fn counter_path(dir: &Path) -> PathBuf {
    dir.join("meta-copies.json")
}

/// What is copied, and who copies.
pub struct Copier {
    pub dir: PathBuf,
    pub node: NodeId,
    pub address: String,
    pub secret: Secret,
    pub authority: Arc<Authority>,
    pub log: Arc<PairedDisk>,
    pub tables: Arc<PairedDisk>,
    pub map: CopiedMap,
}

/// How long the authority waits for the map's copy: meanwhile it hears nobody.
const MAP_PATIENCE: Duration = HEARTBEAT.saturating_mul(2);

/// A copy that is whole and followed.
struct Copy {
    node: NodeId,
    generation: u64,
    life: Arc<Life>,
    conn: Conn,
}

impl Copier {
    /// Keeps a copy somewhere, for ever.
    pub fn run(self) {
        self.authority.metadata_at(vec![self.node]);
        let (mut tried, mut pause) = (None, FIRST_PAUSE);
        loop {
            let Some(node) = self.choose(tried) else {
                std::thread::sleep(TICK);
                continue;
            };
            tried = Some(node.id);
            match self.make(&node) {
                Ok(copy) => {
                    self.follow(copy);
                    pause = FIRST_PAUSE;
                }
                Err(Failure(why)) => {
                    tracing::warn!("metadata: no copy on node {}: {why}", node.id);
                    pause = self.rest(pause);
                }
            }
        }
    }

    /// Waits before the next attempt. Returns how long to wait after that one.
    fn rest(&self, pause: Duration) -> Duration {
        let (start, epoch) = (Instant::now(), self.authority.map().epoch);
        while start.elapsed() < pause {
            std::thread::sleep(TICK);
            if self.authority.map().epoch != epoch {
                return FIRST_PAUSE;
            }
        }
        (pause * 2).min(LONGEST_PAUSE)
    }

    fn others(&self) -> Vec<Node> {
        let nodes = self.authority.map().nodes;
        nodes.into_iter().filter(|n| n.up && n.id != self.node).collect()
    }

    /// The first other node that is up, after the one that was tried last.
    fn choose(&self, tried: Option<NodeId>) -> Option<Node> {
        let others = self.others();
        others.iter().find(|n| Some(n.id) > tried).or(others.first()).cloned()
    }

    fn make(&self, node: &Node) -> Result<Copy, Failure> {
        let connect = || Conn::connect(&node.address, &self.secret).map_err(Failure::new);
        let mut conn = connect()?;
        let generation = self.next_generation()?;
        let cluster = self.authority.map().cluster;
        let origin = Origin { cluster, generation, node: self.node, address: self.address.clone() };
        ask(&mut conn, &CopyBegin { origin }, COPY).map_err(Failure::new)?;
        let life = Arc::new(Life::default());
        let sent = self.send_all(node.id, generation, &life, connect);
        let whole = sent.and_then(|()| {
            ask(&mut conn, &CopyWhole { generation }, WHOLE).map_err(Failure::new)?;
            if life.ended() { Err(Failure("it did not keep up".into())) } else { Ok(()) }
        });
        // A copy that is not whole must not be sent anything more.
        whole.inspect_err(|_| life.end())?;
        Ok(Copy { node: node.id, generation, life, conn })
    }

    fn send_all(
        &self,
        node: NodeId,
        generation: u64,
        life: &Arc<Life>,
        connect: impl Fn() -> Result<Conn, Failure>,
    ) -> Result<(), Failure> {
        self.map.attach(MapLink { conn: connect()?, node, generation, life: life.clone() });
        let disks = [(CopyFile::Log, &self.log), (CopyFile::Tables, &self.tables)];
        let local = at("cannot read the metadata store");
        for (file, disk) in &disks {
            let sink = Wire { conn: connect()?, generation, file: *file, pending: None };
            disk.attach(Box::new(sink), life.clone()).map_err(&local)?;
        }
        for (_, disk) in &disks {
            let mut from = Some(0);
            while let Some(at) = from.filter(|_| !life.ended()) {
                from = disk.copy_part(at).map_err(&local)?;
            }
        }
        if life.ended() { Err(Failure("it did not answer".into())) } else { Ok(()) }
    }

    /// A generation above those of this node and of all that are up.
    fn next_generation(&self) -> Result<u64, Failure> {
        let path = counter_path(&self.dir);
        let mut last = load_json::<Counter>(&path)?.unwrap_or_default().generation;
        for node in self.others() {
            let conn = Conn::connect(&node.address, &self.secret);
            let latest = conn.map(|mut conn| ask(&mut conn, &CopyLatest {}, COPY));
            if let Ok(Ok(latest)) = latest {
                last = last.max(latest);
            }
        }
        let generation = last.saturating_add(1);
        if generation > super::LAST_GENERATION {
            let path = path.display();
            return Err(Failure(format!("{path} or a copy has a number that cannot be: {last}")));
        }
        save_json(&path, &Counter { format: super::FORMAT, generation })?;
        Ok(generation)
    }

    /// Asks the copy whether it lives, also while nothing changes, until it does not.
    fn follow(&self, mut copy: Copy) {
        let (node, generation) = (copy.node, copy.generation);
        tracing::info!("metadata: node {node} has a whole copy, generation {generation}");
        self.authority.metadata_at(vec![self.node, node]);
        let alive = CopyWrite {
            generation,
            file: CopyFile::Log,
            changes: Vec::new(),
            durability: Durability::Memory,
        };
        let mut asked = Instant::now();
        while !copy.life.ended() {
            std::thread::sleep(TICK);
            if asked.elapsed() > HEARTBEAT {
                asked = Instant::now();
                if ask(&mut copy.conn, &alive, COPY).is_err() {
                    copy.life.end();
                }
            }
        }
        self.authority.metadata_at(vec![self.node]);
        tracing::warn!("metadata: the copy on node {node} is followed no longer");
    }
}

fn ask<C: Call>(conn: &mut Conn, call: &C, timeout: Duration) -> Result<C::Reply, Status> {
    let pending = conn.send(CallContext::default(), call, &[], timeout)?;
    conn.receive::<C>(pending, &mut [])?.map(|(reply, _)| reply)
}

/// The way to one file of the copy.
struct Wire {
    conn: Conn,
    generation: u64,
    file: CopyFile,
    pending: Option<Pending>,
}

fn broken(status: Status) -> io::Error {
    io::Error::other(status.to_string())
}

impl Sink for Wire {
    fn send(&mut self, changes: &[Change], data: &[u8], durability: Durability) -> io::Result<()> {
        let (generation, file, changes) = (self.generation, self.file, changes.to_vec());
        let call = CopyWrite { generation, file, changes, durability };
        let sent = self.conn.send(CallContext::default(), &call, data, COPY);
        self.pending = Some(sent.map_err(broken)?);
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let answer = self.conn.receive::<CopyWrite>(pending, &mut []).map_err(broken)?;
        answer.map(|_| ()).map_err(broken)
    }
}

/// The authority's map: kept here, and in the copy before whoever changed it hears of it.
#[derive(Clone)]
pub struct CopiedMap {
    file: Arc<FileStore>,
    reserve: Arc<DiskReserve>,
    state: Arc<Mutex<Sent>>,
}

#[derive(Default)]
struct Sent {
    last: Option<Map>,
    link: Option<MapLink>,
}

struct MapLink {
    conn: Conn,
    node: NodeId,
    generation: u64,
    life: Arc<Life>,
}

impl MapLink {
    /// A copy on a node that is silent is given up at once: the authority has others to serve.
    fn send(&mut self, map: &Map) -> Result<(), Status> {
        if self.life.ended() || map.node(self.node).is_none_or(|n| !n.up) {
            return Err(Status::UNREACHABLE);
        }
        let call = CopyMap { generation: self.generation, map: map.clone() };
        ask(&mut self.conn, &call, MAP_PATIENCE)
    }
}

impl Sent {
    fn send(&mut self) {
        if let (Some(link), Some(map)) = (&mut self.link, &self.last)
            && link.send(map).is_err()
        {
            link.life.end();
            self.link = None;
        }
    }
}

impl CopiedMap {
    pub fn new(path: &Path, reserve: Arc<DiskReserve>) -> CopiedMap {
        CopiedMap { file: Arc::new(FileStore::new(path)), reserve, state: Arc::default() }
    }

    fn attach(&self, link: MapLink) {
        let mut state = self.state.lock();
        state.link = Some(link);
        state.send();
    }
}

impl MapStore for CopiedMap {
    fn load(&self) -> Result<Option<Map>, StoreError> {
        self.file.load()
    }

    fn save(&self, map: &Map) -> Result<(), StoreError> {
        self.reserve.with(|| self.file.save(map), StoreError::is_no_space)?;
        let mut state = self.state.lock();
        state.last = Some(map.clone());
        state.send();
        Ok(())
    }
}
