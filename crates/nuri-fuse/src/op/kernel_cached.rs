//! Which files are open with pages of the kernel.
//!
//! A direct write takes its pages out of the kernel's cache before it is sent, and after it ended,
//! but not where the program did not wait for it (`io_submit`, io_uring; Linux 6.18,
//! `fuse_direct_io`). Who read meanwhile brought the old bytes back. So the mount takes them out
//! itself before it answers, where somebody may have read.

use std::collections::{HashMap, HashSet};

use nuri_proto::id::Ino;
use parking_lot::Mutex;

/// Inodes are spread over so many tables.
const TABLES: usize = 64;

/// Handles that read through pages, by inode.
pub(crate) struct Cached(Vec<Mutex<HashMap<Ino, HashSet<u64>>>>);

impl Cached {
    pub(crate) fn new() -> Cached {
        Cached((0..TABLES).map(|_| Mutex::default()).collect())
    }

    fn table(&self, ino: Ino) -> &Mutex<HashMap<Ino, HashSet<u64>>> {
        &self.0[ino.0 as usize % TABLES]
    }

    pub(crate) fn opened(&self, ino: Ino, fh: u64) {
        self.table(ino).lock().entry(ino).or_default().insert(fh);
    }

    pub(crate) fn closed(&self, ino: Ino, fh: u64) {
        let mut table = self.table(ino).lock();
        if let Some(handles) = table.get_mut(&ino) {
            handles.remove(&fh);
            if handles.is_empty() {
                table.remove(&ino);
            }
        }
    }

    /// Whether the handle reads and writes through pages.
    pub(crate) fn is_paged(&self, ino: Ino, fh: u64) -> bool {
        self.table(ino).lock().get(&ino).is_some_and(|handles| handles.contains(&fh))
    }

    /// Whether pages of the inode may be read now.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.table(ino).lock().contains_key(&ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_pages_until_the_last_close() {
        let cached = Cached::new();
        cached.opened(Ino(7), 1);
        cached.opened(Ino(7), 2);
        cached.closed(Ino(7), 1);
        cached.closed(Ino(7), 9);
        assert!(cached.has(Ino(7)) && !cached.has(Ino(8)));
        assert!(cached.is_paged(Ino(7), 2) && !cached.is_paged(Ino(7), 1));
        cached.closed(Ino(7), 2);
        assert!(!cached.has(Ino(7)));
    }
}
