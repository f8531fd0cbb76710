//! Compares what other clients read with what must be there.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::op::log::Change;
use nuri_proto::op::meta::{
    Acquire, AcquireReply, Attr, LeaseMode, Lookup, ReadDir, ReadDirReply, SessionClose,
    SessionOpen, StatFs, WithAttrs, XattrAll,
};

use super::World;
use super::client::Client;
use super::tree::{Body, Item, Note, Tree};
use crate::check::{Wrong, wrong};

/// Rounds of so much time in which everybody comes to rest.
const ROUNDS: u32 = 3000;
const FAULTY_ROUNDS: u32 = 300;
const ROUND: Duration = Duration::from_millis(100);

impl World {
    /// Whether what the client was just told of the inode can be compared. Nobody else may have
    /// steps of it that are not told; its own are newer than the answer.
    fn is_comparable(&self, c: usize, ino: Ino) -> Result<bool, Wrong> {
        if !self.ghosts.is_empty() {
            return Ok(false);
        }
        let meets = |note: &Note| note.touched.contains(&ino);
        let others = self.clients.iter().enumerate().filter(|(other, _)| *other != c);
        let mut left = others.flat_map(|(_, other)| &other.undecided);
        let mut dead = self.dead.iter().flat_map(|(_, left)| left);
        if let Some(note) = left.find(|note| meets(note)).or_else(|| dead.find(|n| meets(n))) {
            return Err(wrong!("client {c} has {ino}, of which is not told: {:?}", note.step));
        }
        Ok(!self.clients[c].undecided.iter().any(meets))
    }

    /// Whether the inode has lost its last name by a step that another client has not heard to be
    /// done. The lease ended with that step, so it leaves without being recalled.
    fn is_removed_unheard(&self, c: usize, attr: &Attr) -> bool {
        let others = self.clients.iter().enumerate().filter(|(other, _)| *other != c);
        let left = others.flat_map(|(_, other)| &other.undecided);
        let dead = self.dead.iter().flat_map(|(_, left)| left);
        let mut meets = left.chain(dead).filter(|note| note.touched.contains(&attr.ino));
        let is_gone = attr.nlink == 0 && !self.latest.0.contains_key(&attr.ino);
        let removes =
            |note: &Note| matches!(note.step.change, Change::Unlink(..) | Change::Rename(..));
        is_gone && self.ghosts.is_empty() && meets.next_back().is_some_and(removes)
    }

    pub fn check_attr(&mut self, c: usize, attr: &Attr) -> Result<bool, Wrong> {
        self.report.looks += 1;
        if self.is_removed_unheard(c, attr) {
            return Ok(true);
        }
        if !self.is_comparable(c, attr.ino)? {
            return Ok(false);
        }
        match self.latest.0.get(&attr.ino) {
            None if attr.nlink == 0 => Ok(true),
            Some(item) if item.attr == *attr => Ok(true),
            item => Err(wrong!("client {c} reads {attr:?}, must be {item:?}")),
        }
    }

    /// What came with a lease; says whether it is the latest.
    pub fn check_inode(&mut self, c: usize, reply: &AcquireReply) -> Result<bool, Wrong> {
        let attr = reply.inode.attr;
        if !self.check_attr(c, &attr)? {
            return Ok(false);
        }
        let Some(item) = self.latest.0.get(&attr.ino) else { return Ok(true) };
        let found = body_of(reply);
        match (&item.body, &found) {
            (Body::Directory(_), None) => Ok(true),
            (body, Some(found)) if body == found => Ok(true),
            (body, _) => Err(wrong!("client {c} reads {found:?} of {attr:?}, must be {body:?}")),
        }
    }

    /// Reads all names of a directory under the lease that it was just given.
    pub fn read_names(&mut self, c: usize, dir: Ino) -> Result<(), Wrong> {
        let attrs = if self.rng.one_in(2) { WithAttrs::Yes } else { WithAttrs::No };
        let Some(names) = self.list(c, dir, attrs)? else { return Ok(()) };
        if !self.check_names(c, dir, &names)? {
            return Ok(());
        }
        let is_dir = self.latest.names(dir).is_some();
        if let Some(held) = self.clients[c].holds.get_mut(&dir) {
            held.is_known = held.hold.mode.is_some() && is_dir;
        }
        Ok(())
    }

