//! Tells the server which locks of a file the client granted by itself.
//!
//! The client does so in three cases: before it asks the server about the file again, when the
//! server asks for the file, and when nobody uses the file any more.

use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::REQUEST;
use nuri_proto::id::Ino;
use nuri_proto::op::lock::{LockRecall, LockTell};
use nuri_proto::status::RetryClass;
use nuri_rpc::Awake;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::record::LockRecord;
use super::{AGAIN, LockClient};

/// Who waits for a file to be told looks again after so long.
const LOOK: Duration = Duration::from_millis(100);

/// What the worker has to tell.
#[derive(Default)]
pub(super) struct Tells {
    queue: Mutex<Vec<LockTell>>,
    wake: Condvar,
    /// A file was told, or needs not be any more.
    told: Condvar,
}

impl Tells {
    fn push(&self, tell: LockTell) {
        self.queue.lock().push(tell);
        self.wake.notify_all();
    }

    /// Nothing is told any more of what was: who waited for it goes on.
    pub(super) fn wake(&self) {
        self.told.notify_all();
    }
}

/// Where a question about a file's locks is answered.
pub(super) enum Decided<'a, T> {
    Here(T),
    /// By the server, which knows all that the record does.
    There(MutexGuard<'a, LockRecord>),
}

impl LockClient {
    /// Decides here, where this client may and can. Otherwise it first tells the server what was
    /// decided.
    pub(super) fn decide<T>(
        &self,
        ino: Ino,
        here: impl Fn(&mut LockRecord) -> Option<T>,
    ) -> Result<Decided<'_, T>, Status> {
        let start = Awake::now();
        let mut record = self.record.lock();
        loop {
            if record.is_telling(ino) {
                if start.elapsed() > REQUEST {
                    return Err(Status::IO);
                }
                self.tells.told.wait_for(&mut record, LOOK);
                continue;
            }
            if self.session.trusts_leases()
                && let Some(answer) = here(&mut record)
            {
                return Ok(Decided::Here(answer));
            }
            let Some(tell) = record.begin_tell(ino) else { return Ok(Decided::There(record)) };
            MutexGuard::unlocked(&mut record, || self.tell(tell))?;
        }
    }

    /// Tells once; what was not answered is repeated by the worker.
    fn tell(&self, tell: LockTell) -> Result<(), Status> {
        let outcome = self.session.call(&tell);
        match outcome {
            Ok(()) => {
                self.record.lock().told(tell.ino, tell.number);
                self.tells.told.notify_all();
            }
            // Another server, or one that knows of another session, takes no notice of it.
            Err(status) => {
                if status.retry() == RetryClass::Never {
                    let ino = tell.ino;
                    tracing::error!("client: locks of inode {ino} are not taken: {status}");
                }
                self.tells.push(tell);
            }
        }
        outcome
    }

    /// Called when the server asks for a file. Returns at once.
    pub(crate) fn recalled(&self, recall: LockRecall) {
        let tell = self.record.lock().recalled(recall);
        tell.into_iter().for_each(|tell| self.tells.push(tell));
    }

    /// The worker that tells the server; it runs for as long as the client lives.
    pub(crate) fn run_tells(&self) {
        let mut looked = Instant::now();
        while !self.session.stopping() {
            let mut queue = self.tells.queue.lock();
            if queue.is_empty() {
                self.tells.wake.wait_for(&mut queue, AGAIN);
            }
            let mut tells = std::mem::take(&mut *queue);
            drop(queue);
            if looked.elapsed() >= AGAIN {
                looked = Instant::now();
                tells.extend(self.record.lock().give_idle_back());
            }
            let failed = tells.into_iter().filter(|tell| self.tell(tell.clone()).is_err()).count();
            if failed > 0 {
                std::thread::sleep(AGAIN);
            }
        }
    }
}
