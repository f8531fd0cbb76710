//! Inodes that clients asked for lately. While this file refers to an inode, the client library
//! keeps what it knows of the inode, and its leases.

use std::collections::HashMap;
use std::sync::Arc;

use nuri_client::Client;
use nuri_proto::id::Ino;
use parking_lot::Mutex;

/// How often each was found, which is how often it has to be forgotten.
type References = HashMap<Ino, u64>;

/// Those of two times: what was not asked for in the later one goes when it is full.
pub(crate) struct Remembered {
    client: Arc<Client>,
    most: usize,
    times: Mutex<(References, References)>,
}

impl Remembered {
    /// At most twice so many.
    pub(crate) fn new(client: Arc<Client>, most: usize) -> Remembered {
        Remembered { client, most, times: Mutex::default() }
    }

    /// The inode was found once more.
    pub(crate) fn found(&self, ino: Ino) {
        self.note(ino, 1);
    }

    /// Whether it is remembered, from now on for longer.
    pub(crate) fn has(&self, ino: Ino) -> bool {
        let mut times = self.times.lock();
        let (now, before) = &mut *times;
        if now.contains_key(&ino) {
            return true;
        }
        let Some(count) = before.remove(&ino) else { return false };
        drop(times);
        self.note(ino, count);
        true
    }

    fn note(&self, ino: Ino, count: u64) {
        let gone = {
            let mut times = self.times.lock();
            let (now, before) = &mut *times;
            let earlier = before.remove(&ino).unwrap_or(0);
            *now.entry(ino).or_default() += count + earlier;
            if now.len() < self.most {
                return;
            }
            std::mem::replace(before, std::mem::take(now))
        };
        for (ino, count) in gone {
            self.client.forget(ino, count);
        }
    }
}
