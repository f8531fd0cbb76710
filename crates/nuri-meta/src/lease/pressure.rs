//! Keeps room in the table of leases. Where the table is nearly full, the server asks the session
//! with the most leases to give back those that its programs do not use. Without room in the table,
//! no client can cache anything new.

use std::time::Duration;

use nuri_proto::op::meta::Event;

use crate::server::{Core, MetaServer};

/// A session that was asked has so long to do so.
const EVERY: Duration = Duration::from_secs(2);

impl MetaServer {
    /// Asks a session to give leases back, where the table has hardly any room.
    pub(crate) fn shed_leases(&self, core: &mut Core) {
        let now = self.clock.monotonic();
        if now.saturating_sub(core.crowded) < EVERY {
            return;
        }
        let Some((id, inodes)) = core.leases.lease_pressure() else { return };
        core.crowded = now;
        if let Some(session) = core.sessions.get_mut(&id) {
            session.push(Event::Crowded { inodes: inodes as u32 });
        }
    }
}
