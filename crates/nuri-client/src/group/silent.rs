//! Members that did not answer a moment ago: they are not waited for again and again.

use std::collections::HashMap;
use std::time::Duration;

use nuri_proto::clock::{FAILURE_DETECTION, MEMBER_PATIENCE};
use nuri_proto::id::TargetId;
use parking_lot::Mutex;

use super::Groups;
use super::port::Port;

/// Reads avoid a silent member for so long: then the authority has noticed too.
const AVOIDED: Duration = FAILURE_DETECTION;

/// Until when which target is avoided.
#[derive(Default)]
pub(super) struct Silent(Mutex<HashMap<TargetId, Duration>>);

impl<P: Port> Groups<P> {
    /// A target that was asked at `asked` could not be reached. One that refused at once is not
    /// worth avoiding: it costs no time.
    pub(crate) fn note_unreachable(&self, target: TargetId, asked: Duration) {
        let now = self.port.now();
        if now.saturating_sub(asked) >= MEMBER_PATIENCE / 2 {
            self.silent.0.lock().insert(target, now + AVOIDED);
        }
    }

    /// Whether reads should do without the target.
    pub(super) fn is_silent(&self, target: TargetId) -> bool {
        let until = self.silent.0.lock().get(&target).copied();
        let avoided = until.is_some_and(|until| self.port.now() < until);
        if until.is_some() && !avoided && self.silent.0.lock().remove(&target).is_some() {
            // Before it is asked again: its groups may go on without it.
            self.port.refresh();
        }
        avoided
    }

    /// The time, as [`Groups::note_unreachable`] wants it.
    pub(crate) fn now(&self) -> Duration {
        self.port.now()
    }
}
