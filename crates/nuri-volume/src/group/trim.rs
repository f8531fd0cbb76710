//! Gives back, at the members of a stripe, the space of blocks that hold only zeros. The content
//! that a member holds does not change, and neither does its version.

use nuri_proto::clock::REQUEST;
use nuri_proto::id::SessionId;
use nuri_proto::layout::Shape;
use nuri_proto::op::data::DataTrim;
use nuri_proto::stripe::Members;

use super::port::{Ask, Port};
use super::{Groups, Stripe};

impl<P: Port> Groups<P> {
    /// Frees blocks of zeros within a range of these members' chunks. Returns the bytes of the file
    /// that gave space back. A member that is not reached keeps its blocks.
    pub fn trim(
        &self,
        session: SessionId,
        stripe: &Stripe,
        places: Members,
        (offset, len): (u32, u32),
    ) -> u64 {
        // What is staged is not looked at.
        if self.settle_for_read(stripe, REQUEST).is_err() {
            return 0;
        }
        let Ok(group) = self.available(stripe.group) else { return 0 };
        let writable = group.writable();
        let asked: Vec<usize> = places.iter().filter(|place| writable.has(*place)).collect();
        let ask = |place: &usize| {
            let target = group.members[*place].target;
            Ask::plain(target, DataTrim { target, key: stripe.key, offset, len })
        };
        let answers = self.port.exchange(session, asked.iter().map(ask).collect());
        let freed = |(place, answer): (usize, Result<_, _>)| {
            let freed = answer.map_or(0, |reply: nuri_proto::op::data::PunchReply| reply.freed);
            (place < stripe.shape.data() || is_mirror(stripe)).then_some(freed)
        };
        let freed = asked.into_iter().zip(answers).filter_map(freed);
        if is_mirror(stripe) { freed.max().unwrap_or(0) } else { freed.sum() }
    }
}

fn is_mirror(stripe: &Stripe) -> bool {
    matches!(stripe.shape, Shape::Mirror(_))
}
