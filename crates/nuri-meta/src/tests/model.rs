//! A simple tree in memory, driven by the same random operations as the server.

use std::collections::BTreeMap;

use super::*;
use crate::namespace::schema::{self, Body, Entry, Inode, entry_key, inode_key};
use nuri_kv::engine::Engine;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// One inode of the model.
#[derive(Clone, Debug)]
struct Node {
    ino: Ino,
    kind: char,
    mode: u32,
    size: u64,
    nlink: u32,
    parent: usize,
    children: BTreeMap<String, usize>,
    xattrs: BTreeMap<String, u8>,
}

#[derive(Clone)]
pub struct Tree {
    nodes: Vec<Node>,
}

/// What the tree looks like: one line per path.
pub type Picture = BTreeMap<String, String>;

impl Tree {
    pub fn new() -> Tree {
        let mut tree = Tree { nodes: Vec::new() };
        tree.add(Ino::ROOT, 'd', 0);
        tree
    }

    fn add(&mut self, ino: Ino, kind: char, parent: usize) -> usize {
        let (mode, nlink, size) = match kind {
            'd' => (0o755, 2, 0),
            'l' => (0o777, 1, 4),
            _ => (0o644, 1, 0),
        };
        let (children, xattrs) = (BTreeMap::new(), BTreeMap::new());
        self.nodes.push(Node { ino, kind, mode, size, nlink, parent, children, xattrs });
        self.nodes.len() - 1
    }

