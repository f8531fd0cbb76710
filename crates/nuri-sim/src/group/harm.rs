//! Faults of disks and of the authority, and their repair. An operator replaces lost targets;
//! scrubs, readers and writers repair the rest.
//!
//! While a disk is harmed, the number of members that are harmed or kept from their work is bounded
//! by what every shape bears ([`Budget::Kept`]). Then nothing is lost, and no member stays away.

use std::sync::Arc;

use nuri_cluster::authority::Authority;
use nuri_cluster::store::{MapStore, StoreError};
use nuri_io::disk::Disk;
use nuri_io::mem::MemDisk;
use nuri_proto::id::{ChunkKey, TargetId};
use nuri_proto::limit::BLOCK;
use nuri_proto::map::{Map, Standing};
use nuri_proto::op::member::Purpose;
use nuri_proto::stripe::Version;
use nuri_target::store::MemberRead;
use parking_lot::Mutex;

use super::faults::{Budget, Fault};
use super::ground::CELLS;
use super::net::Host;
use super::node::CLUSTER;
use super::world::{Event, Time, World};
use crate::check::{CELL, Wrong};

const PAGE: usize = BLOCK as usize;
/// Who was cut off or stood still has been heard of again by then.
const HEARD: Time = 1_500_000;
/// A disk keeps that much to itself, at most.
const LIE: Time = 600_000;
/// Somebody looks after the harmed so often.
const TEND_EVERY: Time = 100_000;

/// What a disk lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Injury {
    /// All; the target that it was has places still, or none any more.
    Wiped(Option<TargetId>),
    /// All since some time ago, before that life of the node.
    Restored { boots: u64 },
    /// Bits.
    Rotten,
}

/// A disk as it was.
pub(super) struct Snapshot {
    disk: MemDisk,
    /// Of its superblock.
    sequence: u64,
}

/// The authority's map, which outlives its process.
#[derive(Clone, Default)]
pub(super) struct Kept(Arc<Mutex<Option<Map>>>);

impl MapStore for Kept {
    fn load(&self) -> Result<Option<Map>, StoreError> {
        Ok(self.0.lock().clone())
    }
    fn save(&self, map: &Map) -> Result<(), StoreError> {
        *self.0.lock() = Some(map.clone());
        Ok(())
    }
}

impl World {
    /// Harms the disk of a node, if the budget bears it.
    ///
    /// # Errors
    /// What falls over wrongly.
    pub(super) fn harm(&mut self, fault: Fault, number: usize) -> Result<(), Wrong> {
        if self.hurt.contains_key(&number) || !self.is_whole(number) || !self.bears(number) {
            return Ok(());
        }
        let boots = self.nodes[number].boots;
        let injury = match fault {
            Fault::Wipe => {
                self.fall(number)?;
                self.snapshots.remove(&number);
                Injury::Wiped(Some(self.wipe(number)?))
            }
            Fault::Lie => {
                let kept = Box::new(self.nodes[number].disk.fork());
                let delay = 1 + self.rng.below(LIE);
                self.after(delay, Event::PowerOff { node: number, boots, kept });
                self.lies += 1;
                return Ok(());
            }
            Fault::Restore => {
                let Some(snapshot) = self.past_of(number) else { return Ok(()) };
                self.fall(number)?;
                self.nodes[number].disk = Arc::new(snapshot.disk);
                self.reached.retain(|(node, _), _| *node != number);
                Injury::Restored { boots }
            }
            _ => {
                let stripes = self.ground.stripes.len() as u64;
                let key = self.ground.stripes[self.rng.below(stripes) as usize].key;
                if !self.rot(number, key) {
                    return Ok(());
                }
                self.ground.rotten.lock().insert(self.nodes[number].target);
                Injury::Rotten
            }
        };
        if self.traces {
            eprintln!("{:>12} harm of {number}: {injury:?}", self.now);
        }
        self.report.harms += 1;
        self.hurt.insert(number, injury);
        Ok(())
    }

