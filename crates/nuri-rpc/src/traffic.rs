//! Counts the bytes on the connections to a peer, and how often they were copied on the way.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

pub use nuri_proto::op::cluster::Path;

/// Counters of all connections to a peer.
#[derive(Default)]
pub(crate) struct Traffic {
    path: AtomicU8,
    bytes: AtomicU64,
    copied: AtomicU64,
}

/// Since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carried {
    /// Of the latest connection.
    pub path: Path,
    /// Of payloads, both ways.
    pub bytes: u64,
    /// Bytes that either end, or the kernel for it, copied to carry them.
    pub copied: u64,
}

impl Traffic {
    pub(crate) fn connected(&self, path: Path) {
        self.path.store(path as u8, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, bytes: usize, copied: u64) {
        if bytes > 0 {
            self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            self.copied.fetch_add(copied, Ordering::Relaxed);
        }
    }

    pub(crate) fn carried(&self) -> Carried {
        let path = match self.path.load(Ordering::Relaxed) {
            path if path == Path::SingleCopy as u8 => Path::SingleCopy,
            path if path == Path::Unix as u8 => Path::Unix,
            _ => Path::Tcp,
        };
        let (bytes, copied) = (&self.bytes, &self.copied);
        Carried {
            path,
            bytes: bytes.load(Ordering::Relaxed),
            copied: copied.load(Ordering::Relaxed),
        }
    }
}