    /// All names of a directory, as a client knows them; says whether they could be compared.
    pub fn check_names(
        &self,
        c: usize,
        dir: Ino,
        names: &BTreeMap<Vec<u8>, Ino>,
    ) -> Result<bool, Wrong> {
        if !self.is_comparable(c, dir)? {
            return Ok(false);
        }
        match self.latest.names(dir) {
            Some(wanted) if wanted != names => {
                Err(wrong!("client {c} finds {names:?} in {dir}, must be {wanted:?}"))
            }
            _ => Ok(true),
        }
    }

    fn list(
        &mut self,
        c: usize,
        ino: Ino,
        attrs: WithAttrs,
    ) -> Result<Option<BTreeMap<Vec<u8>, Ino>>, Wrong> {
        let (mut names, mut cookie) = (BTreeMap::new(), 0);
        loop {
            let max = 1 + self.rng.below(6) as u32;
            let back = self.ask(c, &ReadDir { ino, cookie, max, attrs })?;
            let Some(Ok(ReadDirReply { entries, end, .. })) = back else { return Ok(None) };
            for entry in entries {
                cookie = entry.cookie;
                if let Some(inode) = entry.inode {
                    let is_new = self.check_attr(c, &inode.attr)?;
                    let client = &mut self.clients[c];
                    let counts = client.take_lease(entry.ino, inode.lease);
                    if let Some(hold) = client.holds.get_mut(&entry.ino).filter(|_| counts) {
                        hold.is_known |= is_new && !inode.attr.is_dir();
                    }
                }
                // What it logged itself may be done between two pages.
                if names.insert(entry.name, entry.ino).is_some() {
                    let is_moved = !self.clients[c].undecided.is_empty();
                    return is_moved
                        .then_some(None)
                        .ok_or_else(|| wrong!("a name is twice in {ino}"));
                }
            }
            if end {
                return Ok(Some(names));
            }
        }
    }

    /// Looks a name up that somebody may have changed.
    pub fn look(&mut self, c: usize) -> Result<(), Wrong> {
        let all: Vec<Ino> =
            self.latest.0.keys().copied().filter(|i| self.is_told_dir(*i)).collect();
        let Some(parent) = self.pick(&all) else { return Ok(()) };
        let name: Vec<u8> = format!("n{}", self.rng.below(6)).into();
        let back = self.ask(c, &Lookup { parent, name: name.clone() })?;
        let Some(Ok(reply)) = back else { return Ok(()) };
        if !self.is_comparable(c, parent)? {
            return Ok(());
        }
        let wanted = self.latest.names(parent).and_then(|names| names.get(&name)).copied();
        let found = reply.inode.as_ref().map(|inode| inode.attr.ino);
        if wanted != found {
            return Err(wrong!("client {c}: {name:?} in {parent} is {found:?}, not {wanted:?}"));
        }
        self.clients[c].take_lease(parent, reply.dir_lease);
        if let Some(inode) = reply.inode {
            self.check_attr(c, &inode.attr)?;
            self.clients[c].take_lease(inode.attr.ino, inode.lease);
        }
        self.look_at_xattrs(c)
    }

    /// Reads the extended attributes of something that somebody may have changed, under no lease.
    fn look_at_xattrs(&mut self, c: usize) -> Result<(), Wrong> {
        let told: Vec<Ino> = self.durable.0.keys().copied().collect();
        let Some(ino) = self.pick(&told) else { return Ok(()) };
        let Some(Ok(found)) = self.ask(c, &XattrAll { ino })? else { return Ok(()) };
        if !self.is_comparable(c, ino)? {
            return Ok(());
        }
        let wanted = self.latest.0.get(&ino).map(|item| &item.xattrs);
        let found: BTreeMap<_, _> = found.into_iter().collect();
        match wanted.is_none_or(|wanted| *wanted == found) {
            true => Ok(()),
            false => Err(wrong!("client {c}: attributes of {ino} are {found:?}, not {wanted:?}")),
        }
    }