    /// A node loses power, and what its disk kept is what it was. Sometimes all the others lose
    /// power too.
    ///
    /// # Errors
    /// What falls over wrongly.
    pub(super) fn power_off(
        &mut self,
        number: usize,
        boots: u64,
        kept: MemDisk,
    ) -> Result<(), Wrong> {
        self.lies -= 1;
        let is_same = self.nodes[number].boots == boots && self.is_whole(number);
        if !is_same || !self.bears(number) {
            return Ok(());
        }
        self.fall(number)?;
        self.nodes[number].power += 1;
        self.nodes[number].disk = Arc::new(kept);
        self.reached.retain(|(node, _), _| *node != number);
        self.snapshots.remove(&number);
        self.report.harms += 1;
        let all_fall = self.hurt.is_empty() && self.rng.one_in(3);
        self.hurt.insert(number, Injury::Restored { boots });
        if self.traces {
            eprintln!("{:>12} the disk of {number} lied, all fall: {all_fall}", self.now);
        }
        let works = |n: &usize| self.nodes[*n].server.is_some();
        let others: Vec<_> = (0..self.nodes.len()).filter(works).filter(|_| all_fall).collect();
        for node in others {
            self.stop(node)?;
            self.nodes[node].power += 1;
            // Who stays away for long is one more that is lost.
            let delay = 1_000 + self.rng.below(500_000);
            self.after(delay, Event::Start(node));
        }
        Ok(())
    }

    /// A state of the disk that is older than what the authority heard of. Where there is none, one
    /// is taken for later.
    fn past_of(&mut self, number: usize) -> Option<Snapshot> {
        let node = &self.nodes[number];
        let map = self.authority.map();
        let heard = map.target(node.target)?.sequence;
        if self.snapshots.get(&number).is_some_and(|s| s.sequence < heard) {
            return self.snapshots.remove(&number);
        }
        let sequence = node.store()?.superblock().sequence;
        let disk = node.disk.fork();
        self.snapshots.entry(number).or_insert(Snapshot { disk, sequence });
        None
    }

    /// Whether the node works and holds all that it should.
    fn is_whole(&self, number: usize) -> bool {
        let (node, host) = (&self.nodes[number], Host::Node(number));
        let works = node.server.is_some() && node.joined && !node.dying && node.is_in_service();
        let is_free = self.frozen.get(&host).is_none_or(|until| until + HEARD <= self.now)
            && !self.net.is_cut_off(host, self.now.saturating_sub(HEARD));
        let map = self.authority.map();
        let groups = map.groups.iter().filter(|g| g.shape.is_redundant());
        let members = groups.flat_map(|g| &g.members).filter(|m| m.target == node.target);
        let is_live = members.into_iter().all(|m| m.standing == Standing::Live && !m.unproven);
        works && is_free && is_live && !self.hurt.contains_key(&number)
    }

    /// Whether nothing is lost if this node has trouble too.
    fn bears(&self, number: usize) -> bool {
        if self.plan.budget == Budget::Exceeded {
            return true;
        }
        let spare = |s: &nuri_proto::layout::Shape| s.members() - s.data();
        let most = self.plan.shapes.iter().map(spare).min().unwrap_or(0);
        let troubled = |n: &usize| *n != number && !self.is_whole(*n);
        (0..self.nodes.len()).filter(troubled).count() < most
    }

    /// Whether a host may be kept from its work, beside what is harmed.
    pub(super) fn may_trouble(&self, host: Host) -> bool {
        match host {
            Host::Node(node) => self.hurt.is_empty() || self.bears(node),
            Host::Authority | Host::Client(_) => true,
        }
    }

    /// Lost targets are replaced; what is whole again is harmed no more.
    ///
    /// # Errors
    /// None so far.
    pub(super) fn tend(&mut self) -> Result<(), Wrong> {
        for (number, injury) in std::mem::take(&mut self.hurt) {
            let is_healed = match injury {
                Injury::Wiped(Some(old)) => {
                    let is_known = self.nodes[number].target != TargetId(0);
                    let up = self.authority_is_up && is_known && self.nodes[number].joined;
                    if up && self.replace(old, number).is_ok() {
                        self.hurt.insert(number, Injury::Wiped(None));
                        continue;
                    }
                    false
                }
                Injury::Wiped(None) => self.is_whole(number),
                Injury::Restored { boots } => {
                    self.nodes[number].boots > boots && self.is_whole(number)
                }
                Injury::Rotten => self.is_proved(number),
            };
            if !is_healed {
                self.hurt.insert(number, injury);
            }
        }
        self.after(TEND_EVERY, Event::Tend);
        Ok(())
    }

