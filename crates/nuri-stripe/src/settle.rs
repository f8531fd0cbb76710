//! The recovery decision: what becomes of a write whose writer is gone, or does not know. Pure.
//!
//! SETTLE-1 Evidence is what every live member says in the group's present epoch. Where one does
//!    not answer, nothing is decided: it answers, or the group gets an epoch without it.
//! SETTLE-2 A write that is committed anywhere, or staged on every live participant, goes forward.
//!    Every participant held it when it was acknowledged, and live members forget nothing. So an
//!    acknowledged write always goes forward. A newer version than the write's is evidence for it
//!    only where nothing can have gone past the write. The reason: a writer without a lease asks
//!    only the members that its write takes part with.
//! SETTLE-3 A write that a live participant lacks is aborted, as it was never acknowledged. The
//!    members without it promise first never to stage it (MEMBER-5). Only when they have promised,
//!    and still do not hold it, do the others drop it. So two callers that settle, or a writer
//!    still at work, cannot come to different ends.
//! SETTLE-4 Members that are being brought up to date are no evidence about writes of earlier
//!    epochs: what they lack may be what they missed. In writes of the present epoch they take part
//!    as all members do. What they lack of those was never acknowledged, and nobody would bring it
//!    to them.
//! SETTLE-5 A live member that was not compared with the others since its machine was started may
//!    have lost what it held. A write that only such members lack goes forward where the others can
//!    give it to them. It may have been acknowledged, and if it was, the others can. They give it
//!    before they commit it: a stripe of which some members hold the new state and too few the old
//!    one could not bear the loss of a member. Where the write did not go forward, a member that
//!    was not compared is no evidence, and nothing is aborted before it was compared.
//! SETTLE-6 The content of such a member was truncated in this case: a member that sees all its
//!    writes stands for less, and accepts nothing up to that version any more. Then the member that
//!    was not compared lost the truncation.

use nuri_proto::id::Epoch;
use nuri_proto::layout::Shape;
use nuri_proto::stripe::{Held, Members, Staged, Version, WriteId};
use nuri_rules::broken;

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
/// writes, in the group's present `epoch`.
pub fn decide(shape: Shape, answers: &[(usize, Held)], live: Members, epoch: Epoch) -> Decision {
    let Some(look) = look(shape, answers, live, epoch) else {
        return Decision::Clean;
    };
    let Look { version, on, is_committed, without, promise, .. } = look;
    let none = Members::default();
    if is_committed || without == none || broken!("forward_on_any") {
        return Decision::Forward { version, on };
    }
    if promise == none || broken!("drop_without_promise") {
        Decision::Drop { version, on }
    } else {
        Decision::Promise { version, on: promise }
    }
}

/// A staged write that goes forward although members lack it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lacking {
    pub version: Version,
    pub id: WriteId,
    /// Who has it staged.
    pub on: Members,
    /// Who gets its content first; nobody where the write is decided already.
    pub without: Members,
    /// Whose chunks the content is computed from: who has it, and data that it does not change.
    pub from: Members,
}

/// The lowest undecided write, if it goes forward although live members lack it, because these
/// are all in `doubt` (SETTLE-5). Their content is computed from the others first, so what all hold
/// beside that write must fit together: `answers` are those of live members, and none is behind.
///
/// A member that lacks the write and holds a later one never had it, because versions rise. So the
/// write was never acknowledged, and its content would lead that member back. Later writes are
/// looked at before it: they may have been acknowledged.
pub fn forward_in_doubt(
    shape: Shape,
    answers: &[(usize, Held)],
    doubt: Members,
    epoch: Epoch,
) -> Option<Lacking> {
    let live = Members::of(answers.iter().map(|(place, _)| *place));
    let mut answers = answers.to_vec();
    loop {
        let look = look(shape, &answers, live, epoch)?;
        let is_it = |s: &mut Staged| s.version == look.version && s.id == look.id;
        let mut later = answers.clone();
        later.iter_mut().for_each(|(_, held)| drop(held.staged.take_if(is_it)));
        let went_on = |(place, held): &(usize, Held)| {
            let staged = held.staged.as_ref().map_or(Version::NONE, |s| s.version);
            look.without.has(*place) && held.covers.newest().max(staged) > look.version
        };
        let is_passed = answers.iter().any(went_on) && !broken!("lowest_first");
        if !is_passed || later.iter().all(|(_, held)| held.staged.is_none()) {
            return goes_in_doubt(shape, live, &look, doubt);
        }
        answers = later;
    }
}