    fn live(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|n| self.nodes[*n].nlink > 0).collect()
    }

    fn dirs(&self) -> Vec<usize> {
        self.live().into_iter().filter(|n| self.nodes[*n].kind == 'd').collect()
    }

    fn child(&self, dir: usize, name: &str) -> Option<usize> {
        self.nodes[dir].children.get(name).copied()
    }

    fn link(&mut self, dir: usize, name: &str, node: usize) {
        self.nodes[dir].children.insert(name.into(), node);
        self.nodes[dir].size += 1;
        if self.nodes[node].kind == 'd' {
            self.nodes[dir].nlink += 1;
            self.nodes[node].parent = dir;
        }
    }

    fn take(&mut self, dir: usize, name: &str) -> Option<usize> {
        let node = self.nodes[dir].children.remove(name)?;
        self.nodes[dir].size -= 1;
        if self.nodes[node].kind == 'd' {
            self.nodes[dir].nlink -= 1;
        }
        Some(node)
    }

    fn drop_name(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        n.nlink = if n.kind == 'd' { 0 } else { n.nlink - 1 };
    }

    fn is_below(&self, mut node: usize, top: usize) -> bool {
        loop {
            if node == top {
                return true;
            }
            if node == 0 {
                return false;
            }
            node = self.nodes[node].parent;
        }
    }

    pub fn picture(&self) -> Picture {
        let mut out = Picture::new();
        self.draw(0, "", &mut out);
        out
    }

    fn draw(&self, node: usize, path: &str, out: &mut Picture) {
        let n = &self.nodes[node];
        let line =
            format!("{} {} {:o} {} {} {:?}", n.ino, n.kind, n.mode, n.nlink, n.size, n.xattrs);
        out.insert(path.into(), line);
        for (name, child) in &n.children {
            self.draw(*child, &format!("{path}/{name}"), out);
        }
    }

    /// Runs one random operation on server and model; both must agree on its outcome.
    pub fn step(&mut self, c: &Client<'_>, rng: &mut Rng) -> String {
        let dirs = self.dirs();
        let dir = dirs[rng.below(dirs.len() as u64) as usize];
        let name = NAMES[rng.below(6) as usize];
        let (what, got, wanted) = match rng.below(13) {
            0..4 => self.step_make(c, dir, name, rng),
            4 => self.step_link(c, dir, name, rng),
            5..7 => self.step_remove(c, dir, name, rng),
            7..10 => {
                let to =
                    (dirs[rng.below(dirs.len() as u64) as usize], NAMES[rng.below(6) as usize]);
                self.step_rename(c, (dir, name), to, rng)
            }
            10 => self.step_xattr(c, rng),
            _ => self.step_attr(c, rng),
        };
        assert_eq!(got, wanted, "{what}");
        what
    }

    fn step_make(&mut self, c: &Client<'_>, dir: usize, name: &str, rng: &mut Rng) -> Outcome {
        let (kind, how) = match rng.below(5) {
            0..2 => ('d', MakeKind::Directory),
            2..4 => ('f', MakeKind::File),
            _ => ('l', MakeKind::Symlink(b"link".to_vec())),
        };
        let got = c.make(self.nodes[dir].ino, name, how);
        let wanted = if self.child(dir, name).is_some() { Err(Status::EXIST) } else { Ok(()) };
        if let Ok(ino) = got {
            let node = self.add(ino, kind, dir);
            self.link(dir, name, node);
        }
        (format!("make {kind} {name} in {dir}"), got.map(drop), wanted)
    }

    fn step_link(&mut self, c: &Client<'_>, dir: usize, name: &str, rng: &mut Rng) -> Outcome {
        let live = self.live();
        let node = live[rng.below(live.len() as u64) as usize];
        let (ino, parent) = (self.nodes[node].ino, self.nodes[dir].ino);
        let got = c.put(Link { ino, parent, name: name.into() }).map(drop);
        let wanted = if self.child(dir, name).is_some() {
            Err(Status::EXIST)
        } else if self.nodes[node].kind == 'd' {
            Err(Status::PERM)
        } else {
            self.link(dir, name, node);
            self.nodes[node].nlink += 1;
            Ok(())
        };
        (format!("link {node} as {name} in {dir}"), got, wanted)
    }

    fn step_remove(&mut self, c: &Client<'_>, dir: usize, name: &str, rng: &mut Rng) -> Outcome {
        let ino = self.nodes[dir].ino;
        let as_dir = rng.one_in(2);
        let got = if as_dir { c.rmdir(ino, name) } else { c.unlink(ino, name) };
        if let (Ok(RemoveReply { ino, orphan: true }), true) = (&got, rng.one_in(2)) {
            c.put(OrphanRelease { inos: vec![*ino] }).unwrap();
        }
        let wanted = match self.child(dir, name).map(|n| (n, &self.nodes[n])) {
            None => Err(Status::NOENT),
            Some((_, n)) if !as_dir && n.kind == 'd' => Err(Status::ISDIR),
            Some((_, n)) if as_dir && n.kind != 'd' => Err(Status::NOTDIR),
            Some((_, n)) if as_dir && !n.children.is_empty() => Err(Status::NOTEMPTY),
            Some((node, _)) => {
                self.take(dir, name);
                self.drop_name(node);
                Ok(())
            }
        };
        (format!("remove {name} in {dir}, directory: {as_dir}"), got.map(drop), wanted)
    }

    fn step_rename(
        &mut self,
        c: &Client<'_>,
        from: (usize, &str),
        to: (usize, &str),
        rng: &mut Rng,
    ) -> Outcome {
        let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]
            [rng.below(3) as usize];
        let inos = (self.nodes[from.0].ino, self.nodes[to.0].ino);
        let got = c.rename((inos.0, from.1), (inos.1, to.1), mode).map(drop);
        (format!("rename {from:?} {to:?} {mode:?}"), got, self.rename(from, to, mode))
    }

    fn rename(
        &mut self,
        from: (usize, &str),
        to: (usize, &str),
        mode: RenameMode,
    ) -> Result<(), Status> {
        let moved = self.child(from.0, from.1).ok_or(Status::NOENT)?;
        let other = self.child(to.0, to.1);
        let moves_dir = self.nodes[moved].kind == 'd';
        if moves_dir && self.is_below(to.0, moved) {
            return Err(Status::INVAL);
        }
        let Some(other) = other else {
            if mode == RenameMode::Exchange {
                return Err(Status::NOENT);
            }
            self.take(from.0, from.1);
            self.link(to.0, to.1, moved);
            return Ok(());
        };
        let other_dir = self.nodes[other].kind == 'd';
        match mode {
            RenameMode::NoReplace | RenameMode::WhiteoutNoReplace => return Err(Status::EXIST),
            RenameMode::Exchange => {
                if other_dir && self.is_below(from.0, other) {
                    return Err(Status::INVAL);
                }
                self.take(from.0, from.1);
                self.take(to.0, to.1);
                self.link(from.0, from.1, other);
                if from != to {
                    self.link(to.0, to.1, moved);
                }
                return Ok(());
            }
            _ if moved == other => return Ok(()),
            RenameMode::Replace | RenameMode::Whiteout => {}
        }
        match (moves_dir, other_dir) {
            (true, false) => return Err(Status::NOTDIR),
            (false, true) => return Err(Status::ISDIR),
            (true, true) if !self.nodes[other].children.is_empty() => {
                return Err(Status::NOTEMPTY);
            }
            _ => {}
        }
        self.take(to.0, to.1);
        self.drop_name(other);
        self.take(from.0, from.1);
        self.link(to.0, to.1, moved);
        Ok(())
    }

    fn step_xattr(&mut self, c: &Client<'_>, rng: &mut Rng) -> Outcome {
        let live = self.live();
        let node = live[rng.below(live.len() as u64) as usize];
        let (ino, name) = (self.nodes[node].ino, NAMES[rng.below(2) as usize]);
        let xattrs = &mut self.nodes[node].xattrs;
        if rng.one_in(3) {
            let got = c.put(XattrRemove { ino, name: name.into() });
            let wanted = xattrs.remove(name).map(drop).ok_or(Status::NODATA);
            return (format!("remove attribute {name} of {node}"), got, wanted);
        }
        let (value, mode) = (rng.next() as u8, XattrMode::Any);
        let (bytes, group_id) = (vec![value], SetGroupId::Keep);
        let got = c.put(XattrSet { ino, name: name.into(), value: bytes, mode, group_id });
        xattrs.insert(name.into(), value);
        (format!("set attribute {name} of {node}"), got, Ok(()))
    }

    fn step_attr(&mut self, c: &Client<'_>, rng: &mut Rng) -> Outcome {
        let live = self.live();
        let node = live[rng.below(live.len() as u64) as usize];
        let n = &mut self.nodes[node];
        if n.kind == 'f' && rng.one_in(2) {
            let size = rng.below(3) * 100;
            // What was cut off is gone.
            c.put(TruncateDone { ino: n.ino }).unwrap();
            let got = if rng.one_in(2) {
                c.acquire(n.ino, LeaseMode::Write).unwrap();
                c.publish(n.ino, size).map(drop)
            } else {
                c.resize(n.ino, size).map(drop)
            };
            n.size = size;
            return (format!("resize {node} to {size}"), got, Ok(()));
        }
        let mode = rng.below(0o1000) as u32;
        n.mode = mode;
        let got = c.put(SetAttr { ino: n.ino, mode: Some(mode), ..SetAttr::default() });
        (format!("mode of {node}"), got.map(drop), Ok(()))
    }
}

