//! Access times, by the rule of `relatime`: a read updates the access time where it is older than
//! the last change, or a day old.
//!
//! The client tells the server in batches and without a lease. So another mount that holds the
//! inode may show the earlier time, and a crash may lose the latest updates.

use std::collections::HashMap;
use std::sync::Arc;

use nuri_proto::id::Ino;
use nuri_proto::op::meta::{Accessed, Attr, Time};
use parking_lot::{Mutex, MutexGuard};

use crate::inode::table::InodeTable;
use crate::session::MetaSession;

const DAY: i64 = 24 * 60 * 60;
/// Most inodes of one call, and most that wait for one: beyond it reads mark nothing.
const BATCH: usize = 1024;
const MOST: usize = 64 * BATCH;

/// Access times that the server does not have yet.
pub(crate) struct Accesses {
    inodes: Arc<InodeTable>,
    session: Arc<MetaSession>,
    /// Reads mark access times.
    marks_reads: bool,
    noted: Mutex<HashMap<Ino, Time>>,
    /// Held while they are told.
    telling: Mutex<()>,
}

impl Accesses {
    pub(crate) fn new(
        inodes: Arc<InodeTable>,
        session: Arc<MetaSession>,
        marks_reads: bool,
    ) -> Accesses {
        let (noted, telling) = Default::default();
        Accesses { inodes, session, marks_reads, noted, telling }
    }

    /// Forgets what was noted of the inode; the server is told nothing until the guard goes.
    pub(crate) fn withdraw(&self, ino: Ino) -> MutexGuard<'_, ()> {
        let guard = self.telling.lock();
        self.noted.lock().remove(&ino);
        guard
    }
}

/// Whether a read at `now` marks the access time.
fn is_due(attr: &Attr, now: Time) -> bool {
    attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.sec - attr.atime.sec >= DAY
}

impl Accesses {
    /// Tells the server what was read.
    pub(crate) fn tell(&self) {
        let _telling = self.telling.lock();
        let noted: Vec<_> = std::mem::take(&mut *self.noted.lock()).into_iter().collect();
        for batch in noted.chunks(BATCH) {
            // Lost ones are marked by the next read.
            let _ = self.session.call(&Accessed { at: batch.to_vec() });
        }
    }

    /// Notes that a program read the inode.
    pub(crate) fn note(&self, ino: Ino) {
        if !self.marks_reads {
            return;
        }
        let Some(node) = self.inodes.find(ino) else { return };
        let now = self.session.now();
        let mut state = node.state.lock();
        let due = match state.view() {
            Some(attr) => is_due(&attr, now),
            None => state.accessed.is_none_or(|at| now.sec - at.sec >= DAY),
        };
        if !due {
            return;
        }
        let mut noted = self.noted.lock();
        if noted.len() < MOST {
            noted.insert(ino, now);
            state.accessed = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_mark_what_changed_since_or_is_a_day_old() {
        let at = |sec| Time { sec, nsec: 0 };
        let attr = |atime, mtime, ctime| Attr {
            atime: at(atime),
            mtime: at(mtime),
            ctime: at(ctime),
            ..Attr::default()
        };
        assert!(is_due(&attr(5, 5, 5), at(6)), "never read");
        assert!(is_due(&attr(7, 5, 8), at(9)), "changed since");
        assert!(!is_due(&attr(7, 5, 5), at(9)));
        assert!(is_due(&attr(7, 5, 5), at(7 + DAY)));
    }
}
