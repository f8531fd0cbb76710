//! Model check of the recovery decision, by own enumeration: every order in which the packets of
//! one or two writes and the steps of one or two settlers reach two to four members, one of them
//! lost or being brought up to date. A write that all its participants held is never given up, one
//! that they did not all hold is never committed, and settling comes to an end.

use std::collections::HashSet;

use nuri_proto::id::{Epoch, GroupId, SessionId};
use nuri_proto::layout::Shape;
use nuri_proto::stripe::{Covers, Earlier, Held, Members, Stage, Version, WriteId};
use nuri_stripe::member::{self, StageVerdict};
use nuri_stripe::settle::{Decision, decide};
use nuri_stripe::writer::{behind, covers_at, participants, stripe_covers};

/// The epoch of the writes.
const EPOCH: Epoch = Epoch(2);
const PARITY: Shape = Shape::Parity { k: 2, m: 1 };

/// What may happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The packet of a write reaches a member.
    Stage { write: usize, place: usize },
    /// A settler asks the next member.
    Ask(usize),
    /// A settler's next order reaches its member.
    Order(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Order {
    Commit,
    Promise,
    Drop,
}

#[derive(Clone, Default, Debug)]
struct Settler {
    rounds: u8,
    heard: Vec<(usize, Held)>,
    orders: Vec<(usize, Order, Version)>,
}

#[derive(Clone, Debug)]
struct State {
    held: Vec<Held>,
    settlers: Vec<Settler>,
    /// By write: members that its packet has not reached, and those that ever held it.
    under_way: Vec<u32>,
    held_by: Vec<u32>,
}

struct Write {
    id: WriteId,
    version: Version,
    participants: Members,
    base: Covers,
    covers: Covers,
}

struct Case {
    shape: Shape,
    /// Those that answer, those of them that are live, and the group's epoch.
    there: Members,
    live: Members,
    epoch: Epoch,
    writes: Vec<Write>,
}

impl Case {
    fn new(shape: Shape, touched: &[u32]) -> Case {
        let all = Members::of(0..shape.members());
        let mut writes = Vec::new();
        for (number, touched) in touched.iter().enumerate() {
            let id = WriteId { session: SessionId(number as u64 + 1), number: 1 };
            let version = Version::NONE.next_of(EPOCH, id);
            let mut covers = Covers::default();
            Members(*touched).iter().for_each(|place| covers.set(place, version));
            let participants = participants(shape, Members(*touched), all);
            let base = Covers::default();
            writes.push(Write { id, version, participants, base, covers });
        }
        Case { shape, there: all, live: all, epoch: EPOCH, writes }
    }

    fn start(&self, rounds: &[u8]) -> State {
        let settler = |rounds: &u8| Settler { rounds: *rounds, ..Settler::default() };
        State {
            held: vec![Held::default(); self.shape.members()],
            settlers: rounds.iter().map(settler).collect(),
            under_way: self.writes.iter().map(|w| w.participants.0).collect(),
            held_by: vec![0; self.writes.len()],
        }
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        for (write, bits) in state.under_way.iter().enumerate() {
            steps.extend(Members(*bits).iter().map(|place| Step::Stage { write, place }));
        }
        for (number, settler) in state.settlers.iter().enumerate() {
            if !settler.orders.is_empty() {
                steps.push(Step::Order(number));
            } else if settler.rounds > 0 {
                steps.push(Step::Ask(number));
            }
        }
        steps
    }

    fn take(&self, state: &mut State, step: Step) {
        match step {
            Step::Stage { write, place } => self.stage(state, write, place),
            Step::Ask(number) => {
                let settler = &mut state.settlers[number];
                let unheard = self.there.iter().find(|p| settler.heard.iter().all(|h| h.0 != *p));
                settler.heard.extend(unheard.map(|place| (place, state.held[place].clone())));
                if settler.heard.len() == self.there.iter().count() {
                    settler.orders = self.orders(&std::mem::take(&mut settler.heard));
                    settler.rounds -= 1;
                }
            }
            Step::Order(number) => {
                let (place, order, version) = state.settlers[number].orders.remove(0);
                let held = &mut state.held[place];
                *held = match order {
                    Order::Commit if member::commits(held, version) => member::committed(held),
                    Order::Commit => held.clone(),
                    Order::Promise => member::promised(held, version),
                    Order::Drop => member::aborted(held, version),
                };
            }
        }
        self.check(state, step);
    }

    fn stage(&self, state: &mut State, number: usize, place: usize) {
        let write = &self.writes[number];
        state.under_way[number] &= !(1 << place);
        let ask = Stage {
            group: GroupId(1),
            version: write.version,
            id: write.id,
            base: covers_at(self.shape, place, &write.base),
            covers: covers_at(self.shape, place, &write.covers),
            participants: write.participants,
            earlier: Earlier::Unknown,
        };
        if let StageVerdict::Accept(first) = member::stage(&state.held[place], &ask) {
            state.held[place] = member::staged(&state.held[place], &ask, first);
            state.held_by[number] |= 1 << place;
        }
    }

    fn orders(&self, heard: &[(usize, Held)]) -> Vec<(usize, Order, Version)> {
        let (order, version, on) = match decide(self.shape, heard, self.live, self.epoch) {
            Decision::Clean => return Vec::new(),
            Decision::Forward { version, on } => (Order::Commit, version, on),
            Decision::Promise { version, on } => (Order::Promise, version, on),
            Decision::Drop { version, on } => (Order::Drop, version, on),
        };
        on.iter().map(|place| (place, order, version)).collect()
    }

    fn check(&self, state: &State, step: Step) {
        for (write, held_by) in self.writes.iter().zip(&state.held_by) {
            let is_decided = *held_by == write.participants.0;
            for place in write.participants.iter().filter(|p| self.there.has(*p)) {
                let held = &state.held[place];
                let covers = covers_at(self.shape, place, &write.covers);
                let is_staged = held.staged.as_ref().is_some_and(|s| s.id == write.id);
                let has = is_staged || held.covers.reaches(&covers);
                assert!(!is_decided || has, "given up at {place} after {step:?}: {state:?}");
                let may_commit = is_decided || self.epoch > EPOCH;
                let is_committed = held.last == write.id;
                assert!(may_commit || !is_committed, "committed after {step:?}: {state:?}");
            }
        }
    }

    /// Takes all steps in all orders; returns how many states there are.
    fn explore(&self, start: State) -> usize {
        let (mut todo, mut known) = (vec![start], HashSet::new());
        while let Some(state) = todo.pop() {
            let steps = self.steps(&state);
            if steps.is_empty() {
                self.finish(state);
                continue;
            }
            for step in steps {
                let mut next = state.clone();
                self.take(&mut next, step);
                if known.insert(format!("{next:?}")) {
                    todo.push(next);
                }
            }
        }
        known.len()
    }

    /// Parity is that of the data: a write went forward everywhere or nowhere.
    fn check_fits(&self, state: &State) {
        let live: Vec<_> = self.live.iter().map(|p| (p, state.held[p].clone())).collect();
        let behind = behind(self.shape, &live, &stripe_covers(self.shape, &live));
        assert_eq!(behind, Members::default(), "{state:?}");
    }

    /// Another one who settles comes to an end.
    fn finish(&self, mut state: State) {
        for _ in 0..16 {
            let all = self.there.iter().map(|place| (place, state.held[place].clone()));
            let orders = self.orders(&all.collect::<Vec<_>>());
            if orders.is_empty() {
                self.check_fits(&state);
                return;
            }
            let count = orders.len();
            state.settlers = vec![Settler { orders, ..Settler::default() }];
            (0..count).for_each(|_| self.take(&mut state, Step::Order(0)));
        }
        panic!("settling does not end: {state:?}");
    }
}

/// All members there, then each in turn being brought up to date.
fn in_one_epoch(shape: Shape, touched: &[u32], rounds: &[u8]) -> usize {
    let mut states = 0;
    for syncing in std::iter::once(None).chain((0..shape.members()).map(Some)) {
        let mut case = Case::new(shape, touched);
        case.live = Members::of(case.there.iter().filter(|p| Some(*p) != syncing));
        states += case.explore(case.start(rounds));
    }
    states
}

/// The write reached some of its participants; then one was lost, and the epoch is another one.
fn after_a_loss(shape: Shape, touched: u32, rounds: &[u8]) -> usize {
    let mut states = 0;
    for lost in 0..shape.members() {
        for reached in 0..1u32 << shape.members() {
            let mut case = Case::new(shape, &[touched]);
            let mut start = case.start(rounds);
            let places = Members(reached & case.writes[0].participants.0);
            places.iter().for_each(|place| case.stage(&mut start, 0, place));
            start.under_way[0] = 0;
            case.epoch = Epoch(EPOCH.0 + 1);
            case.there = Members::of(case.there.iter().filter(|p| *p != lost));
            case.live = case.there;
            states += case.explore(start);
        }
    }
    states
}

/// Catches `broken!("promise_drops")` and `broken!("drop_without_promise")`.
#[test]
fn one_write_and_two_settlers() {
    let states = in_one_epoch(Shape::Mirror(2), &[1], &[3, 3])
        + in_one_epoch(Shape::Mirror(3), &[1], &[2, 1])
        + in_one_epoch(PARITY, &[0b01], &[3, 3])
        + in_one_epoch(PARITY, &[0b11], &[2, 1]);
    assert!(states > 10_000, "{states}");
}

/// Catches `broken!("syncing_never_counts")`.
#[test]
fn two_writes_and_a_settler() {
    let states = in_one_epoch(Shape::Mirror(2), &[1, 1], &[4])
        + in_one_epoch(Shape::Mirror(3), &[1, 1], &[2])
        + in_one_epoch(PARITY, &[0b01, 0b10], &[3])
        + in_one_epoch(PARITY, &[0b11, 0b01], &[2]);
    assert!(states > 10_000, "{states}");
}

/// Catches `broken!("only_parity_tells")`.
#[test]
fn a_member_is_lost() {
    let wide = Shape::Parity { k: 2, m: 2 };
    let states = after_a_loss(Shape::Mirror(2), 1, &[2, 2])
        + after_a_loss(Shape::Mirror(3), 1, &[2, 2])
        + after_a_loss(PARITY, 0b11, &[2, 2])
        + after_a_loss(PARITY, 0b01, &[2, 2])
        + after_a_loss(wide, 0b11, &[2, 1]);
    assert!(states > 1000, "{states}");
}

/// The first write reached some of its participants, or all; then a parity member was absent, and
/// the second one went on where the first one is not staged, or is committed. The parity member is
/// back, to be brought up to date.
fn overtaken(touched: [u32; 2], rounds: &[u8]) -> usize {
    let shape = Shape::Parity { k: 2, m: 2 };
    let (absent, later) = (2, Epoch(EPOCH.0 + 1));
    let mut states = 0;
    for reached in 0..1u32 << shape.members() {
        let mut case = Case::new(shape, &touched);
        let mut start = case.start(rounds);
        let first = Members(reached & case.writes[0].participants.0);
        first.iter().for_each(|place| case.stage(&mut start, 0, place));
        let covers = case.writes[0].covers.clone();
        let is_decided = first == case.writes[0].participants;
        let second = &mut case.writes[1];
        second.participants.0 &= !(1 << absent);
        second.version = covers.newest().next_of(later, second.id);
        let on = second.participants;
        if is_decided {
            commit(&mut start, on);
            (second.base, second.covers) = (covers.clone(), covers);
        }
        let version = second.version;
        Members(touched[1]).iter().for_each(|place| second.covers.set(place, version));
        on.iter().for_each(|place| case.stage(&mut start, 1, place));
        if start.held_by[1] != on.0 {
            continue;
        }
        commit(&mut start, on);
        start.under_way = vec![0; 2];
        case.epoch = Epoch(later.0 + 1);
        case.live.0 &= !(1 << absent);
        states += case.explore(start);
    }
    states
}

fn commit(state: &mut State, on: Members) {
    on.iter().for_each(|place| state.held[place] = member::committed(&state.held[place]));
}

#[test]
fn a_write_is_overtaken_while_parity_is_away() {
    let states = overtaken([0b11, 0b10], &[2, 2]) + overtaken([0b11, 0b01], &[2, 1]);
    assert!(states > 100, "{states}");
}
