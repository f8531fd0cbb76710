//! What becomes of a write whose writer is gone, or does not know: the recovery decision. Pure.
//!
//! S1 Evidence is what every live member says in the group's present epoch. Where one does not
//!    answer, nothing is decided: it answers, or the group gets an epoch without it.
//! S2 Committed anywhere, or staged on every live participant: forward. Every participant held it
//!    when it was acknowledged, and live members forget nothing, so what was acknowledged goes
//!    forward.
//! S3 A live participant without it: abort. It was never acknowledged. The members without it
//!    promise first never to stage it (M5); only when they have promised, and still do not hold it,
//!    do the others drop it. So two who settle, or a writer still at work, cannot come to different
//!    ends.
//! S4 Members that are being brought up to date are no evidence: what they lack may be what they
//!    missed.

use nuri_proto::layout::Shape;
use nuri_proto::stripe::{Held, Members, Staged, Version};

/// What to do next; then the members are asked anew, until the stripe is clean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nothing is staged.
    Clean,
    /// These members commit it.
    Forward { version: Version, on: Members },
    /// These members promise not to take it.
    Promise { version: Version, on: Members },
    /// These members drop it.
    Drop { version: Version, on: Members },
}

/// Decides about the lowest undecided write, from the answers of all members that take part in
/// writes; `live` are those that are evidence.
pub fn decide(shape: Shape, answers: &[(usize, Held)], live: Members) -> Decision {
    let staged = answers.iter().filter_map(|(_, held)| held.staged.as_ref());
    let Some(write) = staged.min_by_key(|s| (s.version, s.id)) else {
        return Decision::Clean;
    };
    let version = write.version;
    let places = |wanted: &dyn Fn(usize, &Held) -> bool| {
        Members::of(answers.iter().filter(|(p, h)| wanted(*p, h)).map(|(p, _)| *p))
    };
    let on = places(&|_, held| has_staged(held, write));
    let touched = touched(shape, answers, write);
    let is_committed = |place, held: &Held| covers(shape, touched, place, held, version);
    let committed = places(&is_committed);
    let is_evidence = |place| live.has(place) || cfg!(nuri_break = "syncing_is_evidence");
    let lacks = |place, held: &Held| {
        write.participants.has(place) && is_evidence(place) && !has_staged(held, write)
    };
    let without = places(&lacks);
    let none = Members::default();
    if committed != none || without == none || cfg!(nuri_break = "forward_on_any") {
        return Decision::Forward { version, on };
    }
    let promise = places(&|place, held| lacks(place, held) && held.floor < version);
    if promise == none || cfg!(nuri_break = "drop_without_promise") {
        Decision::Drop { version, on }
    } else {
        Decision::Promise { version, on: promise }
    }
}

fn has_staged(held: &Held, write: &Staged) -> bool {
    held.staged.as_ref().is_some_and(|s| s.version == write.version && s.id == write.id)
}

/// Data places that the write changes, as told by those who hold it.
fn touched(shape: Shape, answers: &[(usize, Held)], write: &Staged) -> Members {
    let of_one = |(place, held): &(usize, Held)| {
        let Some(s) = held.staged.as_ref().filter(|_| has_staged(held, write)) else {
            return 0;
        };
        let is_data = *place < shape.data() && shape.members() > shape.data();
        match shape {
            Shape::Parity { .. } if is_data => Members::of([*place]).0,
            _ => Members::of((0..s.covers.0.len()).filter(|i| s.covers.0[*i] == s.version)).0,
        }
    };
    Members(answers.iter().map(of_one).fold(0, |all, one| all | one))
}

