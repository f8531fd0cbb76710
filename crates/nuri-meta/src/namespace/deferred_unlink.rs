//! Keeps an inode for a while after its last name went. A program that looked the name up just
//! before may be about to open the inode.
//!
//! A client that has a lease on an inode is told of its end and asked first. But where names are so
//! contended that answers carry no lease, the server does not know which client wants the inode.
//! The caller's kernel looks a name up only once more before it tells the program "stale". So such
//! an inode stays a little, as an orphan. An inode that is opened meanwhile lives on. An orphan
//! that a crash leaves is found at the next start.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use nuri_proto::id::Ino;
use nuri_rules::broken;

/// Much longer than the way from an answer to the next call.
const LINGER: Duration = Duration::from_secs(1);
/// Answers remembered at a time; beyond it inodes go at once.
const MOST: usize = 65_536;

/// Inodes that replies named without a lease lately, and those of them that wait for their end.
#[derive(Default)]
pub(crate) struct DeferredUnlinks {
    /// Since `began`, and before that.
    told: [HashSet<Ino>; 2],
    began: Duration,
    waiting: VecDeque<(Duration, Ino)>,
}

impl DeferredUnlinks {
    pub(crate) fn note_told(&mut self, ino: Ino) {
        if self.told[0].len() < MOST {
            self.told[0].insert(ino);
        }
    }

    /// Whether the inode stays, having lost its last name now.
    pub(crate) fn stays(&self, ino: Ino) -> bool {
        self.told.iter().any(|told| told.contains(&ino)) && !broken!("gone_at_once")
    }

    pub(crate) fn wait(&mut self, ino: Ino, now: Duration) {
        self.waiting.push_back((now + LINGER, ino));
    }

    /// Takes the inodes whose time is over: they stay no longer.
    pub(crate) fn over(&mut self, now: Duration) -> Vec<Ino> {
        if now.saturating_sub(self.began) >= LINGER {
            let [lately, before] = &mut self.told;
            std::mem::swap(lately, before);
            lately.clear();
            self.began = now;
        }
        let count = self.waiting.partition_point(|(end, _)| *end <= now);
        let over: Vec<_> = self.waiting.drain(..count).map(|(_, ino)| ino).collect();
        for told in &mut self.told {
            over.iter().for_each(|ino| _ = told.remove(ino));
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_lately_stays_for_a_while() {
        let mut linger = DeferredUnlinks::default();
        let at = Duration::from_millis;
        assert!(!linger.stays(Ino(7)));
        linger.note_told(Ino(7));
        assert!(linger.stays(Ino(7)) && !linger.stays(Ino(8)));
        linger.wait(Ino(7), at(200));
        assert_eq!(linger.over(at(1100)), []);
        assert!(linger.stays(Ino(7)), "told in the second before");
        assert_eq!(linger.over(at(1200)), [Ino(7)]);
        assert_eq!(linger.over(at(2100)), []);
        assert!(!linger.stays(Ino(7)), "long ago");
    }
}
