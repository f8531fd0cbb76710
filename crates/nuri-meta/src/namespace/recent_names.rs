//! The latest changes of names in directories that sessions take by turns. Pure.
//!
//! A session that takes such a directory again is told what changed, and does not read the whole
//! directory (DELEGATION-2). A directory's change counter grows with each change of its names, so
//! "all since then" is well defined. Where the changes are no longer known, the session reads the
//! directory anew. After a restart that is so for every directory.

use std::collections::{HashMap, VecDeque};

use nuri_proto::id::{Ino, SessionId};
use nuri_proto::limit::MAX_ARGS;
use nuri_proto::op::log::NameChange;
use nuri_rules::broken;

/// Directories that are followed, and changes of each that are kept.
const MOST_DIRECTORIES: usize = 64;
const MOST_CHANGES: usize = 4096;
/// Bytes of one answer.
const MOST_TOLD: usize = MAX_ARGS / 2;
/// Of a change without its name, at most.
const CHANGE: usize = 24;

/// One change of a directory's names.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// The directory's change counter after it.
    pub(crate) counter: u64,
    /// The session that did it by itself, and knows it so.
    pub(crate) known_to: Option<SessionId>,
    pub(crate) change: NameChange,
}

#[derive(Default)]
struct Followed {
    /// All changes after this value of the counter are here.
    since: u64,
    changes: VecDeque<Named>,
    /// When it was taken last, counted in takings.
    taken: u64,
}

/// Changes of the directories that are taken by turns.
#[derive(Default)]
pub(crate) struct RecentNames {
    dirs: HashMap<Ino, Followed>,
    takings: u64,
}

impl RecentNames {
    pub(crate) fn is_followed(&self, dir: Ino) -> bool {
        self.dirs.contains_key(&dir)
    }

    /// Called when a session takes the directory, with its present counter. Changes are kept from
    /// now on, at the latest.
    pub(crate) fn follow(&mut self, dir: Ino, counter: u64) {
        self.takings += 1;
        if !self.is_followed(dir) && self.dirs.len() >= MOST_DIRECTORIES {
            let oldest = self.dirs.iter().min_by_key(|(_, followed)| followed.taken);
            if let Some(oldest) = oldest.map(|(dir, _)| *dir) {
                self.dirs.remove(&oldest);
            }
        }
        let new = || Followed { since: counter, ..Followed::default() };
        self.dirs.entry(dir).or_insert_with(new).taken = self.takings;
    }

    pub(crate) fn note(&mut self, dir: Ino, named: Named) {
        let Some(followed) = self.dirs.get_mut(&dir) else { return };
        followed.changes.push_back(named);
        if followed.changes.len() > MOST_CHANGES
            && let Some(oldest) = followed.changes.pop_front()
        {
            followed.since = oldest.counter;
        }
    }

    /// The changes that a session does not know, if it knew all names when the counter was `known`.
    /// `None` where these changes are not known here, or too many.
    pub(crate) fn since(
        &self,
        dir: Ino,
        known: u64,
        session: SessionId,
    ) -> Option<Vec<NameChange>> {
        let followed = self.dirs.get(&dir).filter(|followed| followed.since <= known)?;
        let from = followed.changes.partition_point(|named| named.counter <= known);
        let mut bytes = 0;
        let mut told = Vec::new();
        for named in followed.changes.range(from..) {
            if named.known_to == Some(session) {
                continue;
            }
            bytes += CHANGE + named.change.name.len();
            if bytes > MOST_TOLD {
                return None;
            }
            told.push(named.change.clone());
        }
        if broken!("turn_misses_names") {
            told.pop();
        }
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);
    const D: Ino = Ino(7);

    fn made(counter: u64, by: Option<SessionId>) -> Named {
        let change = NameChange { name: counter.to_string().into(), to: Some((Ino(9), false)) };
        Named { counter, known_to: by, change }
    }

    fn told(recent: &RecentNames, known: u64, session: SessionId) -> Option<Vec<String>> {
        let name = |change: NameChange| String::from_utf8(change.name).unwrap();
        Some(recent.since(D, known, session)?.into_iter().map(name).collect())
    }

    /// Catches `broken!("turn_misses_names")`.
    #[test]
    fn who_takes_a_directory_again_is_told_what_others_did() {
        let mut recent = RecentNames::default();
        recent.note(D, made(3, None));
        assert_eq!(told(&recent, 4, A), None, "not followed");
        recent.follow(D, 4);
        for (at, by) in [(5, Some(A)), (6, Some(B)), (7, None)] {
            recent.note(D, made(at, by));
        }
        assert_eq!(told(&recent, 3, A), None, "from before it was followed");
        assert_eq!(told(&recent, 4, A).unwrap(), ["6", "7"]);
        assert_eq!(told(&recent, 4, B).unwrap(), ["5", "7"]);
        assert_eq!(told(&recent, 6, B).unwrap(), ["7"]);
        assert_eq!(told(&recent, 7, B).unwrap(), [""; 0]);
        recent.follow(D, 7);
        assert_eq!(told(&recent, 5, A).unwrap(), ["6", "7"], "followed all the time");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut recent = RecentNames::default();
        recent.follow(D, 0);
        let last = MOST_CHANGES as u64 + 2;
        (1..=last).for_each(|at| recent.note(D, made(at, Some(B))));
        assert_eq!(told(&recent, 1, A), None, "too long ago");
        assert_eq!(told(&recent, 2, A).unwrap().len(), MOST_CHANGES);
        (0..MOST_DIRECTORIES as u64).for_each(|i| recent.follow(Ino(100 + i), 0));
        assert!(!recent.is_followed(D), "taken longest ago");
        assert_eq!(recent.dirs.len(), MOST_DIRECTORIES);
    }

    #[test]
    fn an_answer_is_bounded() {
        let mut recent = RecentNames::default();
        recent.follow(D, 0);
        let long = |counter| {
            let change = NameChange { name: vec![b'x'; 255], to: None };
            Named { counter, known_to: None, change }
        };
        let fits = (MOST_TOLD / (CHANGE + 255)) as u64;
        (1..=fits).for_each(|at| recent.note(D, long(at)));
        assert!(recent.since(D, 0, A).is_some());
        recent.note(D, long(fits + 1));
        assert_eq!(recent.since(D, 0, A), None);
        assert!(recent.since(D, 1, A).is_some());
    }
}
