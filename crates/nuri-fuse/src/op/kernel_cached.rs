//! Which files are open with pages of the kernel. The mount drops those pages that a write made
//! old.
//!
//! A direct write takes its pages out of the kernel's cache before it is sent, and after it ended.
//! It does not do the second where the program did not wait for it (`io_submit`, io_uring; Linux
//! 6.18, `fuse_direct_io`). A program that read meanwhile brought the old bytes back. So where a
//! program may have read, the mount drops the pages itself before it answers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use nuri_client::{KernelCache, WriteResult};
use nuri_proto::id::Ino;
use parking_lot::Mutex;

/// Requests that wait for the kernel's pages at once: a page goes when its reader is served, so
/// others are left to serve it.
const WAITING: usize = 4;
/// What the others wait for a thread of their own that drops their pages.
const PATIENCE: Duration = Duration::from_millis(200);

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

/// Drops pages of the kernel after writes.
#[derive(Clone)]
pub(crate) struct PageDropper {
    pages: Arc<dyn KernelCache>,
    waiting: Arc<AtomicUsize>,
}

impl PageDropper {
    pub(crate) fn new(pages: Arc<dyn KernelCache>) -> PageDropper {
        PageDropper { pages, waiting: Arc::default() }
    }

    /// After a direct write, before it is answered.
    pub(crate) fn drop_written(&self, ino: Ino, wrote: WriteResult) {
        let is_one_of_few = self.waiting.fetch_add(1, Ordering::SeqCst) < WAITING;
        if is_one_of_few {
            self.pages.invalidate_pages(ino, wrote.at, wrote.len);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if !is_one_of_few {
            let (done, when_done) = channel();
            self.drop_apart(ino, vec![wrote], move || _ = done.send(()));
            let _ = when_done.recv_timeout(PATIENCE);
        }
    }

    /// After an append through pages (`F_SETFL`): the kernel put the bytes where it believed that
    /// the file ended. It keeps a page of the write locked until that is answered, so a thread of
    /// its own waits for that.
    pub(crate) fn drop_appended(&self, ino: Ino, asked: WriteResult, wrote: WriteResult) {
        if asked != wrote {
            self.drop_apart(ino, vec![asked, wrote], || ());
        }
    }

    fn drop_apart(&self, ino: Ino, spans: Vec<WriteResult>, done: impl FnOnce() + Send + 'static) {
        let pages = self.pages.clone();
        let drop_all = move || {
            for span in spans.iter().filter(|span| span.len > 0) {
                pages.invalidate_pages(ino, span.at, span.len);
            }
            done();
        };
        if std::thread::Builder::new().name("drop-pages".into()).spawn(drop_all).is_err() {
            tracing::warn!("fuse: pages of a write to inode {ino} stay: no thread can be had");
        }
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
