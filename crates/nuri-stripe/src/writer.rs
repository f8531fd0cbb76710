//! What a writer of a stripe does next: pure decisions over the members' answers.
//!
//! WRITER-1 A write names its participants: the data members that it touches and every parity
//!    member, or every copy, as far as they take part in writes.
//! WRITER-2 A write is decided when every participant holds it durably, all in one epoch. A
//!    majority is never enough.
//! WRITER-3 A participant that does not answer is asked again until it does, or until the group has
//!    a new epoch. Then the stripe is settled first (`settle.rs`).
//! WRITER-4 A refusal is no loss. What is staged is settled, and the write is done again on what
//!    the members hold, under a higher version.

use nuri_proto::Status;
use nuri_proto::layout::Shape;
use nuri_proto::status::RetryClass;
use nuri_proto::stripe::{Covers, Held, Members, StageReply};
use nuri_rules::broken;

/// Participants of a write that touches these data places (WRITER-1).
pub fn participants(shape: Shape, touched: Members, writable: Members) -> Members {
    let wanted = match shape {
        Shape::Stripe | Shape::Mirror(_) => Members::of(0..shape.members()),
        Shape::Parity { .. } => Members(touched.0 | parity(shape).0),
    };
    Members(wanted.0 & writable.0)
}

/// Places of the parity members.
pub fn parity(shape: Shape) -> Members {
    match shape {
        Shape::Parity { .. } => Members::of(shape.data()..shape.members()),
        Shape::Stripe | Shape::Mirror(_) => Members::default(),
    }
}

/// What a member's bytes must stand for, as part of what the whole stripe stands for.
pub fn covers_at(shape: Shape, place: usize, stripe: &Covers) -> Covers {
    match shape {
        Shape::Stripe | Shape::Mirror(_) => Covers::one(stripe.get(0)),
        Shape::Parity { .. } if place < shape.data() => Covers::one(stripe.get(place)),
        Shape::Parity { .. } => stripe.clone(),
    }
}

/// What the whole stripe stands for, from what its members hold (nothing staged).
pub fn stripe_covers(shape: Shape, held: &[(usize, Held)]) -> Covers {
    let mut stripe = Covers::default();
    for (place, held) in held {
        match shape {
            Shape::Parity { .. } if *place < shape.data() => {
                stripe.set(*place, stripe.get(*place).max(held.covers.get(0)));
            }
            _ => (0..held.covers.0.len()).for_each(|i| {
                stripe.set(i, stripe.get(i).max(held.covers.get(i)));
            }),
        }
    }
    stripe
}

/// Members that hold less than the stripe stands for.
pub fn behind(shape: Shape, held: &[(usize, Held)], stripe: &Covers) -> Members {
    let lacks =
        |(place, held): &&(usize, Held)| !held.covers.same(&covers_at(shape, *place, stripe));
    Members::of(held.iter().filter(lacks).map(|(place, _)| *place))
}

/// One participant's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Staged { allocated: u64 },
    Refused(Held),
    Failed(Status),
}

impl Answer {
    pub fn of(reply: Result<StageReply, Status>) -> Answer {
        match reply {
            Ok(StageReply::Staged { allocated }) => Answer::Staged { allocated },
            Ok(StageReply::Refused(held)) => Answer::Refused(held),
            Err(status) => Answer::Failed(status),
        }
    }
}

/// Bytes of the file that a write newly allocated: redundancy left out.
pub fn allocated(shape: Shape, answers: &[(usize, Answer)]) -> u64 {
    let of_one = |(place, answer): &(usize, Answer)| match answer {
        Answer::Staged { allocated } => Some((*place, *allocated)),
        _ => None,
    };
    let all = answers.iter().filter_map(of_one);
    match shape {
        Shape::Parity { .. } => all.filter(|(p, _)| *p < shape.data()).map(|(_, a)| a).sum(),
        Shape::Stripe | Shape::Mirror(_) => all.map(|(_, a)| a).max().unwrap_or(0),
    }
}

/// What comes next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// All participants hold it (WRITER-2).
    Decided,
    /// Ask these again (WRITER-3).
    AskAgain(Members),
    /// Find out what the stripe stands for, then write anew (WRITER-4).
    Rebase,
    /// What this member holds is damaged: bring it its content, then ask again.
    Repair(usize),
    /// Abort and tell the caller.
    GiveUp(Status),
}

/// Rules WRITER-2 to WRITER-4, for a group that is still in the write's epoch.
pub fn next(answers: &[(usize, Answer)]) -> Next {
    let mut again = Vec::new();
    for (place, answer) in answers {
        match answer {
            Answer::Staged { .. } => {}
            Answer::Refused(_) => return Next::Rebase,
            Answer::Failed(Status::CORRUPT) => return Next::Repair(*place),
            Answer::Failed(status) if status.retry() == RetryClass::Later => again.push(*place),
            Answer::Failed(status) => return Next::GiveUp(*status),
        }
    }
    let enough = broken!("ack_on_most") && again.len() * 2 < answers.len();
    if again.is_empty() || enough {
        return Next::Decided;
    }
    Next::AskAgain(Members::of(again))
}

#[cfg(test)]
mod tests {
    use nuri_proto::stripe::Version;

    use super::*;

    const PARITY: Shape = Shape::Parity { k: 3, m: 1 };

    #[test]
    fn parity_takes_part_in_every_write_and_untouched_data_in_none() {
        let all = Members(0b1111);
        assert_eq!(participants(PARITY, Members(0b010), all), Members(0b1010));
        assert_eq!(participants(PARITY, Members(0b010), Members(0b1101)), Members(0b1000));
        assert_eq!(participants(Shape::Mirror(3), Members(1), Members(0b101)), Members(0b101));
    }

    /// Catches `broken!("ack_on_most")`.
    #[test]
    fn decided_means_all() {
        let staged = (0, Answer::Staged { allocated: 5 });
        let other = (1, Answer::Staged { allocated: 5 });
        let lost = |place| (place, Answer::Failed(Status::UNREACHABLE));
        assert_eq!(next(&[staged.clone(), other.clone()]), Next::Decided);
        assert_eq!(next(&[staged, other, lost(2)]), Next::AskAgain(Members(0b100)));
    }

    #[test]
    fn a_refusal_and_a_full_disk_are_no_loss() {
        let refused = (0, Answer::Refused(Held::default()));
        assert_eq!(next(std::slice::from_ref(&refused)), Next::Rebase);
        let full = (1, Answer::Failed(Status::NOSPC));
        assert_eq!(next(&[full]), Next::GiveUp(Status::NOSPC));
        assert_eq!(next(&[(2, Answer::Failed(Status::CORRUPT))]), Next::Repair(2));
    }

    #[test]
    fn who_missed_a_write_is_behind() {
        let held = |covers: &[u64]| Held {
            covers: Covers(covers.iter().map(|v| Version(*v)).collect()),
            ..Held::default()
        };
        let all = [(0, held(&[4])), (1, held(&[])), (3, held(&[4, 6]))];
        let stripe = stripe_covers(PARITY, &all);
        assert_eq!(stripe, Covers(vec![Version(4), Version(6)]));
        assert_eq!(behind(PARITY, &all, &stripe), Members(0b0010));
        assert_eq!(behind(PARITY, &[(2, held(&[]))], &stripe), Members(0), "never written");
    }
}
