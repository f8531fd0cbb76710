//! Tells the kernel what it must no longer cache. These calls may block on the kernel, so they come
//! from recall threads that hold no locks.

use std::io::IoSlice;
use std::sync::Arc;

use nuri_client::KernelCache;
use nuri_proto::id::Ino;
use nuri_rules::pause;
use zerocopy::IntoBytes;

use crate::protocol::abi::{
    NOTIFY_INC_EPOCH, NOTIFY_INVAL_INODE, NOTIFY_PRUNE, NotifyInvalInode, NotifyPrune, OutHeader,
};
use crate::transport::device::Device;
use crate::transport::kernel_size::UnsureSizes;
use crate::transport::load::Load;

/// Writes notifications on the mount's connection.
pub(crate) struct Notifier {
    pub(crate) device: Device,
    pub(crate) load: Arc<Load>,
    /// The kernel knows `NOTIFY_PRUNE`.
    pub(crate) prunes: bool,
    pub(crate) unsure: Arc<UnsureSizes>,
}

impl Notifier {
    /// False: the kernel does not know the inode, so it caches nothing of it.
    fn send(&self, code: i32, body: &[u8]) -> bool {
        let len = (size_of::<OutHeader>() + body.len()) as u32;
        let header = OutHeader { len, error: code, unique: 0 };
        let sent = self.device.write(&[IoSlice::new(header.as_bytes()), IoSlice::new(body)]);
        !sent.is_err_and(|e| e.raw_os_error() == Some(libc::ENOENT))
    }

    /// An inode that the kernel does not know has no size there that could be wrong.
    fn told(&self, (ino, doubts): (Ino, u64), is_known: bool) -> bool {
        if !is_known {
            self.unsure.settle(ino, doubts);
        }
        is_known
    }
}

impl KernelCache for Notifier {
    fn doubt(&self, ino: Ino) {
        self.unsure.doubt(ino);
    }

    fn invalidate_attributes(&self, ino: Ino) -> bool {
        let doubts = self.unsure.doubt(ino);
        pause!("notify");
        // Before any page: attributes only.
        let body = NotifyInvalInode { ino: ino.0, off: -1, len: 0 };
        self.told((ino, doubts), self.send(NOTIFY_INVAL_INODE, body.as_bytes()))
    }

    fn invalidate_pages(&self, ino: Ino, offset: u64, len: u64) -> bool {
        let doubts = self.unsure.doubt(ino);
        pause!("notify");
        let body = NotifyInvalInode { ino: ino.0, off: offset as i64, len: len as i64 };
        // Dirty pages of a mapping become WRITE requests, for which the kernel waits in the call.
        self.told((ino, doubts), self.load.apart(|| self.send(NOTIFY_INVAL_INODE, body.as_bytes())))
    }

    /// All names of the mount at once: takes no directory's lock, so it cannot wait for an
    /// operation of ours that waits for another client's recall.
    fn invalidate_entries(&self, _: Ino) {
        self.send(NOTIFY_INC_EPOCH, &[]);
    }

    fn drop_unused(&self, inos: &[Ino]) -> bool {
        if !self.prunes {
            return false;
        }
        let head = NotifyPrune { count: inos.len() as u32, ..NotifyPrune::default() };
        let mut body = head.as_bytes().to_vec();
        inos.iter().for_each(|ino| body.extend_from_slice(&ino.0.to_ne_bytes()));
        // The last reference may be dropped here, with pages that a mapping changed.
        self.load.apart(|| _ = self.send(NOTIFY_PRUNE, &body));
        true
    }
}
