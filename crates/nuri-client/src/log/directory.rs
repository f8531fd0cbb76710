//! Directories that this client has to itself: their names, known as a whole.
//!
//! Names are valid while the inode's state says so (`NodeState::names_known`), under the write
//! lease. They are fetched for a directory that is changed here again and again and nowhere else;
//! a directory that was just made has none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::change::S_IFDIR;
use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_READDIR;
use nuri_proto::op::log::Reserve;
use nuri_proto::op::meta::{Acquire, Attr, LeaseMode, ReadDir, WithAttrs};

use crate::fs::Shared;
use crate::node::{Node, NodeState};
use crate::xattr::DEFAULT_LIST;

/// Own changes of a directory before it is worth having it alone.
const WORTH: u32 = 4;
/// After somebody else asked for it, it is left to be shared for so long.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// Directories with more names are not held alone.
const MOST_NAMES: u64 = 50_000;
/// Inode numbers taken at a time.
const NUMBERS: u32 = 4096;

/// The names of a directory.
#[derive(Default)]
pub(super) struct Names(HashMap<Vec<u8>, Child>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Child {
    pub(super) ino: Ino,
    pub(super) is_dir: bool,
}

impl Names {
    pub(super) fn get(&self, name: &[u8]) -> Option<Child> {
        self.0.get(name).copied()
    }

    pub(super) fn insert(&mut self, name: &[u8], child: Child) {
        self.0.insert(name.to_vec(), child);
    }

    /// All inodes but directories.
    pub(super) fn files(&self) -> Vec<Ino> {
        self.0.values().filter(|child| !child.is_dir).map(|child| child.ino).collect()
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        self.0.remove(name);
    }
}

/// How this client used a directory lately.
#[derive(Default)]
pub(crate) struct Use {
    /// Changes asked of the server directly: under way, and begun ever.
    pub(super) direct: u32,
    pub(super) begun: u64,
    /// Those since it was asked for elsewhere.
    own: u32,
    /// Its change counter after some direct change, and those begun that it surely counts.
    counted: Option<(u64, u64)>,
    asked_elsewhere: Option<Instant>,
    /// It has too many names, or hands down access control lists.
    is_unfit: bool,
}

/// What is the same as long as no lease was given back and no direct change begun.
type Since = (u64, u64, u64);

fn since(state: &NodeState) -> Since {
    (state.usage.begun, state.recalled, state.forgotten)
}

impl Use {
    /// Somebody else asked for the directory.
    pub(crate) fn asked_elsewhere(&mut self) {
        (self.own, self.asked_elsewhere) = (0, Some(Instant::now()));
        self.counted = None;
    }

    pub(super) fn begin(&mut self) {
        self.direct += 1;
        self.begun += 1;
        self.own += 1;
    }

    /// A direct change was answered, with the directory's change counter by then: what that counts
    /// beyond our own changes is somebody else's.
    pub(crate) fn answered(&mut self, change: u64) {
        let Some((known, begun)) = self.counted else {
            let ended = self.begun - u64::from(self.direct.saturating_sub(1));
            self.counted = Some((change, ended));
            return;
        };
        if change.saturating_sub(known) > self.begun - begun {
            self.asked_elsewhere();
        }
    }

    /// Whether to ask for the directory alone.
    fn is_worth_it(&self) -> bool {
        let is_shared = self.asked_elsewhere.is_some_and(|at| at.elapsed() < SHARED_FOR);
        self.own >= WORTH && !is_shared && self.direct == 0 && !self.is_unfit
    }
}

impl Shared {
    /// A directory that was just made here under its write lease is empty, and known as a whole.
    pub(crate) fn know_new_directory(&self, attr: &Attr) {
        let is_new = attr.is_dir() && attr.size == 0 && attr.change == 1;
        if !is_new {
            return;
        }
        let mut log = self.log.state.lock();
        self.with(attr.ino, |_, state| {
            let is_ours = state.mode == Some(LeaseMode::Write) && !state.revoking;
            let is_untouched = state.attr.is_some_and(|known| known.change == 1);
            if is_ours && is_untouched && state.usage.begun == 0 {
                (state.names, state.names_known) = (true, true);
                log.directories.insert(attr.ino, Names::default());
            }
        });
    }

    /// Takes a directory to itself where that is worth it. What fails is left as it is.
    pub(crate) fn take_directory(&self, dir: Ino) {
        let Some(node) = self.find(dir) else { return };
        let before = {
            let state = node.state.lock();
            if state.names_known || state.revoking || !state.usage.is_worth_it() {
                return;
            }
            since(&state)
        };
        match self.fetch_directory(&node, before) {
            Ok(()) => {}
            Err(Status::FBIG | Status::NOTSUP) => node.state.lock().usage.is_unfit = true,
            Err(_) => node.state.lock().usage.asked_elsewhere(),
        }
    }

    fn fetch_directory(&self, node: &Arc<Node>, before: Since) -> Result<(), Status> {
        let dir = node.ino;
        let reply = self.session.call(&Acquire { ino: dir, mode: LeaseMode::Write })?;
        self.learn(&reply.inode);
        if reply.inode.attr.size > MOST_NAMES {
            return Err(Status::FBIG);
        }
        // Notes that nothing is handed down to new files.
        let list = self.xattr_get(dir, DEFAULT_LIST);
        if list != Err(Status::NODATA) {
            return Err(Status::NOTSUP);
        }
        let mut names = Names::default();
        let mut cookie = 0;
        loop {
            let call = ReadDir { ino: dir, cookie, max: MAX_READDIR, attrs: WithAttrs::No };
            let page = self.session.call(&call)?;
            for entry in page.entries {
                cookie = entry.cookie;
                let is_dir = u32::from(entry.kind) << 12 == S_IFDIR;
                names.insert(&entry.name, Child { ino: entry.ino, is_dir });
            }
            if page.end {
                break;
            }
        }
        let mut log = self.log.state.lock();
        let mut state = node.state.lock();
        let is_ours = state.mode == Some(LeaseMode::Write) && !state.revoking;
        let is_untouched = state.usage.direct == 0 && since(&state) == before;
        if is_ours && is_untouched && state.attr.is_some() && state.absent.hands_down_nothing() {
            (state.names, state.names_known) = (true, true);
            state.usage.counted = None;
            log.directories.insert(dir, names);
        }
        Ok(())
    }

    /// Takes numbers for new inodes, where there are none left.
    pub(super) fn provide_numbers(&self) {
        if !self.log.state.lock().numbers.is_empty() {
            return;
        }
        if let Ok(reserved) = self.session.change(&Reserve { count: NUMBERS }, &[]) {
            let first = reserved.first.0;
            self.log.state.lock().numbers = first..first + u64::from(reserved.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_taken_after_some_changes_and_left_when_others_want_it() {
        let mut usage = Use::default();
        for _ in 0..WORTH {
            assert!(!usage.is_worth_it());
            usage.begin();
            assert!(!usage.is_worth_it(), "a direct change is under way");
            usage.direct -= 1;
        }
        assert!(usage.is_worth_it());
        usage.asked_elsewhere();
        (0..WORTH).for_each(|_| usage.begin());
        usage.direct = 0;
        assert!(!usage.is_worth_it(), "somebody asked for it just now");
        usage.asked_elsewhere = Instant::now().checked_sub(SHARED_FOR);
        assert!(usage.is_worth_it());
    }

    #[test]
    fn a_directory_that_others_change_too_is_left_to_be_shared() {
        let mut usage = Use::default();
        let change = |usage: &mut Use, to| {
            usage.begin();
            usage.answered(to);
            usage.direct -= 1;
        };
        (1..=WORTH.into()).for_each(|to| change(&mut usage, to));
        assert!(usage.is_worth_it());
        // Two at once, of which the second is answered first.
        usage.begin();
        usage.begin();
        usage.answered(u64::from(WORTH) + 2);
        usage.answered(u64::from(WORTH) + 1);
        usage.direct = 0;
        assert!(usage.is_worth_it());
        change(&mut usage, u64::from(WORTH) + 4);
        assert!(!usage.is_worth_it(), "one of these was not ours");
    }

    #[test]
    fn changes_under_way_at_the_first_answer_are_our_own() {
        let mut usage = Use::default();
        (0..WORTH).for_each(|_| usage.begin());
        (1..=WORTH.into()).for_each(|to| usage.answered(to));
        usage.direct = 0;
        assert!(usage.is_worth_it());
    }
}