/// Whether the member's base includes the write.
fn covers(shape: Shape, touched: Members, place: usize, held: &Held, version: Version) -> bool {
    let reaches = |i: usize| held.covers.get(i) >= version;
    match shape {
        Shape::Parity { .. } if place < shape.data() => touched.has(place) && reaches(0),
        Shape::Parity { .. } => touched.iter().any(reaches),
        Shape::Stripe | Shape::Mirror(_) => reaches(0),
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::SessionId;
    use nuri_proto::stripe::{Covers, WriteId};

    use super::*;

    const V: Version = Version(7);
    const ID: WriteId = WriteId { session: SessionId(1), number: 1 };
    const MIRROR: Shape = Shape::Mirror(3);
    const PARITY: Shape = Shape::Parity { k: 2, m: 1 };

    fn staged(covers: &[u64], participants: u32) -> Held {
        let covers = Covers(covers.iter().map(|v| Version(*v)).collect());
        let participants = Members(participants);
        Held {
            staged: Some(Staged { version: V, id: ID, covers, participants }),
            ..Held::default()
        }
    }

    fn committed(covers: &[u64]) -> Held {
        let covers = Covers(covers.iter().map(|v| Version(*v)).collect());
        Held { covers, last: ID, ..Held::default() }
    }

    #[test]
    fn on_all_live_participants_is_forward() {
        let answers = [(0, staged(&[7], 0b11)), (1, staged(&[7], 0b11)), (2, Held::default())];
        let forward = Decision::Forward { version: V, on: Members(0b11) };
        assert_eq!(decide(MIRROR, &answers, Members(0b111)), forward);
        // A lost participant is no evidence.
        let forward = Decision::Forward { version: V, on: Members(0b1) };
        assert_eq!(decide(MIRROR, &answers[..1], Members(0b1)), forward);
        assert_eq!(decide(MIRROR, &[(0, committed(&[7]))], Members(1)), Decision::Clean);
    }

    /// Catches `nuri_break = "forward_on_any"` and `nuri_break = "drop_without_promise"`.
    #[test]
    fn missing_on_a_live_participant_is_abort_with_its_promise_first() {
        let mut answers = [(0, staged(&[7], 0b11)), (1, Held::default())];
        let promise = Decision::Promise { version: V, on: Members(0b10) };
        assert_eq!(decide(MIRROR, &answers, Members(0b11)), promise);
        answers[1].1.floor = V;
        let drop = Decision::Drop { version: V, on: Members(0b01) };
        assert_eq!(decide(MIRROR, &answers, Members(0b11)), drop);
        // It arrived before the promise.
        answers[1].1 = staged(&[7], 0b11);
        let forward = Decision::Forward { version: V, on: Members(0b11) };
        assert_eq!(decide(MIRROR, &answers, Members(0b11)), forward);
    }

    #[test]
    fn committed_anywhere_is_forward() {
        let answers = [(0, staged(&[7], 0b111)), (1, committed(&[7])), (2, Held::default())];
        let forward = Decision::Forward { version: V, on: Members(0b001) };
        assert_eq!(decide(MIRROR, &answers, Members(0b111)), forward);
    }

    #[test]
    fn parity_that_moved_on_counts_as_committed_only_for_the_chunk_in_question() {
        let data = staged(&[7], 0b101);
        let moved_on = |covers: &[u64]| Held { last: WriteId::default(), ..committed(covers) };
        // The commit of the first chunk's write was lost; parity has seen two since.
        let answers = [(0, data.clone()), (1, committed(&[9])), (2, moved_on(&[7, 9]))];
        let forward = Decision::Forward { version: V, on: Members(0b001) };
        assert_eq!(decide(PARITY, &answers, Members(0b111)), forward);
        // Parity never had it, only a later write of the other chunk.
        let answers = [(0, data), (1, committed(&[9])), (2, moved_on(&[4, 9]))];
        let promise = Decision::Promise { version: V, on: Members(0b100) };
        assert_eq!(decide(PARITY, &answers, Members(0b111)), promise);
    }

    /// Catches `nuri_break = "syncing_is_evidence"`.
    #[test]
    fn a_member_that_missed_writes_is_no_evidence() {
        let answers = [(0, staged(&[7], 0b11)), (1, Held::default())];
        let forward = Decision::Forward { version: V, on: Members(0b01) };
        assert_eq!(decide(MIRROR, &answers, Members(0b01)), forward);
    }
}