fn goes_in_doubt(shape: Shape, live: Members, look: &Look, doubt: Members) -> Option<Lacking> {
    let Look { version, id, on, touched, is_committed, without, promise } = *look;
    let from = match shape {
        Shape::Parity { .. } => {
            let changes = |place| touched.has(place) || without.has(place);
            let kept = |place: &usize| *place < shape.data() && !changes(*place);
            Members(on.0 | Members::of(live.iter().filter(kept)).0)
        }
        Shape::Stripe | Shape::Mirror(_) => on,
    };
    let lacking = Lacking { version, id, on, without, from };
    if is_committed {
        return Some(Lacking { without: Members::default(), ..lacking });
    }
    // Who promised did so because it did not hold it, long before.
    let may_have_lost = without.0 & !(doubt.0 & promise.0) == 0;
    let is_enough = from.iter().count() >= shape.data();
    let goes = may_have_lost && is_enough && !broken!("doubted_is_evidence");
    goes.then_some(lacking)
}

/// Whether what the member of a place holds was cut off, as other live members tell (SETTLE-6).
pub fn is_cut_off(shape: Shape, answers: &[(usize, Held)], place: usize) -> bool {
    let own = answers.iter().find(|(other, _)| *other == place).map(|(_, held)| &held.covers);
    let Some(own) = own.filter(|_| !broken!("cut_off_comes_back")) else { return false };
    let tells = |(other, held): &(usize, Held)| {
        let is_staged = |own, j| held.staged.as_ref().is_some_and(|s| s.covers.get(j) == own);
        let is_gone =
            |own: Version, j| held.covers.get(j) < own && held.floor >= own && !is_staged(own, j);
        *other != place && parts_seen(shape, place, *other).any(|(i, j)| is_gone(own.get(i), j))
    };
    answers.iter().any(tells)
}

/// Which entries of what a member stands for tell of the same bytes as which of another one's that
/// takes part in all writes of these.
fn parts_seen(shape: Shape, place: usize, other: usize) -> impl Iterator<Item = (usize, usize)> {
    let data = shape.data();
    let is_data = |place: usize| place < data;
    let (parts, at) = match shape {
        Shape::Stripe | Shape::Mirror(_) => (0..1, [0, 0]),
        Shape::Parity { .. } => match (is_data(place), is_data(other)) {
            (true, true) => (0..0, [0, 0]),
            (true, false) => (0..1, [0, place]),
            (false, true) => (0..1, [other, 0]),
            (false, false) => (0..data, [0, 0]),
        },
    };
    parts.map(move |part| (at[0] + part, at[1] + part))
}

/// What the members' answers say of the lowest undecided write.
struct Look {
    version: Version,
    id: WriteId,
    /// Who has it staged.
    on: Members,
    /// Data places that it changes.
    touched: Members,
    is_committed: bool,
    /// Live participants that do not have it, and those of them that have not promised to stay so.
    without: Members,
    promise: Members,
}

