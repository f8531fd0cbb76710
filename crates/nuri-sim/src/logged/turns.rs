//! Directories that clients take by turns: a client that takes one again is told what changed
//! since.

use std::collections::BTreeMap;

use nuri_proto::id::Ino;
use nuri_proto::op::log::{DirectoryTaken, NameChange, TakeDirectory};

use super::World;
use super::talk::Asked;
use crate::check::Wrong;

/// What is known of the names of a directory that others have for now.
#[derive(Clone)]
pub struct Parted {
    /// The directory's change counter when the server told of its names last.
    pub known: u64,
    pub names: BTreeMap<Vec<u8>, Ino>,
}

impl Parted {
    fn follow(&mut self, changes: Vec<NameChange>) {
        for NameChange { name, to } in changes {
            match to {
                Some((ino, _)) => drop(self.names.insert(name, ino)),
                None => drop(self.names.remove(&name)),
            }
        }
    }
}

impl World {
    /// Asks for a directory; says how it went.
    pub fn take_directory(&mut self, c: usize, dir: Ino) -> Result<Asked, Wrong> {
        let known = self.clients[c].parted.get(&dir).map(|parted| parted.known);
        let taken = match self.ask(c, &TakeDirectory { ino: dir, known })? {
            Some(Ok(taken)) => taken,
            Some(Err(status)) => return Ok(Asked::Refused(status)),
            None => return Ok(Asked::Unheard),
        };
        let DirectoryTaken { inode, changes, .. } = taken;
        self.check_attr(c, &inode.attr)?;
        let told = self.clients[c].parted.remove(&dir).zip(changes);
        let counts = self.clients[c].take_lease(dir, inode.lease);
        if let Some((mut parted, changes)) = told {
            self.report.told += changes.len() as u64;
            parted.follow(changes);
            parted.known = inode.attr.change;
            self.check_names(c, dir, &parted.names)?;
            if let Some(hold) = self.clients[c].holds.get_mut(&dir).filter(|_| counts) {
                hold.is_known = self.latest.names(dir).is_some();
            }
            if !counts {
                self.clients[c].parted.insert(dir, parted);
            }
        } else if counts {
            self.read_names(c, dir)?;
        }
        if let Some(hold) = self.clients[c].holds.get_mut(&dir).filter(|_| counts) {
            hold.taken = Some(inode.attr.change);
            self.report.turns += 1;
        }
        Ok(Asked::Answered)
    }

    /// A directory is about to be given back: its names are kept, where they were told for a turn.
    pub fn part(&mut self, c: usize, dir: Ino) {
        let client = &mut self.clients[c];
        let is_known = client.holds.get(&dir).filter(|hold| hold.is_known);
        let known = is_known.and_then(|hold| hold.taken);
        if let (Some(known), Some(names)) = (known, self.latest.names(dir)) {
            client.parted.insert(dir, Parted { known, names: names.clone() });
        }
    }
}
