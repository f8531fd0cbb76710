//! Bytes that the client could not keep: which callers are told, and what is forgotten with them.

use std::sync::atomic::Ordering;

use nuri_proto::Status;

use super::Writeback;
use crate::inode::{Inode, InodeState};

impl Writeback {
    /// Notes that bytes of the file could not be kept. A program that has the file open for writing
    /// is told at its next sync or close. Where there is none, the unmount tells. A program that
    /// only reads would get the error for nothing. Nobody misses bytes of a removed file that no
    /// program can read again.
    pub(crate) fn note_loss(&self, state: &mut InodeState, status: Status) {
        state.note_error(status);
        self.note_untold(state);
    }

    /// Bytes of the file were lost, and the unmount tells where no program is left to tell.
    pub(crate) fn note_untold(&self, state: &InodeState) {
        if state.writers == 0 && !state.is_beyond_reach() {
            self.untold.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Forgets data of the file that could not be kept; programs are told once per open file.
    pub(crate) fn lose(&self, node: &Inode, status: Status) {
        let mut state = node.state.lock();
        let mut freed = 0;
        if let Some(file) = &mut state.file
            && file.own.is_dirty()
        {
            freed = file.own.lose();
            self.note_loss(&mut state, status);
        }
        drop(state);
        self.unreserve(freed);
    }

    /// Forgets data of the file that could not be kept. Returns whether any program may miss it.
    pub(super) fn forget_unkept(&self, node: &Inode, status: Status) -> bool {
        let mut state = node.state.lock();
        let is_missed = !state.is_beyond_reach();
        self.note_loss(&mut state, status);
        let freed = state.file.as_mut().map_or(0, |file| file.own.lose());
        drop(state);
        self.unreserve(freed);
        if is_missed {
            tracing::error!("client: inode {} could not be kept: {status}", node.ino);
        }
        is_missed
    }
}
