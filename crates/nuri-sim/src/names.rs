//! The metadata side: the real server on memory disks, a few names per client, and what each call
//! must answer.
//!
//! Every client works in a directory of its own, because a call that waits for another client's
//! lease would stop the only thread. Calls get lost, answers get lost, and the server crashes in
//! the middle. The same (session, slot, sequence) is sent again until it is answered.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use nuri_client::machine::Publication;
use nuri_io::clock::{Clock, ManualClock};
use nuri_io::rng::Rng;
use nuri_meta::namespace::txn::ClusterView;
use nuri_proto::Status;
use nuri_proto::clock::{CLOCKS_APART, GRACE};
use nuri_proto::id::{GroupId, Ino, ObjectId, PoolId, SessionId};
use nuri_proto::layout::Shape;
use nuri_proto::layout::{ChunkSize, LayoutPolicy};
use nuri_proto::op::Call;
use nuri_proto::op::meta::{
    Acquire, Attr, Exclusive, Extend, FileRecord, GetAttr, LayoutSet, LeaseMode, Lookup, Make,
    MakeKind, OrphanRelease, Reclaim, Release, RemoveKind, Rename, RenameMode, SessionClose,
    SessionOpen, SetAttr, Time, TruncateDone, Unlink,
};
use nuri_rpc::CallContext;

use crate::check::{Wrong, wrong};
use crate::meta::{Meta, NoAnswer};

struct Pools(u32);

impl ClusterView for Pools {
    fn groups(&self, _: PoolId, _: Shape) -> Result<Vec<GroupId>, Status> {
        Ok((0..self.0).map(GroupId).collect())
    }
}

/// One client's standing: its directory and the names that must be in it.
struct Standing {
    session: SessionId,
    /// Files that are held for writing.
    held: Vec<Ino>,
    dir: Ino,
    sequence: u64,
    names: BTreeMap<String, Ino>,
}

pub struct Names {
    meta: Meta,
    clients: Vec<Standing>,
    stamp: HashMap<Ino, Time>,
}

/// Never more apart from what it showed before than clocks that are kept right are.
pub(crate) fn step_wall(clock: &ManualClock, rng: &mut Rng) {
    let ahead = Duration::from_millis(rng.below(CLOCKS_APART.as_millis() as u64 - 1));
    clock.set_wall(clock.monotonic() + ahead);
}

impl Names {
    /// # Errors
    /// Where the server does not start.
    pub fn new(targets: u32) -> Result<Names, Wrong> {
        let meta = Meta::new(Arc::new(Pools(targets)), 64 << 10)?;
        Ok(Names { meta, clients: Vec::new(), stamp: HashMap::new() })
    }

    pub fn crashes(&self) -> u64 {
        self.meta.crashes
    }

    pub fn calls(&self) -> u64 {
        self.meta.calls
    }

    /// Power is lost and comes back.
    ///
    /// # Errors
    /// Where what is left does not open or is not clean.
    pub fn crash(&mut self, rng: &mut Rng) -> Result<(), Wrong> {
        self.meta.crash(rng)?;
        let (server_boot, mut known) = (self.meta.boot, 0);
        for client in 0..self.clients.len() {
            let held = self.clients[client].held.iter();
            let leases = held.map(|ino| (*ino, LeaseMode::Write)).collect();
            let call = Reclaim { server_boot, leases, ..Reclaim::default() };
            match self.call(client, 0, &call) {
                Ok(_) => known += 1,
                // It was closed, and nobody heard the answer.
                Err(NoAnswer::Failed(Status::SESSION_GONE)) => {}
                Err(_) => return Err("reclaim failed".into()),
            }
        }
        // A session whose opening was never answered is nobody's: grace has to run out for it.
        if let Some(server) = self.meta.server()
            && server.sessions().len() > known
        {
            for _ in 0..GRACE.as_secs() {
                self.meta.clock().advance(Duration::from_secs(1));
                server.tick().map_err(|e| wrong!("end of grace: {e}"))?;
            }
        }
        Ok(())
    }

    /// Steps the wall clock, mostly backwards, as far as clocks that are kept right do: stamps
    /// follow one that was wrong.
    pub fn step_clock(&self, rng: &mut Rng) {
        step_wall(self.meta.clock(), rng);
    }

    fn call<C: Call>(
        &mut self,
        client: usize,
        sequence: u64,
        call: &C,
    ) -> Result<C::Reply, NoAnswer> {
        self.call_with(client, sequence, call, &[])
    }

    fn call_with<C: Call>(
        &mut self,
        client: usize,
        sequence: u64,
        call: &C,
        payload: &[u8],
    ) -> Result<C::Reply, NoAnswer> {
        let session = self.clients.get(client).map_or(0, |c| c.session.0);
        self.meta.call(CallContext { session, slot: 1, sequence, epoch: 0 }, call, payload)
    }

    /// Sends until there is an answer, through losses and crashes.
    fn insist<C: Call>(
        &mut self,
        client: usize,
        rng: &mut Rng,
        call: &C,
    ) -> Result<C::Reply, Wrong> {
        self.insist_with(client, rng, call, &[])
    }

