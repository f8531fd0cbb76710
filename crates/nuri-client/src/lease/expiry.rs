//! Expiry of leases: the client trusts a lease only while the server may still believe in it.
//!
//! The server keeps a session for `SESSION` after it last heard from it. The client counts from the
//! moment when it *sent* the call that renewed the session, so its time always ends first. After
//! `SUSPEND`, operations wait for the server, and the kernel's page caches are emptied. What the
//! kernel cached with a time ends by `CLIENT_LEASE`. Only then may the server give the leases to
//! other clients.

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
