//! Remembers members that did not answer a moment ago, so that calls do not wait for them again and
//! again.

use std::collections::HashMap;
use std::time::Duration;

use nuri_proto::clock::{FAILURE_DETECTION, MEMBER_TIMEOUT};
use nuri_proto::id::TargetId;
use parking_lot::Mutex;

use super::Groups;
use super::port::Port;

/// Reads avoid an unresponsive member for so long: then the authority has noticed too.
const AVOIDED: Duration = FAILURE_DETECTION;

/// The targets that are avoided, and until when.
#[derive(Default)]
pub(super) struct Unresponsive(Mutex<HashMap<TargetId, Duration>>);

impl<P: Port> Groups<P> {
    /// Notes that a target that was asked at `asked` could not be reached. A target that refused at
    /// once is not worth avoiding, because it costs no time.
    pub fn note_unreachable(&self, target: TargetId, asked: Duration) {
        let now = self.port.now();
        if now.saturating_sub(asked) >= MEMBER_TIMEOUT / 2 {
            self.unresponsive.0.lock().insert(target, now + AVOIDED);
        }
    }

    /// Whether reads should do without the target.
    pub(super) fn is_unresponsive(&self, target: TargetId) -> bool {
        let until = self.unresponsive.0.lock().get(&target).copied();
        let avoided = until.is_some_and(|until| self.port.now() < until);
        if until.is_some() && !avoided && self.unresponsive.0.lock().remove(&target).is_some() {
            // Before it is asked again: its groups may go on without it.
            self.port.refresh();
        }
        avoided
    }

    /// The time, as [`Groups::note_unreachable`] wants it.
    pub fn now(&self) -> Duration {
        self.port.now()
    }
}