    fn is_told_dir(&self, ino: Ino) -> bool {
        self.latest.names(ino).is_some() && self.durable.names(ino).is_some()
    }

    /// No two clients hold what excludes each other.
    pub fn check_leases(&self) -> Result<(), Wrong> {
        let mut held: BTreeMap<Ino, Vec<(usize, LeaseMode)>> = BTreeMap::new();
        for (c, client) in self.clients.iter().enumerate().filter(|(_, c)| !c.is_gone) {
            // Nothing is done under the lease of what a client has removed for good.
            let used = client.holds.iter().filter(|(_, held)| held.gone_at.is_none());
            for (ino, held_here) in used {
                if let Some(mode) = held_here.hold.mode {
                    held.entry(*ino).or_default().push((c, mode));
                }
            }
        }
        let excludes = |all: &Vec<(usize, LeaseMode)>| {
            all.len() > 1 && all.iter().any(|(_, mode)| *mode == LeaseMode::Write)
        };
        match held.iter().find(|(_, all)| excludes(all)) {
            Some((ino, all)) => Err(wrong!("inode {ino} is held by {all:?}")),
            None => Ok(()),
        }
    }

    /// Somebody's session ended: a beginning of what it had not told is there. Nobody does anything
    /// new until that is known.
    pub fn bury(&mut self) -> Result<(), Wrong> {
        if self.ghosts.is_empty() {
            return Ok(());
        }
        let is_faulty = self.is_faulty;
        let found = self.read_all()?;
        self.is_faulty = is_faulty;
        let mut base = self.durable.clone();
        for left in std::mem::take(&mut self.ghosts) {
            let kept = fit(&mut base, &left, &found)?;
            self.report.kept += kept as u64;
            self.report.gone += (left.len() - kept) as u64;
        }
        compare(&found, &base)?;
        (self.latest, self.durable) = (base.clone(), base);
        Ok(())
    }

    /// Everybody tells everything; then somebody reads everything. Without faults in the end: where
    /// the server falls all the time, nobody comes to an end.
    fn read_all(&mut self) -> Result<Tree, Wrong> {
        let mut found = Tree::default();
        let mut ghosts = self.ghosts.len();
        for round in 0..ROUNDS {
            self.is_faulty &= round < FAULTY_ROUNDS;
            self.pass(ROUND)?;
            let mut is_quiet = self.dead.iter().all(|(_, left)| left.is_empty());
            let mut reader = None;
            for c in 0..self.clients.len() {
                if self.clients[c].frozen <= self.meta.now() && self.keep_up(c)? {
                    self.sync(c)?;
                    reader = (!self.clients[c].is_gone).then_some(c).or(reader);
                }
                is_quiet &= self.clients[c].undecided.is_empty();
            }
            self.check_leases()?;
            if ghosts != self.ghosts.len() {
                (found, ghosts) = (Tree::default(), self.ghosts.len());
            }
            if let Some(reader) = reader.filter(|_| is_quiet)
                && self.read_on(reader, &mut found)?
                && ghosts == self.ghosts.len()
            {
                return Ok(found);
            }
        }
        Err("what clients left cannot be read".into())
    }

    /// Reads what is missing; says whether nothing is.
    fn read_on(&mut self, c: usize, found: &mut Tree) -> Result<bool, Wrong> {
        let mut todo: Vec<Ino> = self.top.clone();
        while let Some(ino) = todo.pop() {
            if let Entry::Vacant(missing) = found.0.entry(ino) {
                let Some(item) = self.read_item(c, ino)? else { return Ok(false) };
                missing.insert(item);
            }
            todo.extend(found.names(ino).into_iter().flat_map(BTreeMap::values));
        }
        Ok(true)
    }

