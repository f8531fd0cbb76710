//! Keeps a file for a while after another file replaced its last name.
//!
//! A program may have found the file under the name just before, and be about to open it. The
//! program's kernel looks the name up only once more before it tells the program "stale". A local
//! file system never says that. So the client removes such a file a little later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::id::Ino;
use parking_lot::Mutex;

use super::table::InodeTable;

/// Much longer than the way from a look at the kernel's names to the request.
const LINGER: Duration = Duration::from_millis(200);

/// Inodes without a name, and when they go.
pub(crate) struct DeferredUnlinks {
    inodes: Arc<InodeTable>,
    waiting: Mutex<VecDeque<(Instant, Ino)>>,
}

impl DeferredUnlinks {
    pub(crate) fn new(inodes: Arc<InodeTable>) -> DeferredUnlinks {
        DeferredUnlinks { inodes, waiting: Mutex::default() }
    }

    /// Notes that the inode lost its last name. Open or not, it stays for now.
    pub(crate) fn defer(&self, ino: Ino) {
        if let Some(inode) = self.inodes.find(ino) {
            let mut state = inode.state.lock();
            (state.orphan, state.lingers) = (true, true);
        }
        self.waiting.lock().push_back((Instant::now() + LINGER, ino));
    }

    /// Takes the inodes whose time is over. They no longer stay because of this.
    pub(crate) fn take_due(&self) -> Vec<Ino> {
        let now = Instant::now();
        let due: Vec<_> = {
            let mut waiting = self.waiting.lock();
            let count = waiting.partition_point(|(end, _)| *end <= now);
            waiting.drain(..count).map(|(_, ino)| ino).collect()
        };
        for inode in due.iter().filter_map(|ino| self.inodes.find(*ino)) {
            inode.state.lock().lingers = false;
        }
        due
    }
}
