//! Files that are written: opened at the first WRITE, closed when no client wrote for a while.
//!
//! Clients of NFS version 3 open nothing. Bytes that they wrote and did not commit are lost where
//! this server ends. Another verifier tells the clients so (NFS-2), and they write the bytes again.
//! So the verifier is new for each server, for each session of it, and after each byte that could
//! not be kept. No file with uncommitted bytes is closed before they are durable: otherwise no
//! client would hear of their loss.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuri_client::{Access, Client, Sync};
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_rules::broken;
use parking_lot::Mutex;

/// Files that stay open although nobody writes.
const MOST: usize = 512;
const IDLE: Duration = Duration::from_secs(5);

/// A file that is open; closed when dropped.
pub(crate) struct OpenedFile {
    client: Arc<Client>,
    pub(crate) ino: Ino,
    pub(crate) fh: u64,
    /// Something was written and not made durable since.
    is_dirty: AtomicBool,
    used: Mutex<Instant>,
    /// Held from making it durable until its outcome counts: an error is told once.
    syncing: Mutex<()>,
}

impl Drop for OpenedFile {
    fn drop(&mut self) {
        self.client.release(self.fh);
    }
}

/// See the module's text.
pub(crate) struct Opened {
    client: Arc<Client>,
    files: Mutex<HashMap<Ino, Arc<OpenedFile>>>,
    start: u64,
    losses: AtomicU64,
}

impl Opened {
    pub(crate) fn new(client: Arc<Client>) -> Result<Opened, getrandom::Error> {
        let (files, losses) = Default::default();
        Ok(Opened { client, files, start: getrandom::u64()?, losses })
    }

    /// NFS-2: as long as it stays the same, what was written is here.
    pub(crate) fn verifier(&self) -> [u8; 8] {
        if broken!("nfs_one_verifier") {
            return self.start.to_be_bytes();
        }
        let lost = self.losses.load(Ordering::SeqCst);
        let session = self.client.session().rotate_left(32);
        self.start.wrapping_add(session).wrapping_add(lost).to_be_bytes()
    }

    /// Opens the file, if it is not open.
    pub(crate) fn open(&self, ino: Ino) -> Result<Arc<OpenedFile>, Status> {
        if let Some(file) = self.files.lock().get(&ino) {
            *file.used.lock() = Instant::now();
            return Ok(file.clone());
        }
        let fh = self.client.open(ino, Access::Both)?;
        let (client, is_dirty) = (self.client.clone(), AtomicBool::default());
        let (used, syncing) = (Mutex::new(Instant::now()), Mutex::default());
        let file = Arc::new(OpenedFile { client, ino, fh, is_dirty, used, syncing });
        // Another one may have opened it meanwhile: then this one is closed again.
        Ok(self.files.lock().entry(ino).or_insert_with(|| file.clone()).clone())
    }

    /// The file is about to be written, or was: who makes it durable meanwhile may miss the bytes.
    pub(crate) fn writes(&self, file: &OpenedFile) {
        file.is_dirty.store(true, Ordering::SeqCst);
    }

    /// Makes durable what was written through this server, and says of which verifier it is.
    pub(crate) fn commit(&self, ino: Ino, what: Sync) -> Result<[u8; 8], Status> {
        let file = self.files.lock().get(&ino).cloned();
        // What was written and is not open is durable, or belongs to another verifier.
        if let Some(file) = file {
            self.sync(&file, what)?;
        }
        Ok(self.verifier())
    }

    pub(crate) fn sync(&self, file: &OpenedFile, what: Sync) -> Result<(), Status> {
        let _syncing = file.syncing.lock();
        file.is_dirty.store(false, Ordering::SeqCst);
        self.client.fsync(file.fh, what).inspect_err(|status| {
            file.is_dirty.store(true, Ordering::SeqCst);
            self.losses.fetch_add(1, Ordering::SeqCst);
            tracing::error!("nfs: inode {} could not be made durable: {status}", file.ino);
        })
    }

    /// The file loses its last name: it must not live on because it is open here.
    pub(crate) fn close(&self, ino: Ino) {
        // It is closed when nobody waits for the others.
        let file = self.files.lock().remove(&ino);
        drop(file);
    }

    /// Closes files that were not used for a while.
    pub(crate) fn close_idle(&self) {
        let idle = {
            let files = self.files.lock();
            let mut ages: Vec<_> =
                files.values().map(|file| (file.used.lock().elapsed(), file.clone())).collect();
            ages.sort_by_key(|(age, _)| *age);
            let excess = ages.split_off(ages.len().min(MOST));
            let idle = ages.into_iter().filter(|(age, _)| *age >= IDLE);
            idle.chain(excess).map(|(_, file)| file).collect::<Vec<_>>()
        };
        idle.into_iter().for_each(|file| self.close_one(file));
    }

    fn close_one(&self, file: Arc<OpenedFile>) {
        let is_dirty = file.is_dirty.load(Ordering::SeqCst);
        if is_dirty && self.sync(&file, Sync::All).is_err() {
            // It stays, for the client's COMMIT.
            return;
        }
        let mut files = self.files.lock();
        // One more is the table's. Who writes it just now has it too.
        let is_idle = Arc::strong_count(&file) == 2 && !file.is_dirty.load(Ordering::SeqCst);
        let gone = is_idle.then(|| files.remove(&file.ino));
        drop(files);
        drop(gone);
    }

    /// Makes all durable, at the end.
    pub(crate) fn close_all(&self) {
        let files: Vec<_> = self.files.lock().drain().map(|(_, file)| file).collect();
        for file in files {
            // It was told in the log.
            let _ = self.sync(&file, Sync::All);
        }
    }
}
