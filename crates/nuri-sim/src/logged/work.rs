//! What programs on the clients do, in directories that their client holds exclusively, by the
//! journal.

use nuri_client::lease::state::LeaseState;
use nuri_io::clock::Clock;
use nuri_proto::change::S_IFCHR;
use nuri_proto::id::Ino;
use nuri_proto::op::log::{Change, Fate, Step};
use nuri_proto::op::meta::{
    Extend, LeaseMode, Link, Make, MakeKind, Publish, PublishData, RemoveKind, Rename, RenameMode,
    SetAttr, SetGroupId, SetTime, Time, Unlink, XattrMode, XattrRemove, XattrSet,
};
use nuri_proto::xattr::{ACL_ACCESS, ACL_DEFAULT, is_acl};

use super::client::{Held, Wish};
use super::tree::{Body, Note};
use super::{World, make};
use crate::check::Wrong;

/// Different names in a directory.
const NAMES: u64 = 6;
/// Times that a lease is asked for.
const PATIENCE: u32 = 40;

impl World {
    /// One of them.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.rng.below(from.len() as u64) as usize).copied()
    }

    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.rng.below(NAMES)).into()
    }

    /// Wishes for a lease: mostly for a directory of all.
    pub fn want_something(&mut self, c: usize) -> Result<(), Wrong> {
        if self.clients[c].wish.is_some() {
            return Ok(());
        }
        let all: Vec<Ino> = self.latest.0.keys().copied().collect();
        let top = self.top.clone();
        let ino = if self.rng.one_in(3) { self.pick(&all) } else { self.pick(&top) };
        let mode = if self.rng.one_in(4) { LeaseMode::Read } else { LeaseMode::Write };
        self.clients[c].wish = ino.map(|ino| Wish { ino, mode, patience: PATIENCE });
        Ok(())
    }

    /// Directories that it may log changes in.
    fn own_directories(&self, c: usize) -> Vec<Ino> {
        let client = &self.clients[c];
        let is_own = |ino: &Ino| self.latest.names(*ino).is_some() && client.is_alone(*ino);
        client.holds.keys().copied().filter(is_own).collect()
    }

    /// Changes something in a directory of its own, if it can.
    pub fn log_something(&mut self, c: usize) -> Result<(), Wrong> {
        let own = self.own_directories(c);
        let Some(dir) = self.pick(&own) else { return Ok(()) };
        let name = self.name();
        let child = self.latest.names(dir).and_then(|names| names.get(&name)).copied();
        if !self.clients[c].queue.has_room() || self.clients[c].is_gone {
            return Ok(());
        }
        let Some(ino) = child else {
            let is_linked = self.rng.one_in(5) && self.log_link(c, dir, &name)?;
            return if is_linked { Ok(()) } else { self.log_make(c, dir, name) };
        };
        if !self.clients[c].is_alone(ino) {
            // It needs the inode alone too.
            let wish = Wish { ino, mode: LeaseMode::Write, patience: PATIENCE };
            self.clients[c].wish.get_or_insert(wish);
            return Ok(());
        }
        match self.rng.below(7) {
            0 => self.log_unlink(c, dir, name, ino),
            1 => self.log_rename(c, dir, name, ino),
            2 => self.log_setattr(c, ino),
            3 => self.log_xattr(c, ino),
            4 => self.log_cut(c, ino),
            _ => self.log_publish(c, ino),
        }
    }

    /// By the server's clock, and not before what is known of the inodes.
    fn stamp(&self, inos: &[Ino]) -> Time {
        let wall = self.meta.clock().wall();
        let now = Time { sec: wall.as_secs() as i64, nsec: wall.subsec_nanos() };
        let ctimes = inos.iter().filter_map(|ino| self.latest.0.get(ino)).map(|i| i.attr.ctime);
        ctimes.fold(now, Time::max)
    }

    fn log(
        &mut self,
        c: usize,
        change: Change,
        inline: Vec<u8>,
        touched: &[Ino],
    ) -> Result<u64, Wrong> {
        let (step, now) = (Step { at: self.stamp(touched), change }, self.now());
        let note = Note { number: 0, step, inline, touched: touched.to_vec() };
        let note = self.clients[c].log(note, now);
        self.report.steps += 1;
        self.latest.apply(&note)?;
        Ok(note.number)
    }

    fn log_make(&mut self, c: usize, dir: Ino, name: Vec<u8>) -> Result<(), Wrong> {
        let Some(ino) = self.clients[c].numbers.next().map(Ino) else { return Ok(()) };
        let (kind, bits) = match self.rng.below(7) {
            0 => (MakeKind::Directory, 0),
            1 => (MakeKind::Symlink(name.clone()), 0),
            2 => (MakeKind::Special { rdev: self.rng.below(99) as u32 }, S_IFCHR),
            _ => (MakeKind::File, 0),
        };
        let mode = bits | (0o700 + self.rng.below(64) as u32);
        let umask = self.rng.below(64) as u32;
        let call = Make { mode, umask, ..make(dir, name, kind) };
        self.log(c, Change::Make(ino, call), Vec::new(), &[ino, dir])?;
        let held = Held { hold: LeaseState::own(), is_known: true, ..Held::default() };
        self.clients[c].holds.insert(ino, held);
        Ok(())
    }

    /// Gives a file or link that it has alone a further name. Whether there was one.
    fn log_link(&mut self, c: usize, parent: Ino, name: &[u8]) -> Result<bool, Wrong> {
        let client = &self.clients[c];
        let is_own = |ino: &Ino| self.latest.0.contains_key(ino) && client.is_alone(*ino);
        let own = client.holds.keys().copied().filter(|ino| is_own(ino) && !self.is_dir(*ino));
        let own: Vec<Ino> = own.collect();
        let Some(ino) = self.pick(&own) else { return Ok(false) };
        let call = Link { ino, parent, name: name.to_vec() };
        self.log(c, Change::Link(call), Vec::new(), &[ino, parent]).map(|_| true)
    }

    /// Sets or removes an extended attribute.
    fn log_xattr(&mut self, c: usize, ino: Ino) -> Result<(), Wrong> {
        let name: Vec<u8> = match self.rng.below(6) {
            0 => ACL_ACCESS.into(),
            1 if self.is_dir(ino) => ACL_DEFAULT.into(),
            _ => format!("user.{}", self.rng.below(3)).into(),
        };
        let is_set = self.latest.0.get(&ino).is_some_and(|item| item.xattrs.contains_key(&name));
        let change = if is_set && self.rng.one_in(2) {
            Change::XattrRemove(XattrRemove { ino, name })
        } else {
            let value = if is_acl(&name) { self.access_list() } else { self.bytes() };
            let (mode, group_id) = (XattrMode::Any, SetGroupId::Keep);
            Change::XattrSet(XattrSet { ino, name, value, mode, group_id })
        };
        self.log(c, change, Vec::new(), &[ino]).map(|_| ())
    }

    fn bytes(&mut self) -> Vec<u8> {
        let mut value = vec![0; self.rng.below(40) as usize];
        self.rng.fill(&mut value);
        value
    }

    /// An access control list: owner, group and others; or a user and a mask beside them.
    fn access_list(&mut self) -> Vec<u8> {
        let tags: &[u8] = if self.rng.one_in(3) { &[1, 4, 32] } else { &[1, 2, 4, 16, 32] };
        let mut list = vec![2, 0, 0, 0];
        for tag in tags {
            list.extend([*tag, 0, self.rng.below(8) as u8, 0, 12, 0, 0, 0]);
        }
        list
    }

    /// Cuts a file to nothing.
    fn log_cut(&mut self, c: usize, ino: Ino) -> Result<(), Wrong> {
        if !self.is_file(ino) {
            return self.log_setattr(c, ino);
        }
        let call = SetAttr { ino, size: Some(0), ..SetAttr::default() };
        self.log(c, Change::SetAttr(call), Vec::new(), &[ino]).map(|_| ())
    }

    fn is_file(&self, ino: Ino) -> bool {
        self.latest.0.get(&ino).is_some_and(|item| matches!(item.body, Body::File(_)))
    }

    fn log_unlink(&mut self, c: usize, parent: Ino, name: Vec<u8>, ino: Ino) -> Result<(), Wrong> {
        let kind = match self.latest.names(ino) {
            Some(names) if !names.is_empty() => return Ok(()),
            Some(_) => RemoveKind::Directory,
            None => RemoveKind::File,
        };
        let fate = if self.rng.one_in(3) { Fate::Open } else { Fate::Dropped };
        let call = Unlink { parent, name, kind };
        let step = self.log(c, Change::Unlink(call, fate), Vec::new(), &[ino, parent])?;
        self.note_removed(c, ino, fate, step);
        Ok(())
    }

    fn note_removed(&mut self, c: usize, ino: Ino, fate: Fate, step: u64) {
        if self.latest.0.contains_key(&ino) {
            // It has other names.
            return;
        }
        let client = &mut self.clients[c];
        match (fate, client.holds.get_mut(&ino)) {
            (Fate::Dropped, Some(hold)) => hold.gone_at = Some(step),
            (Fate::Open, _) => client.orphans.push((step, ino)),
            (Fate::Dropped, None) => {}
        }
    }

    fn log_rename(&mut self, c: usize, parent: Ino, name: Vec<u8>, ino: Ino) -> Result<(), Wrong> {
        let own = self.own_directories(c);
        let (Some(new_parent), new_name) = (self.pick(&own), self.name()) else { return Ok(()) };
        let over = self.latest.names(new_parent).and_then(|names| names.get(&new_name)).copied();
        let is_over_own = over.is_none_or(|over| over != ino && self.clients[c].is_alone(over));
        let fits = over.is_none_or(|over| self.is_dir(over) == self.is_dir(ino));
        let is_full =
            over.is_some_and(|over| self.latest.names(over).is_some_and(|n| !n.is_empty()));
        if !is_over_own || !fits || is_full || !self.may_move(parent, new_parent, ino) {
            return Ok(());
        }
        let mode = RenameMode::Replace;
        let call = Rename { parent, name, new_parent, new_name, mode };
        // What is replaced lingers: somebody may have just looked it up.
        let fate = if over.is_some() { Fate::Open } else { Fate::Dropped };
        let mut touched = vec![parent, new_parent, ino];
        touched.extend(over);
        let step = self.log(c, Change::Rename(call, fate), Vec::new(), &touched)?;
        if let Some(over) = over {
            self.note_removed(c, over, fate, step);
        }
        Ok(())
    }

    /// JOURNAL-7
    fn may_move(&self, parent: Ino, new_parent: Ino, ino: Ino) -> bool {
        let Some(names) = self.latest.names(ino) else { return true };
        let is_leaf = names.values().all(|child| !self.is_dir(*child));
        parent == new_parent || is_leaf && ino != new_parent
    }

    fn is_dir(&self, ino: Ino) -> bool {
        self.latest.names(ino).is_some()
    }

    fn log_setattr(&mut self, c: usize, ino: Ino) -> Result<(), Wrong> {
        let mode = Some(self.rng.below(0o1000) as u32);
        let time = Time { sec: self.rng.below(1 << 30) as i64, nsec: 5 };
        let mtime = self.rng.one_in(2).then_some(SetTime::At(time));
        let call = SetAttr { ino, mode, mtime, ..SetAttr::default() };
        self.log(c, Change::SetAttr(call), Vec::new(), &[ino]).map(|_| ())
    }

    fn log_publish(&mut self, c: usize, ino: Ino) -> Result<(), Wrong> {
        if !self.is_file(ino) {
            return self.log_setattr(c, ino);
        }
        if self.rng.one_in(8) {
            let grows = Change::Extend(Extend { ino, is_cut_done: false });
            return self.log(c, grows, Vec::new(), &[ino]).map(|_| ());
        }
        let most = if self.rng.one_in(20) { 8192 } else { 200 };
        let mut data = vec![0; self.rng.below(most) as usize];
        self.rng.fill(&mut data);
        let (size, allocated) = (data.len() as u64, data.len().next_multiple_of(512) as u64);
        let mtime = self.rng.one_in(2).then(|| SetTime::At(self.stamp(&[ino])));
        let call = Publish { ino, size, allocated, mtime, data: PublishData::Inline };
        self.log(c, Change::Publish(call), data, &[ino]).map(|_| ())
    }
}
