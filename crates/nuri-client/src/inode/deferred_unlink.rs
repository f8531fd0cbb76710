//! Files that another one took the last name of: a program may have found one under the name just
//! before and be about to open it. Its kernel looks the name up only once more before it tells the
//! program "stale", which a local file system never does. So such a file goes a little later.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nuri_proto::id::Ino;
use parking_lot::Mutex;

use crate::client::Shared;

/// Much longer than the way from a look at the kernel's names to the request.
const LINGER: Duration = Duration::from_millis(200);

/// Inodes without a name, and when they go.
#[derive(Default)]
pub(crate) struct DeferredUnlinks(Mutex<VecDeque<(Instant, Ino)>>);

impl Shared {
    /// The inode lost its last name. Open or not, it stays for now.
    pub(crate) fn defer_unlink(&self, ino: Ino) {
        if let Some(node) = self.inodes.find(ino) {
            let mut state = node.state.lock();
            (state.orphan, state.lingers) = (true, true);
        }
        self.deferred.0.lock().push_back((Instant::now() + LINGER, ino));
    }

    /// Lets those go whose time is over and that are not open.
    pub(crate) fn end_deferred_unlinks(&self) {
        let now = Instant::now();
        let over: Vec<_> = {
            let mut lingering = self.deferred.0.lock();
            let count = lingering.partition_point(|(end, _)| *end <= now);
            lingering.drain(..count).map(|(_, ino)| ino).collect()
        };
        for ino in over {
            if let Some(node) = self.inodes.find(ino) {
                node.state.lock().lingers = false;
            }
            self.note_orphan(ino);
        }
    }
}
