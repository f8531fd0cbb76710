//! Deletes the end of an object at all members of a group.

use nuri_proto::Status;
use nuri_proto::clock::{MEMBER_TIMEOUT, REQUEST};
use nuri_proto::id::{Epoch, GroupId, ObjectId, SessionId, TargetId};
use nuri_proto::op::data::{Capability, DataTruncate};

use super::Groups;
use super::port::Port;

impl<P: Port> Groups<P> {
    /// Deletes the object's stripes of the group from `from` on, durably. Returns bytes given back.
    ///
    /// The stripes are deleted at all members that take part, in one epoch. So a member that the
    /// map at hand does not know as such keeps nothing. An absent member drops the chunks when it
    /// is brought up to date, because no other member has them any more. A member that is being
    /// brought up to date comes last, after all members that its chunks could be computed from.
    ///
    /// # Errors
    /// Where not all that take part were reached: then some have the chunks and some have not, and
    /// nobody may read the object before this was done again.
    pub fn truncate(
        &self,
        session: SessionId,
        group: GroupId,
        object: ObjectId,
        from: u32,
    ) -> Result<u64, Status> {
        let mut done: (Epoch, Vec<TargetId>) = Default::default();
        let mut freed = 0;
        self.forget_object(object);
        let end = self.port.now() + REQUEST;
        self.until(REQUEST, || {
            let left = end.saturating_sub(self.port.now());
            let group = self.port.group(group).ok_or(Status::UNREACHABLE)?;
            if done.0 != group.epoch {
                done = (group.epoch, Vec::new());
            }
            // A redundant group goes on without one that is silent.
            let is_redundant = group.shape.is_redundant();
            let patience = if is_redundant { left.min(MEMBER_TIMEOUT) } else { left };
            let within = is_redundant.then_some((group.id, group.epoch));
            let (live, writable) = (group.live(), group.writable());
            let others = writable.iter().filter(|place| !live.has(*place));
            for place in live.iter().chain(others) {
                let target = group.members[place].target;
                if done.1.contains(&target) {
                    continue;
                }
                let capability = Capability::default();
                let call = DataTruncate { target, object, from, capability, within };
                let gone = self.port.change(session, target, &call, patience)?.freed;
                if place < group.shape.data() {
                    freed += gone;
                }
                done.1.push(target);
            }
            Ok(())
        })?;
        Ok(freed)
    }
}