fn look(shape: Shape, answers: &[(usize, Held)], live: Members, epoch: Epoch) -> Option<Look> {
    let staged = answers.iter().filter_map(|(_, held)| held.staged.as_ref());
    let write = staged.min_by_key(|s| (s.version, s.id))?;
    let version = write.version;
    let places = |wanted: &dyn Fn(usize, &Held) -> bool| {
        Members::of(answers.iter().filter(|(p, h)| wanted(*p, h)).map(|(p, _)| *p))
    };
    let on = places(&|_, held| has_staged(held, write));
    let touched = touched(shape, answers, write);
    let is_held = places(&|p, h| p < shape.data() && live.has(p) && has_staged(h, write));
    let is_held = is_held != Members::default();
    let is_present = version.epoch() >= epoch && !broken!("syncing_never_counts");
    let is_evidence = |place| live.has(place) || is_present || broken!("syncing_is_evidence");
    // Parity sees every write of the stripe. Where none that was to take this one is left, a data
    // member of it that has gone on tells the same.
    let tells = |place: usize| place >= shape.data() && write.participants.has(place);
    let parity_tells = answers.iter().any(|(place, _)| tells(*place) && is_evidence(*place));
    let is_committed = |place: usize, held: &Held| {
        let went_on = write.participants.has(place) && held.covers.get(0) > version;
        let is_data = place < shape.data();
        held.last == write.id
            || covers(shape, (touched, is_held), place, held, version)
            || is_data && !parity_tells && went_on && !broken!("only_parity_tells")
    };
    let committed = places(&is_committed);
    let lacks = |place, held: &Held| {
        write.participants.has(place) && is_evidence(place) && !has_staged(held, write)
    };
    let without = places(&lacks);
    let promise = places(&|place, held| lacks(place, held) && held.floor < version);
    let is_committed = committed != Members::default();
    let id = write.id;
    Some(Look { version, id, on, touched, is_committed, without, promise })
}

