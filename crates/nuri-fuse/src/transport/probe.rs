//! Finds out whether the kernel would accept entries of the ring transport.

use std::io;

use super::device::Device;
use super::ring_entry::RingEntry;

/// Proof that entries can be made, and the means to tell the kernel that there will be none.
pub(crate) struct Probe(RingEntry);

impl Probe {
    /// # Errors
    /// Where the kernel or a security policy refuses io_uring.
    pub(crate) fn new(device: &Device) -> io::Result<Probe> {
        // No machine has that many processors: registering it would be refused.
        RingEntry::new(device.raw(), u16::MAX).map(Probe)
    }

    /// Makes the kernel go on without rings: it does when a registration fails, and until all
    /// queues are there or one failed it holds all requests back.
    pub(crate) fn call_off(mut self) {
        let _ = self.0.register();
    }
}
