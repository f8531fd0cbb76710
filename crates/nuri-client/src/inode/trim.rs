//! Bounds the inodes that a client remembers although no program uses them. The client also gives
//! inodes back when the server says that its table of leases is nearly full.
//!
//! The client drops the inode first whose last use is longest ago. The kernel answers warm calls by
//! itself, so the client sees only the calls that reach it. An inode that is dropped too early
//! costs one look-up. The kernel drops the inodes that it can, and reports each with `forget`,
//! which gives the lease back. Some kernels cannot be told to drop inodes, and drop them only when
//! they need memory. Then the client gives back only the leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nuri_proto::id::Ino;

use crate::inode::Inode;
use crate::inode::release::Releaser;
use crate::inode::table::InodeTable;
use crate::lease::acquire::Leases;
use crate::lease::invalidate::KernelCaches;
use crate::session::MetaSession;

/// Between two looks, and after one that found too many: what programs use cannot go.
const LOOK: Duration = Duration::from_millis(200);
const REST: Duration = Duration::from_secs(1);
/// Where there are too many, room is made for a tenth.
const ROOM: usize = 10;
const BATCH: usize = 512;

/// How many inodes the server wants back.
pub(crate) struct Trim {
    session: Arc<MetaSession>,
    inodes: Arc<InodeTable>,
    releaser: Arc<Releaser>,
    leases: Arc<Leases>,
    kernel: Arc<KernelCaches>,
    /// Inodes beyond which those that no program uses are forgotten.
    most: usize,
    asked: AtomicUsize,
}

impl Trim {
    pub(crate) fn new(
        session: Arc<MetaSession>,
        inodes: Arc<InodeTable>,
        releaser: Arc<Releaser>,
        (leases, kernel): (Arc<Leases>, Arc<KernelCaches>),
        most: usize,
    ) -> Trim {
        let asked = AtomicUsize::new(0);
        Trim { session, inodes, releaser, leases, kernel, most, asked }
    }

    /// Asks for so many inodes to be given back.
    pub(crate) fn ask(&self, inodes: u32) {
        self.asked.store(inodes as usize, Ordering::Relaxed);
    }
}

/// How many are to go, of so many.
fn surplus(held: usize, limit: usize, asked: usize) -> usize {
    let over = if held > limit { held - limit + limit / ROOM } else { 0 };
    over.max(asked)
}

impl Trim {
    /// Trims for as long as the client lives.
    pub(crate) fn run(&self) {
        while !self.session.stopping() {
            self.inodes.tick();
            let asked = self.asked.swap(0, Ordering::Relaxed);
            let count = surplus(self.inodes.count(), self.most, asked);
            if count > 0 {
                self.trim(count);
            }
            std::thread::sleep(if count > 0 { REST } else { LOOK });
        }
    }

    fn trim(&self, count: usize) {
        let mut idle = self.inodes.all();
        idle.retain(|node| is_idle(node));
        if idle.len() > count {
            idle.select_nth_unstable_by_key(count, |node| node.used.load(Ordering::Relaxed));
            idle.truncate(count);
        }
        for batch in idle.chunks(BATCH) {
            // What programs use all the same is not tried again before all others.
            batch.iter().for_each(|node| node.used.store(self.inodes.now(), Ordering::Relaxed));
            let inos: Vec<_> = batch.iter().map(|node| node.ino).collect();
            // Listed, and never taken by the kernel.
            batch.iter().for_each(|node| self.releaser.drop_if_unused(node));
            if !self.kernel.drop_unused(&inos) {
                batch.iter().for_each(|node| self.give_lease_back(node));
            }
        }
    }

    /// Gives the lease of an inode back that nobody asked for.
    fn give_lease_back(&self, node: &Arc<Inode>) {
        let (number, is_held) = {
            let state = node.state.lock();
            (state.last_grant(), state.hold.mode.is_some())
        };
        if !is_held || self.leases.give_back(node, number, None, &mut false).is_some() {
            return;
        }
        let state = node.state.lock();
        // Who opened it meanwhile has a newer lease, or is to be known to the server.
        if state.opens == 0 && state.hold.mode.is_none() && !state.orphan {
            self.releaser.give_back(node.ino, number);
        }
    }
}

/// Whether no program is known to use the inode.
fn is_idle(node: &Inode) -> bool {
    let state = node.state.lock();
    let is_dirty = state.file.as_ref().is_some_and(|file| file.own.is_dirty());
    let is_used = state.opens > 0 || state.active > 0 || state.hold.revoking || is_dirty;
    node.ino != Ino::ROOT && !is_used
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was listed, not looked up, and its lease was recalled: nobody else forgets it.
    #[test]
    fn what_nobody_holds_is_idle() {
        let node = Inode::new(Ino(7), 0);
        assert!(is_idle(&node));
        node.state.lock().opens = 1;
        assert!(!is_idle(&node));
    }

    #[test]
    fn room_is_made_where_there_are_too_many() {
        assert_eq!(surplus(1000, 1000, 0), 0);
        assert_eq!(surplus(1001, 1000, 0), 101);
        assert_eq!(surplus(10, 1000, 7), 7);
        assert_eq!(surplus(1001, 1000, 500), 500);
    }
}
