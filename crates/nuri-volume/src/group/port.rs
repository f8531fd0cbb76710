//! What the code for stripes needs from the outside: calls to members, and time.

use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::id::{GroupId, SessionId, TargetId};
use nuri_proto::map::Group;
use nuri_proto::op::Call;

/// A call to one member.
pub struct Ask<'a, C> {
    pub target: TargetId,
    pub call: C,
    pub payload: &'a [u8],
    /// Takes the reply's payload, of this very length.
    pub into: &'a mut [u8],
}

impl<C> Ask<'_, C> {
    /// A call without payloads.
    pub fn plain(target: TargetId, call: C) -> Ask<'static, C> {
        Ask { target, call, payload: &[], into: &mut [] }
    }
}

/// The outside of the code for stripes: members, map and time.
pub trait Port: Send + Sync {
    /// The group as last heard.
    fn group(&self, id: GroupId) -> Option<Group>;

    /// Hears of the map anew.
    fn refresh(&self);

    /// Asks all at once; the answers in the same order. No answer in short time is
    /// [`Status::UNREACHABLE`]. Calls may arrive twice, late, or not at all.
    fn exchange<C: Call>(
        &self,
        session: SessionId,
        asks: Vec<Ask<'_, C>>,
    ) -> Vec<Result<C::Reply, Status>>;

    /// Sends a change of which a late copy would do harm. One that gets no answer is never done
    /// after a newer one of the same session.
    fn change<C: Call>(
        &self,
        session: SessionId,
        target: TargetId,
        call: &C,
        patience: Duration,
    ) -> Result<C::Reply, Status>;

    fn now(&self) -> Duration;

    fn pause(&self, time: Duration);
}
