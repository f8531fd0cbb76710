//! Keeping time: leases are trusted only while the server may still believe in them.
//!
//! The server keeps a session for `SESSION` after it heard of it. A client counts from when it
//! *sent* what renewed it, so its time always ends first: after `SUSPEND` operations wait for the
//! server and the kernel's page caches are emptied; what the kernel cached with a time ends by
//! `CLIENT_LEASE`. Then the server may give the leases to others.

use std::time::Duration;

use nuri_proto::clock::SUSPEND;

use crate::lease::acquire::Leases;

const TICK: Duration = Duration::from_millis(100);

impl Leases {
    /// Waits a little for the server to be heard again.
    pub(crate) fn wait_for_server(&self) {
        std::thread::sleep(TICK / 10);
    }

    /// Empties the kernel's caches whenever the server was silent too long.
    pub(crate) fn watch(&self) {
        let mut suspended = false;
        while !self.session.stopping() {
            std::thread::sleep(TICK);
            let trusted = self.session.trusts_leases();
            if !trusted && !suspended {
                tracing::warn!(
                    "client: the metadata server was silent for {SUSPEND:?}; files wait for it"
                );
                self.empty_page_caches();
            }
            if trusted && suspended {
                tracing::info!("client: the metadata server is back");
            }
            suspended = !trusted;
        }
    }

    fn empty_page_caches(&self) {
        let mut nodes = self.inodes.all();
        nodes.retain(|node| node.state.lock().reads > 0);
        // Nobody waits for the end: a page that is being read holds nothing of old.
        let _ = self.kernel.empty_kernel_apart(nodes);
    }
}
