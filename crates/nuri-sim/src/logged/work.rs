//! What programs on the clients do: in directories that their client has alone, by the log.

use nuri_client::lease::state::LeaseState;
use nuri_io::clock::Clock;
use nuri_proto::id::Ino;
use nuri_proto::op::log::{Change, Fate, Step};
use nuri_proto::op::meta::{
    Extend, LeaseMode, Make, MakeKind, Publish, PublishData, RemoveKind, Rename, RenameMode,
    SetAttr, SetTime, Time, Unlink,
};

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
        let Some(ino) = child else { return self.log_make(c, dir, name) };
        if !self.clients[c].is_alone(ino) {
            // It needs the inode alone too.
            let wish = Wish { ino, mode: LeaseMode::Write, patience: PATIENCE };
            self.clients[c].wish.get_or_insert(wish);
            return Ok(());
        }
        match self.rng.below(5) {
            0 => self.log_unlink(c, dir, name, ino),
            1 => self.log_rename(c, dir, name, ino),
            2 => self.log_setattr(c, ino),
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
        let kind = match self.rng.below(6) {
            0 => MakeKind::Directory,
            1 => MakeKind::Symlink(name.clone()),
            _ => MakeKind::File,
        };
        let call = Make { mode: 0o700 + self.rng.below(64) as u32, ..make(dir, name, kind) };
        self.log(c, Change::Make(ino, call), Vec::new(), &[ino, dir])?;
        let held = Held { hold: LeaseState::own(), is_known: true, ..Held::default() };
        self.clients[c].holds.insert(ino, held);
        Ok(())
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
        let moves_dir = [Some(ino), over].into_iter().flatten().any(|i| self.is_dir(i));
        if !is_over_own || moves_dir {
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
        if self.latest.0.get(&ino).is_none_or(|item| !matches!(item.body, Body::File(_))) {
            return self.log_setattr(c, ino);
        }
        if self.rng.one_in(8) {
            let grows = Change::Extend(Extend { ino });
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
