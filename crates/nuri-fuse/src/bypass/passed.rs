//! Counts the programs and bytes that bypass the kernel, for the mount's reports.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nuri_proto::op::cluster::Programs;

/// Of one mount, since it began.
#[derive(Debug, Default)]
pub struct Passed {
    connections: AtomicU32,
    bytes: AtomicU64,
    copied: AtomicU64,
}

impl Passed {
    pub fn counts(&self) -> Programs {
        Programs {
            connections: self.connections.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            copied: self.copied.load(Ordering::Relaxed),
        }
    }

    pub(super) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn ended(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// So many bytes went, and each was copied so often between program and mount.
    pub(super) fn count(&self, bytes: usize, copies: u64) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.copied.fetch_add(bytes as u64 * copies, Ordering::Relaxed);
    }
}