    fn insist_with<C: Call>(
        &mut self,
        client: usize,
        rng: &mut Rng,
        call: &C,
        payload: &[u8],
    ) -> Result<C::Reply, Wrong> {
        self.clients[client].sequence += 1;
        let sequence = self.clients[client].sequence;
        for _ in 0..100 {
            if rng.one_in(40) {
                self.meta.fail_soon(rng);
            }
            if rng.one_in(10) {
                continue;
            }
            let outcome = self.call_with(client, sequence, call, payload);
            let lost_reply = rng.one_in(8);
            match outcome {
                Ok(_) if lost_reply => {}
                Ok(reply) => {
                    if rng.one_in(30) {
                        self.crash(rng)?;
                    }
                    return Ok(reply);
                }
                Err(NoAnswer::Failed(status)) => {
                    return Err(wrong!("client {client} call {:?}: {status:?}", C::OP));
                }
                Err(NoAnswer::Lost) => self.crash(rng)?,
            }
            if rng.one_in(6) {
                self.crash(rng)?;
            }
        }
        Err("a metadata call was never answered".into())
    }

    /// A client comes, with a directory of its own.
    ///
    /// # Errors
    /// As for every call.
    pub fn join(&mut self, rng: &mut Rng) -> Result<usize, Wrong> {
        let client = self.clients.len();
        let (session, dir) = (self.open_session(client, rng)?, Ino::ROOT);
        let (held, names) = Default::default();
        self.clients.push(Standing { session, held, dir, sequence: 0, names });
        let reply =
            self.insist(client, rng, &make(Ino::ROOT, &format!("c{client}"), MakeKind::Directory))?;
        let dir = reply.entry.inode.attr.ino;
        self.clients[client].dir = dir;
        let policy = LayoutPolicy {
            chunk_size: ChunkSize::try_from(64 << 10).map_err(|e| e.to_string())?,
            ..LayoutPolicy::default()
        };
        self.insist(client, rng, &LayoutSet { ino: dir, policy })?;
        // The next client must not have to recall it.
        self.insist(client, rng, &Release { leases: vec![(Ino::ROOT, u64::MAX)] })?;
        Ok(client)
    }

    fn open_session(&mut self, client: usize, rng: &mut Rng) -> Result<SessionId, Wrong> {
        let open = SessionOpen { client: format!("sim{client}") };
        loop {
            match self.call(client, 0, &open) {
                Ok(reply) => return Ok(reply.session),
                Err(NoAnswer::Lost) => self.crash(rng)?,
                Err(NoAnswer::Failed(status)) => return Err(wrong!("no session: {status:?}")),
            }
        }
    }

    /// The client died: its session ends, and another one begins that holds nothing yet.
    ///
    /// # Errors
    /// As for every call.
    pub fn died(&mut self, client: usize, rng: &mut Rng) -> Result<(), Wrong> {
        self.clients[client].held.clear();
        loop {
            match self.call(client, 0, &SessionClose {}) {
                Ok(()) | Err(NoAnswer::Failed(Status::SESSION_GONE)) => break,
                Err(NoAnswer::Failed(status)) => return Err(wrong!("no end: {status:?}")),
                Err(NoAnswer::Lost) => self.crash(rng)?,
            }
        }
        self.clients[client].session = self.open_session(client, rng)?;
        self.clients[client].sequence = 0;
        Ok(())
    }

    /// Takes a file over for writing.
    ///
    /// # Errors
    /// As for every call.
    pub fn take_over(
        &mut self,
        client: usize,
        ino: Ino,
        rng: &mut Rng,
    ) -> Result<(Attr, FileRecord), Wrong> {
        // Before the answer: a server that restarts after it is told of the lease.
        self.clients[client].held.push(ino);
        let reply = self.insist(client, rng, &Acquire { ino, mode: LeaseMode::Write })?;
        Ok((reply.inode.attr, reply.file.ok_or("a file without a record")?))
    }

    /// Nothing lies beyond the file's size any more.
    ///
    /// # Errors
    /// As for every call.
    pub fn cut_done(&mut self, client: usize, ino: Ino, rng: &mut Rng) -> Result<(), Wrong> {
        self.insist(client, rng, &TruncateDone { ino })
    }

    /// The file is about to grow.
    ///
    /// # Errors
    /// As for every call.
    pub fn extend(
        &mut self,
        client: usize,
        ino: Ino,
        is_cut_done: bool,
        rng: &mut Rng,
    ) -> Result<(), Wrong> {
        self.insist(client, rng, &Extend { ino, is_cut_done })
    }

    /// A file's size, times and what lies inline.
    ///
    /// # Errors
    /// As for every call, and where the answer tells of another size.
    pub fn publish(
        &mut self,
        client: usize,
        told: &Publication,
        rng: &mut Rng,
    ) -> Result<(), Wrong> {
        let reply = self.insist_with(client, rng, &told.call, &told.inline)?;
        self.stamped(reply.attr.ino, reply.attr.ctime)?;
        match reply.attr.size == told.call.size {
            true => Ok(()),
            false => Err(wrong!("size {} was published as {}", told.call.size, reply.attr.size)),
        }
    }

