//! Waiting inside a call, for leases, the end of grace or something to tell.
//!
//! Who plays the server and its clients on one thread cannot wait: then a call that would is
//! answered `RETRY`, and has sent its recalls; the caller asks again, as after a wait too long.

use std::sync::atomic::Ordering;
use std::time::Duration;

use nuri_proto::Status;
use parking_lot::MutexGuard;

use crate::server::{Core, MetaServer};

impl MetaServer {
    /// From here on no call waits.
    pub fn never_wait(&self) {
        self.is_polled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn never_waits(&self) -> bool {
        self.is_polled.load(Ordering::Relaxed)
    }

    /// Waits until leases or sessions changed, at most so long.
    pub(crate) fn pause(
        &self,
        core: &mut MutexGuard<'_, Core>,
        at_most: Duration,
    ) -> Result<(), Status> {
        if self.never_waits() {
            return Err(Status::RETRY);
        }
        self.changed.wait_for(core, at_most);
        Ok(())
    }
}
