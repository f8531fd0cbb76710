//! Read repair: a background thread repairs stripes in which a program's read met a damaged block.
//!
//! The read itself is answered from the other members. The stripe then waits here until the thread
//! repairs it.

use std::collections::BTreeMap;
use std::time::Duration;

use nuri_proto::id::ChunkKey;
use parking_lot::{Condvar, Mutex};

use super::port::Port;
use super::scrub::Verdict;
use super::{Groups, Stripe};

/// Stripes that wait. What finds no room is met again by another read, or by the scrub.
const MOST: usize = 256;
/// A stripe that its writers keep busy is left to the next read after so many looks.
const TRIES: usize = 5;
const TRY_PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Damaged {
    waiting: Mutex<BTreeMap<ChunkKey, Stripe>>,
    added: Condvar,
}

impl Damaged {
    pub(super) fn add(&self, stripe: Stripe) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < MOST {
            waiting.insert(stripe.key, stripe);
            self.added.notify_one();
        }
    }
}

impl<P: Port> Groups<P> {
    /// Waits until a read met a damaged block, at most so long.
    pub fn wait_damaged(&self, at_most: Duration) -> bool {
        let mut waiting = self.damaged.waiting.lock();
        if waiting.is_empty() {
            self.damaged.added.wait_for(&mut waiting, at_most);
        }
        !waiting.is_empty()
    }

    /// Repairs the stripes that wait; returns what was found of each.
    pub fn repair_damaged(&self) -> Vec<(Stripe, Verdict)> {
        let waiting = std::mem::take(&mut *self.damaged.waiting.lock());
        let repair = |stripe: Stripe| {
            let mut verdict = Verdict::default();
            // Kept frames are worth something under the right to the file, which may be gone.
            self.rows.forget(stripe.key.object);
            for _ in 0..TRIES {
                if self.scrub(&stripe, &mut verdict).is_ok() {
                    break;
                }
                self.port.pause(TRY_PAUSE);
                self.port.refresh();
            }
            (stripe, verdict)
        };
        waiting.into_values().map(repair).collect()
    }
}