    /// Makes a file for data.
    ///
    /// # Errors
    /// As for every call.
    pub fn file(
        &mut self,
        client: usize,
        name: &str,
        rng: &mut Rng,
    ) -> Result<(Attr, FileRecord), Wrong> {
        let dir = self.clients[client].dir;
        let reply = self.insist(client, rng, &make(dir, name, MakeKind::File))?;
        let ino = reply.entry.inode.attr.ino;
        self.clients[client].names.insert(name.into(), ino);
        self.take_over(client, ino, rng)
    }

    /// Cuts the file to nothing; it goes on with the object in the answer.
    ///
    /// # Errors
    /// As for every call.
    pub fn empty(&mut self, client: usize, name: &str, rng: &mut Rng) -> Result<ObjectId, Wrong> {
        let ino = self.clients[client].names[name];
        let reply =
            self.insist(client, rng, &SetAttr { ino, size: Some(0), ..SetAttr::default() })?;
        Ok(reply.object)
    }

    /// One random operation on names of one client.
    ///
    /// # Errors
    /// An answer that its directory's content does not allow.
    pub fn step(&mut self, client: usize, rng: &mut Rng) -> Result<(), Wrong> {
        let c = &self.clients[client];
        let (dir, name, to) = (c.dir, format!("n{}", rng.below(4)), format!("n{}", rng.below(4)));
        let known = c.names.get(&name).copied();
        match (rng.below(4), known) {
            (0 | 1, None) => {
                let reply = self.insist(client, rng, &make(dir, &name, MakeKind::File))?;
                self.stamped(reply.entry.inode.attr.ino, reply.entry.inode.attr.ctime)?;
                self.clients[client].names.insert(name, reply.entry.inode.attr.ino);
            }
            (0, Some(ino)) => {
                let call =
                    Unlink { parent: dir, name: name.clone().into(), kind: RemoveKind::File };
                let reply = self.insist(client, rng, &call)?;
                if reply.removed.ino != ino {
                    return Err(wrong!("unlink of {name} removed inode {}", reply.removed.ino));
                }
                self.insist(client, rng, &OrphanRelease { inos: vec![ino] })?;
                self.clients[client].names.remove(&name);
            }
            (1, Some(ino)) => {
                let call = Rename {
                    parent: dir,
                    name: name.clone().into(),
                    new_parent: dir,
                    new_name: to.clone().into(),
                    mode: RenameMode::Replace,
                };
                self.insist(client, rng, &call)?;
                self.clients[client].names.remove(&name);
                self.clients[client].names.insert(to, ino);
            }
            (2, Some(ino)) => {
                let call = SetAttr { ino, mode: Some(rng.below(512) as u32), ..SetAttr::default() };
                let reply = self.insist(client, rng, &call)?;
                self.stamped(ino, reply.inode.attr.ctime)?;
            }
            _ => self.look(client, &name, rng)?,
        }
        Ok(())
    }

    fn look(&mut self, client: usize, name: &str, rng: &mut Rng) -> Result<(), Wrong> {
        let c = &self.clients[client];
        let (parent, wanted) = (c.dir, c.names.get(name).copied());
        let found = self.insist(client, rng, &Lookup { parent, name: name.into() })?;
        let found = found.inode.map(|inode| inode.attr.ino);
        if found != wanted {
            return Err(wrong!("client {client}: {name} is {found:?}, must be {wanted:?}"));
        }
        if let Some(ino) = wanted {
            let attr = self.insist(client, rng, &GetAttr { ino })?.attr;
            self.stamped(ino, attr.ctime)?;
        }
        Ok(())
    }

    /// Stamps never go back.
    fn stamped(&mut self, ino: Ino, ctime: Time) -> Result<(), Wrong> {
        let last = self.stamp.insert(ino, ctime).unwrap_or_default();
        if ctime < last {
            Err(wrong!("inode {ino}: ctime {ctime:?} after {last:?}"))
        } else {
            Ok(())
        }
    }

    /// The end: one more crash, then every name must be as it was answered.
    ///
    /// # Errors
    /// What is missing.
    pub fn finish(&mut self, rng: &mut Rng) -> Result<(), Wrong> {
        self.crash(rng)?;
        for client in 0..self.clients.len() {
            for name in 0..4 {
                self.look(client, &format!("n{name}"), rng)?;
            }
            let names: Vec<String> = self.clients[client].names.keys().cloned().collect();
            for name in names {
                self.look(client, &name, rng)?;
            }
        }
        self.crash(rng)
    }
}

fn make(parent: Ino, name: &str, kind: MakeKind) -> Make {
    let exclusive = Exclusive::Yes;
    Make { parent, name: name.into(), kind, mode: 0o755, umask: 0, uid: 0, gid: 0, exclusive }
}