    /// Whether all that a node holds passes its checksums.
    fn is_proved(&self, number: usize) -> bool {
        let Some(store) = self.nodes[number].store() else { return false };
        let is_sound = |key| store.prove(key).is_ok_and(|proof| proof.bad.is_empty());
        self.ground.stripes.iter().all(|stripe| is_sound(stripe.key))
    }

    /// The disk has no room for anything new, for a while.
    pub(super) fn fill(&mut self, number: usize) {
        if self.nodes[number].dying {
            return;
        }
        let disk = &self.nodes[number].disk;
        disk.limit_space(disk.resident());
        let delay = 1 + self.rng.below(5_000_000);
        self.after(delay, Event::Roomy(number));
    }

    /// # Errors
    /// What falls over wrongly.
    pub(super) fn make_room(&mut self, number: usize) -> Result<(), Wrong> {
        if self.nodes[number].dying {
            return Ok(());
        }
        self.nodes[number].disk.heal();
        let has_failed = self.nodes[number].server.is_some() && !self.nodes[number].is_in_service();
        if has_failed { self.fall(number) } else { Ok(()) }
    }

    /// The authority is away for less than nodes are given to come back to it.
    ///
    /// # Errors
    /// As [`World::open_authority`].
    pub(super) fn stop_authority(&mut self) -> Result<(), Wrong> {
        if !self.authority_is_up {
            return Ok(());
        }
        self.open_authority()?;
        self.authority_is_up = false;
        let away = self.rng.below(3_000_000);
        self.after(1 + away, Event::AuthorityStarts);
        Ok(())
    }

    /// A new process, with the map that was kept and the list that the metadata server gives it.
    ///
    /// # Errors
    /// A map that does not open.
    pub(super) fn open_authority(&mut self) -> Result<(), Wrong> {
        let store = Box::new(self.kept.clone());
        let authority = Authority::open(store, self.authority_clock.clone(), CLUSTER);
        self.authority = authority.map_err(|e| e.to_string())?;
        self.authority.admit(self.list.clone());
        self.authority_is_up = true;
        Ok(())
    }

    /// Turns a bit over in one block of a chunk that a node has on its disk. False: nothing of the
    /// chunk is there but in the log.
    pub(super) fn rot(&mut self, number: usize, key: ChunkKey) -> bool {
        let mut chunk = vec![0; CELLS * CELL];
        let Some(store) = self.nodes[number].store() else { return false };
        let read = store.read_member(key, 0, &mut chunk, Version::NONE, Purpose::Base);
        if !matches!(read, Ok(MemberRead::Read(_))) {
            return false;
        }
        let (regions, disk) = (store.superblock().regions, &self.nodes[number].disk);
        let blocks: Vec<_> = chunk.chunks(PAGE).filter(|b| b.iter().any(|b| *b != 0)).collect();
        let places: Vec<u64> = blocks_of(&**disk, regions.data_at)
            .filter(|(_, found)| blocks.iter().any(|block| found.starts_with(block)))
            .map(|(at, _)| at)
            .collect();
        let Some(at) = places.get(self.rng.below(places.len() as u64) as usize) else {
            return false;
        };
        let offset = at + self.rng.below(CELL as u64);
        disk.flip_bit(offset, self.rng.below(8) as u32);
        true
    }
}

/// What was ever written on the disk from there on, block by block.
fn blocks_of(disk: &impl Disk, from: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let mut at = from;
    std::iter::from_fn(move || {
        let next = disk.next_written(at).ok()??.start / BLOCK * BLOCK;
        let mut block = vec![0; PAGE];
        disk.read_at(next, &mut block).ok()?;
        at = next + BLOCK;
        Some((next, block))
    })
}