/// Whether a write of the present epoch cannot be decided without one of `unheard`: nobody who
/// answered has committed it.
pub fn needs(answers: &[(usize, Held)], unheard: Members, epoch: Epoch) -> bool {
    let staged = answers.iter().filter_map(|(_, held)| held.staged.as_ref());
    let is_committed = |s: &&Staged| answers.iter().any(|(_, held)| held.last == s.id);
    let mut present = staged.filter(|s| s.version.epoch() >= epoch && !is_committed(s));
    let waits = present.any(|s| s.participants.0 & unheard.0 != 0);
    waits && !broken!("syncing_never_counts")
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

/// Whether the member's base includes the write, which touches some places and which a live data
/// member holds, or none. Nothing later comes to that one's place, so the write itself is found in
/// what parity stands for. What is newer may be of a write that went past it elsewhere, while a
/// parity member that holds it was absent.
fn covers(
    shape: Shape,
    (touched, is_held): (Members, bool),
    place: usize,
    held: &Held,
    version: Version,
) -> bool {
    let includes = |i: usize| match is_held {
        true => held.covers.get(i) == version,
        false => held.covers.get(i) >= version,
    };
    match shape {
        Shape::Parity { .. } if place < shape.data() => touched.has(place) && includes(0),
        Shape::Parity { .. } => touched.iter().any(includes),
        Shape::Stripe | Shape::Mirror(_) => held.covers.get(0) >= version,
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::SessionId;
    use nuri_proto::stripe::Covers;

    use super::*;

    /// Of an epoch that is over.
    fn decide(shape: Shape, answers: &[(usize, Held)], live: Members) -> Decision {
        super::decide(shape, answers, live, Epoch(1))
    }

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

    /// Catches `broken!("forward_on_any")` and `broken!("drop_without_promise")`.
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
        let answers = [(0, data.clone()), (1, moved_on(&[9])), (2, moved_on(&[7, 9]))];
        let forward = Decision::Forward { version: V, on: Members(0b001) };
        assert_eq!(decide(PARITY, &answers, Members(0b111)), forward);
        // Parity never had it, only a later write of the other chunk.
        let answers = [(0, data), (1, moved_on(&[9])), (2, moved_on(&[4, 9]))];
        let promise = Decision::Promise { version: V, on: Members(0b100) };
        assert_eq!(decide(PARITY, &answers, Members(0b111)), promise);
    }

    #[test]
    fn a_racing_write_that_went_past_is_not_taken_for_it() {
        let (shape, live) = (Shape::Parity { k: 2, m: 2 }, Members(0b1011));
        // It reached the first data member and the first parity member, which then was absent and
        // is brought up to date. Another write of the second data member went past meanwhile.
        let moved_on = |covers: &[u64]| Held { last: WriteId::default(), ..committed(covers) };
        let mut answers = [
            (0, staged(&[7], 0b1111)),
            (1, moved_on(&[9])),
            (2, staged(&[7, 7], 0b1111)),
            (3, moved_on(&[4, 9])),
        ];
        let promise = Decision::Promise { version: V, on: Members(0b1010) };
        assert_eq!(decide(shape, &answers, live), promise);
        // It reached all of them, and then the other write came.
        answers[3].1 = moved_on(&[7, 9]);
        let forward = Decision::Forward { version: V, on: Members(0b0101) };
        assert_eq!(decide(shape, &answers, live), forward);
    }

    /// Catches `broken!("only_parity_tells")`.
    #[test]
    fn without_parity_the_data_members_tell() {
        let parity_lost = Shape::Parity { k: 3, m: 1 };
        let forward = Decision::Forward { version: V, on: Members(0b010) };
        let live = Members(0b111);
        // Two have committed it; the commit on the third was lost.
        let answers = [(0, committed(&[7])), (1, staged(&[7], 0b111)), (2, committed(&[7]))];
        assert_eq!(decide(parity_lost, &answers, live), forward);
        // One of them has seen a later write since.
        let moved_on = Held { last: WriteId::default(), ..committed(&[9]) };
        let answers = [(0, moved_on.clone()), (1, staged(&[7], 0b011))];
        assert_eq!(decide(parity_lost, &answers, Members(0b011)), forward);
        // With parity there, it is parity that knows.
        let parity = Held { last: WriteId::default(), ..committed(&[9, 4]) };
        let answers = [(0, moved_on), (1, staged(&[7], 0b1011)), (3, parity)];
        let promise = Decision::Promise { version: V, on: Members(0b1001) };
        assert_eq!(decide(parity_lost, &answers, Members(0b1011)), promise);
    }

    /// Catches `broken!("syncing_is_evidence")`.
    #[test]
    fn a_member_that_missed_writes_is_no_evidence() {
        let answers = [(0, staged(&[7], 0b11)), (1, Held::default())];
        let forward = Decision::Forward { version: V, on: Members(0b01) };
        assert_eq!(decide(MIRROR, &answers, Members(0b01)), forward);
    }

    /// Catches `broken!("doubted_is_evidence")`.
    #[test]
    fn what_only_doubted_members_lack_goes_forward() {
        let forward = |shape, answers: &[(usize, Held)], doubt: u32| {
            let write = forward_in_doubt(shape, answers, Members(doubt), Epoch(0))?;
            Some((write.on, write.without))
        };
        let mut answers =
            vec![(0, staged(&[7], 0b111)), (1, Held::default()), (2, Held::default())];
        assert_eq!(forward(MIRROR, &answers, 0b111), Some((Members(0b001), Members(0b110))));
        assert_eq!(forward(MIRROR, &answers, 0b011), None, "one that lacks it lost nothing");
        answers[2].1.floor = V;
        assert_eq!(forward(MIRROR, &answers, 0b111), None, "it never had it");
        // Of parity only one may be computed from the others.
        let mut answers =
            vec![(0, staged(&[7], 0b101)), (1, Held::default()), (2, Held::default())];
        assert_eq!(forward(PARITY, &answers, 0b111), Some((Members(0b001), Members(0b100))));
        answers[0].1 = staged(&[7], 0b111);
        assert_eq!(forward(PARITY, &answers, 0b111), None);
        assert_eq!(forward(PARITY, &[], 0b111), None, "nothing is staged");
    }

    /// Catches `broken!("lowest_first")`.
    #[test]
    fn a_write_that_a_later_one_went_past_waits_for_that_one() {
        let forward = |shape, answers: &[(usize, Held)]| {
            let write = forward_in_doubt(shape, answers, Members(0b111), Epoch(0))?;
            Some((write.version.0, write.on, write.without, write.from))
        };
        let later = |covers: &[u64], participants| {
            let Held { staged, covers, .. } = staged(covers, participants);
            let id = WriteId { number: 2, ..ID };
            let staged = staged.map(|s| Staged { version: Version(9), id, ..s });
            Held { staged, covers, ..Held::default() }
        };
        // Of the first data member, and it never reached parity. The second one's is on both.
        let mut answers =
            vec![(0, staged(&[7], 0b101)), (1, later(&[9], 0b110)), (2, later(&[0, 9], 0b110))];
        let none = Members(0);
        assert_eq!(forward(PARITY, &answers), Some((9, Members(0b110), none, Members(0b111))));
        // Parity has committed it.
        answers[2].1 = Held { last: WriteId { number: 2, ..ID }, ..committed(&[0, 9]) };
        assert_eq!(forward(PARITY, &answers), Some((9, Members(0b010), none, Members(0b011))));
        // So has the other one: what is left is computed on that.
        answers[1].1 = Held { last: WriteId { number: 2, ..ID }, ..committed(&[9]) };
        let rest = Some((7, Members(0b001), Members(0b100), Members(0b011)));
        assert_eq!(forward(PARITY, &answers), rest);
        // Two copies that hold a write each.
        let answers = [(0, staged(&[7], 0b11)), (1, later(&[9], 0b11))];
        let both = Some((9, Members(0b10), Members(0b01), Members(0b10)));
        assert_eq!(forward(Shape::Mirror(2), &answers), both);
    }

    /// Catches `broken!("cut_off_comes_back")`.
    #[test]
    fn what_others_cut_off_is_gone() {
        let cut = |floor| Held { floor: Version(floor), ..Held::default() };
        let mirror = |other: Held| is_cut_off(MIRROR, &[(0, committed(&[7])), (1, other)], 0);
        assert!(mirror(cut(7)));
        assert!(!mirror(cut(6)), "it may have lost what came after");
        assert!(!mirror(Held { floor: Version(9), ..committed(&[7]) }), "a later one was aborted");
        assert!(mirror(Held { floor: Version(7), ..committed(&[5]) }), "written again");
        assert!(!mirror(Held { floor: Version(9), ..staged(&[7], 0b111) }), "not committed yet");
        let again = staged(&[8], 0b111);
        let again =
            Held { staged: again.staged.map(|s| Staged { version: Version(8), ..s }), ..cut(7) };
        assert!(mirror(again), "being written again");
        // Data members know of their own writes alone, parity of all.
        let parity = |place, held: &[Held]| {
            is_cut_off(PARITY, &held.iter().cloned().enumerate().collect::<Vec<_>>(), place)
        };
        let (own, none) = (committed(&[7]), Held::default());
        assert!(!parity(0, &[own.clone(), cut(9), none.clone()]));
        assert!(parity(0, &[own.clone(), none.clone(), cut(7)]));
        let again = Held { floor: Version(7), ..committed(&[0, 8]) };
        assert!(parity(0, &[own, committed(&[8]), again]), "the other one was written again");
        assert!(parity(2, &[none.clone(), cut(8), committed(&[0, 8])]));
        assert!(!parity(2, &[cut(8), none, committed(&[0, 8])]));
    }

    /// Catches `broken!("syncing_never_counts")`.
    #[test]
    fn who_takes_part_in_the_present_epoch_is_evidence_about_it() {
        let answers = [(0, staged(&[7], 0b11)), (1, Held::default())];
        let promise = Decision::Promise { version: V, on: Members(0b10) };
        assert_eq!(super::decide(MIRROR, &answers, Members(0b01), Epoch(0)), promise);
        assert!(needs(&answers[..1], Members(0b10), Epoch(0)));
        assert!(!needs(&answers[..1], Members(0b10), Epoch(1)));
    }
}