    fn read_item(&mut self, c: usize, ino: Ino) -> Result<Option<Item>, Wrong> {
        let back = self.ask(c, &Acquire { ino, mode: LeaseMode::Read })?;
        let reply = match back {
            Some(Ok(reply)) => reply,
            Some(Err(status)) if status != Status::RETRY && status != Status::SESSION_GONE => {
                return Err(wrong!("inode {ino} cannot be read: {status}"));
            }
            _ => return Ok(None),
        };
        self.clients[c].take_lease(ino, reply.inode.lease);
        let attr = reply.inode.attr;
        let body = match body_of(&reply) {
            Some(body) => body,
            None => match self.list(c, ino, WithAttrs::No)? {
                Some(names) => Body::Directory(names),
                None => return Ok(None),
            },
        };
        let xattrs = match self.ask(c, &XattrAll { ino })? {
            Some(Ok(all)) => all.into_iter().collect(),
            _ => return Ok(None),
        };
        Ok(Some(Item { attr, body, xattrs }))
    }

    /// The end: all is told, the server crashes once more, all is there and nothing else.
    pub fn finish(&mut self) -> Result<(), Wrong> {
        self.is_faulty = false;
        self.late.clear();
        for _ in 0..2 {
            let found = self.read_all()?;
            if !self.ghosts.is_empty() {
                self.bury()?;
            }
            compare(&found, &self.latest)?;
            compare(&self.durable, &self.latest)?;
            self.crash()?;
        }
        for _ in 0..ROUNDS {
            self.pass(ROUND)?;
            let mut is_quiet = self.dead.is_empty();
            for c in 0..self.clients.len() {
                is_quiet &= self.keep_up(c)?;
                self.release_orphans(c);
                let client = &self.clients[c];
                is_quiet &= client.errands.is_empty() && client.orphans.is_empty();
            }
            if is_quiet {
                return self.count();
            }
        }
        Err("clients do not come to rest".into())
    }

    /// Everybody goes: no inode is left that has no name.
    fn count(&mut self) -> Result<(), Wrong> {
        for c in 0..self.clients.len() {
            let session = std::mem::replace(&mut self.clients[c], Client::new()).session;
            self.send(session, None, &SessionClose {}, &[])?;
        }
        for _ in 0..100 {
            self.pass(ROUND)?;
        }
        let open = SessionOpen { client: "counter".into() };
        let Some(Ok(reply)) = self.send(SessionId(0), None, &open, &[])? else {
            return Err("no session to count in".into());
        };
        let Some(Ok(counted)) = self.send(reply.session, None, &StatFs {}, &[])? else {
            return Err("inodes cannot be counted".into());
        };
        let wanted = self.latest.0.len() as u64 + 1;
        match counted.inodes == wanted {
            true => self.meta.crash(&mut self.rng),
            false => Err(wrong!("{} inodes, must be {wanted}", counted.inodes)),
        }
    }
}

fn body_of(reply: &AcquireReply) -> Option<Body> {
    let data = |record: &nuri_proto::op::meta::FileRecord| record.inline.clone();
    match (&reply.symlink, &reply.file) {
        (Some(to), _) => Some(Body::Link(to.clone())),
        (None, Some(record)) => Some(Body::File(data(record).unwrap_or_default())),
        (None, None) if reply.inode.attr.is_dir() => None,
        (None, None) => Some(Body::Special),
    }
}

/// Applies as many of the steps as were done; says how many.
fn fit(base: &mut Tree, left: &[Note], found: &Tree) -> Result<usize, Wrong> {
    let touched: BTreeSet<Ino> = left.iter().flat_map(|note| note.touched.clone()).collect();
    let mut tree = base.clone();
    for done in 0..=left.len() {
        if touched.iter().all(|ino| tree.0.get(ino) == found.0.get(ino)) {
            *base = tree;
            return Ok(done);
        }
        if let Some(note) = left.get(done) {
            tree.apply(note)?;
        }
    }
    let steps: Vec<_> = left.iter().map(|note| &note.step).collect();
    Err(wrong!("no beginning of what was left makes what is there: {steps:?}"))
}

fn compare(found: &Tree, wanted: &Tree) -> Result<(), Wrong> {
    let inos: BTreeSet<_> = found.0.keys().chain(wanted.0.keys()).collect();
    for ino in inos {
        let (found, wanted) = (found.0.get(ino), wanted.0.get(ino));
        if found != wanted {
            return Err(wrong!("inode {ino} is {found:?}, must be {wanted:?}"));
        }
    }
    Ok(())
}