type Outcome = (String, Result<(), Status>, Result<(), Status>);

/// The same picture from the records of a store.
pub fn picture(engine: &dyn Engine) -> Picture {
    let mut out = Picture::new();
    draw(engine, Ino::ROOT, "", &mut out);
    out
}

fn draw(engine: &dyn Engine, ino: Ino, path: &str, out: &mut Picture) {
    let inode: Inode = schema::decode(&engine.get(&inode_key(ino)).unwrap().unwrap()).unwrap();
    let kind = match inode.body {
        Body::Directory(_) => 'd',
        Body::Symlink(_) => 'l',
        _ => 'f',
    };
    let prefix = schema::xattr_prefix(ino);
    let xattr = |(k, v): (Vec<u8>, Vec<u8>)| {
        (String::from_utf8(schema::key_tail(&k).to_vec()).unwrap(), v[0])
    };
    let found = engine.scan(&prefix, &prefix, usize::MAX).unwrap();
    let xattrs: BTreeMap<_, _> = found.into_iter().map(xattr).collect();
    let a = &inode.attr;
    let line = format!("{ino} {kind} {:o} {} {} {xattrs:?}", a.mode & 0o7777, a.nlink, a.size);
    out.insert(path.into(), line);
    if kind == 'd' {
        let prefix = entry_key(ino, b"");
        for (key, value) in engine.scan(&prefix, &prefix, usize::MAX).unwrap() {
            let name = String::from_utf8(schema::key_tail(&key).to_vec()).unwrap();
            let entry: Entry = schema::decode(&value).unwrap();
            draw(engine, entry.ino, &format!("{path}/{name}"), out);
        }
    }
}

#[test]
fn random_operations_agree_with_a_simple_tree() {
    for seed in 0..12 {
        let mut world = World::new();
        let mut id = world.client().id;
        let (mut tree, mut rng) = (Tree::new(), Rng::new(seed));
        let mut sequence = 0;
        for part in 0..6 {
            let c = Client::known(&world, id);
            c.sequence.store(sequence, Ordering::SeqCst);
            for _ in 0..40 {
                tree.step(&c, &mut rng);
            }
            assert_eq!(picture(&*world.server.engine), tree.picture(), "seed {seed} part {part}");
            world.fsck();
            sequence = c.sequence.load(Ordering::SeqCst);
            if rng.one_in(2) {
                world = world.crash(rng.next());
                let c = Client::known(&world, id);
                c.reclaim(Reclaim::default()).unwrap();
                c.get(StatFs {}).unwrap();
                assert_eq!(picture(&*world.server.engine), tree.picture(), "seed {seed} {part}");
                world.fsck();
            } else {
                Client::known(&world, id).get(SessionClose {}).unwrap();
                id = world.client().id;
                sequence = 0;
            }
        }
    }
}
