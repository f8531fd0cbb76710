//! The ledger of space that targets promised to this mount. It makes the write that finds no space
//! fail with "no space left", and not a later flush.
//!
//! A buffered write is accepted before any target has it. So the client charges each write to all
//! targets that store a part of it, with the most that it can take there (`cost.rs`). It accepts
//! the write where the targets promised this session that much. Where they did not, the client asks
//! them (`charge.rs`). Where they refuse, the write is written through
//! (`writeback/write_through.rs`). A pushed write comes out of the charge and of the promise. A
//! write that is given up comes out of the charge only.
//!
//! Pure. The client believes a promise as it was answered, less all that was pushed since it asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::HEARTBEAT;
use nuri_proto::id::{BootId, GroupId, SessionId, TargetId};
use nuri_proto::op::data::RoomReply;
use nuri_rules::broken;
use parking_lot::Mutex;

use crate::reservation::cost::{Cost, MOST};

/// What a mount would like to be promised beyond what it needs: at full speed it asks a target a
/// few times a second.
const WINDOW: u64 = 128 << 20;
/// What was promised and is not used for so long is given back.
const IDLE: Duration = Duration::from_secs(1);
/// A target that started anew knows of no promise. Until the others had the time to ask for what
/// they accepted before, nobody asks for more, unless it has plenty left.
const SETTLING: Duration = HEARTBEAT.saturating_mul(3);
const PLENTY: u64 = 4 << 30;
/// A group that refused what was promised is written through at least this long, and for longer at
/// most until a write found room. The file system under a target is full then.
const REFUSED: Duration = Duration::from_secs(10);
const FORGOTTEN: Duration = Duration::from_secs(60);

/// The account of promised space; see the module's text.
#[derive(Clone, Default)]
pub(crate) struct ReservationLedger(Arc<Mutex<Accounts>>);

#[derive(Default)]
struct Accounts {
    /// Whom the targets promised something.
    session: SessionId,
    by_target: HashMap<TargetId, Account>,
    refused: HashMap<GroupId, Instant>,
}

#[derive(Default)]
struct Account {
    promised: u64,
    /// Of what was accepted and did not get there yet.
    charged: u64,
    /// All that ever got there.
    pushed: u64,
    /// What the target last said to have left, those promised to others among it.
    left: u64,
    /// When a write was last charged, or waited for a silent target.
    used_at: Option<Instant>,
    /// It did not answer when it was last asked. Writes do not ask it then, each for its own time
    /// and one after the other: [`ReservationLedger::repeated`] does.
    is_silent: bool,
    /// When its promise was last repeated.
    repeated_at: Option<Instant>,
    /// Under which it last answered.
    boot: Option<BootId>,
    settles_until: Option<Instant>,
    /// One question at a time: the last answer is the one that counts at the target.
    asking: Arc<Mutex<()>>,
}

/// Why a write is not charged.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Short {
    /// These targets did not promise as much.
    Unpromised(Vec<TargetId>),
    /// One did not, and does not answer, or has just started anew. A group that does without it
    /// says so in the map. Or the map is too old to name the group.
    Silent,
}

/// What to ask a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Question {
    pub(crate) needed: u64,
    pub(crate) wanted: u64,
    pushed: u64,
    session: SessionId,
}

/// What bytes of one block are charged; paid back when dropped.
#[derive(Default)]
pub(crate) struct Reservation {
    room: ReservationLedger,
    costs: Vec<Cost>,
    /// The bytes go to the targets: what they take there comes out of the promises.
    is_pushed: bool,
}

impl ReservationLedger {
    /// Charges all of it where the targets promised as much.
    ///
    /// # Errors
    /// Why it is not charged.
    pub(crate) fn take(&self, costs: &[Cost], now: Instant) -> Result<(), Short> {
        let mut accounts = self.0.lock();
        let mut short = Vec::new();
        for cost in costs {
            let wanted: u64 =
                costs.iter().filter(|c| c.target == cost.target).map(|c| c.bytes).sum();
            let account = accounts.by_target.entry(cost.target).or_default();
            let is_promised = account.charged + wanted <= account.promised;
            match (is_promised, account.is_waited_for(now)) {
                (true, _) => {}
                (_, true) if broken!("silent_has_room") => {}
                (_, true) => {
                    account.used_at = Some(now);
                    return Err(Short::Silent);
                }
                _ if short.contains(&cost.target) => {}
                _ => short.push(cost.target),
            }
        }
        if !short.is_empty() {
            return Err(Short::Unpromised(short));
        }
        accounts.charge(costs, now);
        Ok(())
    }

    /// Charges bytes that cannot be refused.
    pub(crate) fn claim(&self, costs: &[Cost], now: Instant) {
        self.0.lock().charge(costs, now);
    }

    /// What was charged by the two above.
    pub(crate) fn charge(&self, costs: Vec<Cost>) -> Reservation {
        Reservation { room: self.clone(), costs, is_pushed: false }
    }

    /// Held by the thread that asks the target.
    pub(crate) fn asking(&self, target: TargetId) -> Arc<Mutex<()>> {
        self.0.lock().by_target.entry(target).or_default().asking.clone()
    }

    /// What to ask the target so that `more` bytes may be charged. `None` where they may be charged
    /// already, and where the target did not answer the thread that asked it before.
    pub(crate) fn question(
        &self,
        session: SessionId,
        target: TargetId,
        more: u64,
    ) -> Option<Question> {
        let mut accounts = self.0.lock();
        accounts.belong_to(session);
        let account = accounts.by_target.entry(target).or_default();
        let needed = account.charged + more;
        let question =
            Question { needed, wanted: needed + WINDOW, pushed: account.pushed, session };
        (needed > account.promised && !account.is_silent).then_some(question)
    }

    /// How to give back what the target promised beyond what is charged.
    pub(crate) fn surplus(&self, session: SessionId, target: TargetId) -> Option<Question> {
        let mut accounts = self.0.lock();
        accounts.belong_to(session);
        let account = accounts.by_target.get_mut(&target)?;
        (account.promised > account.charged).then(|| account.question(0, session))
    }

    /// Notes the target's answer, or that there was none. Returns whether what it promised beyond
    /// the charges is to be given back at once.
    pub(crate) fn answered(
        &self,
        target: TargetId,
        question: Question,
        answer: Result<RoomReply, Status>,
        now: Instant,
    ) -> bool {
        let mut accounts = self.0.lock();
        if accounts.session != question.session {
            return false;
        }
        let account = accounts.by_target.entry(target).or_default();
        account.is_silent = answer.is_err();
        match answer {
            Ok(reply) => {
                let is_kept = broken!("pushed_is_promised");
                let since = account.pushed.saturating_sub(question.pushed);
                let since = if is_kept { 0 } else { since };
                account.promised = reply.promised.saturating_sub(since);
                account.left = reply.left;
                let known = account.boot.replace(reply.boot);
                let is_anew = known.is_some_and(|boot| boot != reply.boot);
                if !is_anew || reply.left >= PLENTY || broken!("settles_at_once") {
                    return false;
                }
                account.settles_until = Some(now + SETTLING);
                true
            }
            Err(_) => false,
        }
    }

    /// Targets whose promises a thread with time should repeat or give back: targets that do not
    /// answer each time, the others once a heartbeat.
    pub(crate) fn to_tend(&self, now: Instant) -> Vec<TargetId> {
        let mut accounts = self.0.lock();
        accounts.refused.retain(|_, at| now.duration_since(*at) < FORGOTTEN);
        // An answer that is under way belongs to the account as it was when it was asked.
        let is_asked = |a: &Account| Arc::strong_count(&a.asking) > 1;
        accounts
            .by_target
            .retain(|_, a| a.promised > 0 || a.charged > 0 || a.is_in_use(now) || is_asked(a));
        let is_due = |a: &Account| {
            a.is_silent || a.repeated_at.is_none_or(|at| now.duration_since(at) >= HEARTBEAT)
        };
        accounts.by_target.iter().filter(|(_, a)| is_due(a)).map(|(target, _)| *target).collect()
    }

    /// How to repeat what the target promised, or to give it back where it is not used.
    pub(crate) fn repeated(
        &self,
        session: SessionId,
        target: TargetId,
        now: Instant,
    ) -> Option<Question> {
        let mut accounts = self.0.lock();
        accounts.belong_to(session);
        let account = accounts.by_target.get_mut(&target)?;
        let is_idle = account.charged == 0 && !account.is_in_use(now);
        if is_idle && account.promised == 0 {
            return None;
        }
        account.repeated_at = Some(now);
        let more = if is_idle || account.settles(now) { 0 } else { WINDOW };
        Some(account.question(more, session))
    }

    /// Whether the targets have space for it that was promised to another session.
    pub(crate) fn is_kept(&self, costs: &[Cost]) -> bool {
        let accounts = self.0.lock();
        costs.iter().all(|cost| {
            let account = accounts.by_target.get(&cost.target);
            account.is_none_or(|account| cost.bytes <= account.left)
        })
    }

    /// Whether the group refused lately what its targets had promised.
    pub(crate) fn is_refused(&self, group: GroupId) -> bool {
        self.0.lock().refused.contains_key(&group)
    }

    /// Whether any group refused lately what it had promised.
    pub(crate) fn has_refused(&self) -> bool {
        !self.0.lock().refused.is_empty()
    }

    /// Notes the outcome of a push to the group: the bytes that it took space for, or why it
    /// failed.
    pub(crate) fn heard(&self, group: GroupId, outcome: Result<u64, Status>, now: Instant) {
        let refused = &mut self.0.lock().refused;
        match outcome {
            Err(Status::NOSPC) => {
                refused.insert(group, now);
            }
            Ok(1..) if !refused.is_empty() => {
                refused.retain(|g, at| *g != group || now.duration_since(*at) < REFUSED);
            }
            _ => {}
        }
    }
}

impl Accounts {
    fn charge(&mut self, costs: &[Cost], now: Instant) {
        for cost in costs {
            let account = self.by_target.entry(cost.target).or_default();
            account.charged += cost.bytes;
            account.used_at = Some(now);
        }
    }

    /// What another session was promised is nobody's.
    fn belong_to(&mut self, session: SessionId) {
        if self.session != session {
            self.session = session;
            self.by_target.values_mut().for_each(|account| account.promised = 0);
        }
    }

    fn pay_back(&mut self, target: TargetId, bytes: u64) {
        if let Some(account) = self.by_target.get_mut(&target) {
            account.charged = account.charged.saturating_sub(bytes);
        }
    }

    fn pushed(&mut self, target: TargetId, bytes: u64) {
        self.pay_back(target, bytes);
        if let Some(account) = self.by_target.get_mut(&target) {
            account.promised = account.promised.saturating_sub(bytes);
            account.pushed += bytes;
        }
    }
}

impl Account {
    /// Asks for what is charged and `more`. What is about to be given back is not counted on any
    /// more.
    fn question(&mut self, more: u64, session: SessionId) -> Question {
        let (needed, wanted) = (self.charged, self.charged + more);
        self.promised = self.promised.min(wanted);
        Question { needed, wanted, pushed: self.pushed, session }
    }

    fn is_waited_for(&self, now: Instant) -> bool {
        self.settles(now) || self.is_silent
    }

    fn settles(&self, now: Instant) -> bool {
        self.settles_until.is_some_and(|until| now < until)
    }

    fn is_in_use(&self, now: Instant) -> bool {
        self.used_at.is_some_and(|at| now.duration_since(at) < IDLE)
    }
}

impl Reservation {
    /// Adds what more bytes of the same block were charged.
    pub(crate) fn add(&mut self, mut other: Reservation) {
        let mut accounts = other.room.0.lock();
        for cost in std::mem::take(&mut other.costs) {
            let known = self.costs.iter_mut().find(|own| own.target == cost.target);
            let Some(own) = known else {
                self.costs.push(cost);
                continue;
            };
            let all = (own.bytes + cost.bytes).min(MOST.max(own.bytes));
            accounts.pay_back(cost.target, own.bytes + cost.bytes - all);
            own.bytes = all;
        }
        drop(accounts);
        self.room = other.room.clone();
    }

    /// Takes it along with bytes that are pushed now.
    pub(crate) fn push(&mut self) -> Reservation {
        let costs = std::mem::take(&mut self.costs);
        Reservation { room: self.room.clone(), costs, is_pushed: true }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.costs.is_empty() {
            return;
        }
        let mut accounts = self.room.0.lock();
        for Cost { target, bytes } in &self.costs {
            match self.is_pushed {
                true => accounts.pushed(*target, *bytes),
                false => accounts.pay_back(*target, *bytes),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: SessionId = SessionId(7);
    const NEAR: TargetId = TargetId(1);
    const FAR: TargetId = TargetId(2);
    const GROUP: GroupId = GroupId(1);

    fn cost(target: TargetId, bytes: u64) -> Cost {
        Cost { target, bytes }
    }

    fn reply(promised: u64, left: u64) -> RoomReply {
        RoomReply { boot: BootId(1), promised, left }
    }

    fn unpromised(targets: &[TargetId]) -> Option<Short> {
        Some(Short::Unpromised(targets.to_vec()))
    }

    fn costs(near: u64, far: u64) -> Vec<Cost> {
        vec![cost(NEAR, near), cost(FAR, far)]
    }

    fn promised(room: &ReservationLedger, target: TargetId, promised: u64, now: Instant) {
        let question = room.question(OWN, target, promised).unwrap();
        room.answered(target, question, Ok(reply(promised, 2 * promised)), now);
    }

    fn take(room: &ReservationLedger, costs: &[Cost], now: Instant) -> Result<Reservation, Short> {
        room.take(costs, now).map(|()| room.charge(costs.to_vec()))
    }

    #[test]
    fn a_write_is_accepted_as_far_as_all_its_targets_promised() {
        let (room, now) = (ReservationLedger::default(), Instant::now());
        assert_eq!(take(&room, &costs(1, 1), now).err(), unpromised(&[NEAR, FAR]));
        promised(&room, NEAR, 100, now);
        assert_eq!(take(&room, &costs(60, 60), now).err(), unpromised(&[FAR]));
        promised(&room, FAR, 100, now);
        let first = take(&room, &costs(60, 10), now).unwrap();
        assert_eq!(take(&room, &costs(60, 10), now).err(), unpromised(&[NEAR]));
        let twice = [cost(FAR, 50); 2];
        assert_eq!(take(&room, &twice, now).err(), unpromised(&[FAR]), "one target, two chunks");
        drop(first);
        assert!(take(&room, &costs(60, 10), now).is_ok(), "what was given up is paid back");
    }

    #[test]
    fn what_is_pushed_comes_out_of_the_promise() {
        let (room, now) = (ReservationLedger::default(), Instant::now());
        promised(&room, NEAR, 100, now);
        promised(&room, FAR, 100, now);
        let mut charge = take(&room, &costs(60, 60), now).unwrap();
        let on_its_way = charge.push();
        drop(charge);
        assert!(take(&room, &costs(41, 0), now).is_err(), "it is charged until it is there");
        drop(on_its_way);
        assert!(take(&room, &costs(41, 0), now).is_err());
        assert!(take(&room, &costs(40, 40), now).is_ok());
    }

    /// Catches `broken!("pushed_is_promised")`.
    #[test]
    fn what_was_pushed_while_a_target_was_asked_comes_out_of_its_answer() {
        let (room, now) = (ReservationLedger::default(), Instant::now());
        promised(&room, NEAR, 100, now);
        let mut charge = take(&room, &costs(60, 0)[..1], now).unwrap();
        let question = room.question(OWN, NEAR, 60).unwrap();
        assert_eq!((question.needed, question.wanted), (120, 120 + WINDOW));
        drop(charge.push());
        room.answered(NEAR, question, Ok(reply(120, 500)), now);
        assert!(take(&room, &costs(61, 0)[..1], now).is_err());
        assert!(take(&room, &costs(60, 0)[..1], now).is_ok());
    }

    #[test]
    fn a_block_that_is_written_again_and_again_is_charged_once() {
        let (room, now) = (ReservationLedger::default(), Instant::now());
        promised(&room, NEAR, 4 * MOST, now);
        let mut block = Reservation::default();
        for _ in 0..100 {
            block.add(take(&room, &costs(MOST / 4, 0)[..1], now).unwrap());
        }
        assert!(take(&room, &costs(3 * MOST, 0)[..1], now).is_ok());
        assert!(take(&room, &costs(3 * MOST + 1, 0)[..1], now).is_err());
        drop(block);
        assert!(take(&room, &costs(4 * MOST, 0)[..1], now).is_ok());
    }

    #[test]
    fn promises_are_repeated_while_they_are_used_and_then_given_back() {
        let (room, now) = (ReservationLedger::default(), Instant::now());
        assert_eq!(room.to_tend(now), []);
        promised(&room, NEAR, 100, now);
        let charge = take(&room, &costs(60, 0)[..1], now).unwrap();
        let wanted = |now| room.repeated(OWN, NEAR, now).map(|q| (q.needed, q.wanted));
        assert_eq!(room.to_tend(now + 2 * IDLE), [NEAR]);
        assert_eq!(wanted(now + 2 * IDLE), Some((60, 60 + WINDOW)));
        assert_eq!(room.to_tend(now + 2 * IDLE), []);
        assert_eq!(room.to_tend(now + 2 * IDLE + HEARTBEAT), [NEAR]);
        drop(charge);
        assert_eq!(wanted(now), Some((0, WINDOW)));
        assert_eq!(wanted(now + IDLE), Some((0, 0)));
        assert!(take(&room, &costs(1, 0)[..1], now + IDLE).is_err(), "it is being given back");
        assert_eq!(wanted(now + IDLE), None);
        assert_eq!(room.to_tend(now + IDLE), []);
    }

    #[test]
    fn what_is_not_charged_can_be_given_back_at_once() {
        let (room, now) = (ReservationLedger::default(), Instant::now());
        promised(&room, NEAR, 100, now);
        let _charge = take(&room, &costs(60, 0)[..1], now).unwrap();
        let question = room.surplus(OWN, NEAR).unwrap();
        assert_eq!((question.needed, question.wanted), (60, 60));
        assert_eq!(room.surplus(OWN, NEAR), None);
        assert!(take(&room, &costs(1, 0)[..1], now).is_err());
    }

    #[test]
    fn a_new_session_was_promised_nothing() {
        let (room, now) = (ReservationLedger::default(), Instant::now());
        promised(&room, NEAR, 100, now);
        let late = room.question(OWN, NEAR, 200).unwrap();
        let other = SessionId(8);
        assert!(room.question(other, NEAR, 1).is_some());
        room.answered(NEAR, late, Ok(reply(200, 200)), now);
        assert!(take(&room, &costs(1, 0)[..1], now).is_err());
    }

    /// Catches `broken!("silent_has_room")`.
    #[test]
    fn a_silent_target_is_waited_for() {
        let (room, now) = (ReservationLedger::default(), Instant::now());
        promised(&room, NEAR, 10, now);
        let question = room.question(OWN, NEAR, 20).unwrap();
        room.answered(NEAR, question, Err(Status::UNREACHABLE), now);
        let later = now + 10 * IDLE;
        assert_eq!(room.take(&[cost(NEAR, 11)], later), Err(Short::Silent));
        assert_eq!(room.question(OWN, NEAR, 11), None, "each write would wait for as long");
        assert_eq!(room.to_tend(later), [NEAR]);
        assert!(take(&room, &[cost(NEAR, 10)], later).is_ok(), "what it promised is believed");
        let question = room.repeated(OWN, NEAR, later).unwrap();
        room.answered(NEAR, question, Ok(reply(10, 20)), later);
        assert_eq!(room.take(&[cost(NEAR, 11)], later).err(), unpromised(&[NEAR]));
        assert!(room.question(OWN, NEAR, 11).is_some());
    }

    /// Nobody is asked for ever.
    #[test]
    fn a_silent_target_that_nobody_waits_for_is_forgotten() {
        let (room, now) = (ReservationLedger::default(), Instant::now());
        let question = room.question(OWN, NEAR, 20).unwrap();
        room.answered(NEAR, question, Err(Status::UNREACHABLE), now);
        assert_eq!(room.take(&[cost(NEAR, 20)], now), Err(Short::Silent));
        assert!(room.repeated(OWN, NEAR, now).is_some());
        assert_eq!(room.to_tend(now), [NEAR]);
        assert_eq!(room.to_tend(now + IDLE), []);
    }

    /// Catches `broken!("settles_at_once")`.
    #[test]
    fn a_target_that_started_anew_is_asked_for_nothing_new_for_a_while() {
        let (room, now) = (ReservationLedger::default(), Instant::now());
        promised(&room, NEAR, 100, now);
        let charge = take(&room, &[cost(NEAR, 60)], now).unwrap();
        let anew = RoomReply { boot: BootId(2), promised: 100, left: 500 };
        let question = room.repeated(OWN, NEAR, now).unwrap();
        assert!(room.answered(NEAR, question, Ok(anew), now), "the rest is given back");
        let question = room.surplus(OWN, NEAR).unwrap();
        assert!(!room.answered(NEAR, question, Ok(RoomReply { promised: 60, ..anew }), now));
        assert_eq!(room.take(&[cost(NEAR, 1)], now), Err(Short::Silent));
        let question = room.repeated(OWN, NEAR, now).unwrap();
        assert_eq!((question.needed, question.wanted), (60, 60));
        let later = now + SETTLING;
        assert_eq!(room.take(&[cost(NEAR, 1)], later).err(), unpromised(&[NEAR]));
        let last = RoomReply { boot: BootId(3), promised: 60, left: PLENTY };
        assert!(!room.answered(NEAR, question, Ok(last), later), "there is enough for all");
        drop(charge);
    }

    /// It counts what was pushed: begun anew, it would be behind the question.
    #[test]
    fn an_account_that_is_asked_for_is_not_forgotten() {
        let (room, start) = (ReservationLedger::default(), Instant::now());
        promised(&room, NEAR, 100, start);
        room.take(&costs(60, 0)[..1], start).unwrap();
        let mut charge = room.charge(costs(60, 0)[..1].to_vec());
        drop(charge.push());
        let asking = room.asking(NEAR);
        let question = room.surplus(OWN, NEAR).unwrap();
        let reply = RoomReply { boot: BootId(1), promised: 0, left: 1000 };
        room.answered(NEAR, question, Ok(reply), start);
        let question = room.question(OWN, NEAR, 10).unwrap();
        assert_eq!(room.to_tend(start + 2 * IDLE), [NEAR]);
        let reply = RoomReply { promised: 50, ..reply };
        room.answered(NEAR, question, Ok(reply), start + 2 * IDLE);
        assert!(room.take(&costs(50, 0)[..1], start + 2 * IDLE).is_ok());
        drop(asking);
    }

    #[test]
    fn room_of_others_is_told_from_none() {
        let (room, now) = (ReservationLedger::default(), Instant::now());
        promised(&room, NEAR, 100, now);
        assert!(room.is_kept(&costs(200, 0)[..1]));
        assert!(!room.is_kept(&costs(201, 0)[..1]));
    }

    #[test]
    fn a_group_that_refused_is_tried_again_later() {
        let (room, start) = (ReservationLedger::default(), Instant::now());
        room.heard(GROUP, Err(Status::IO), start);
        assert!(!room.is_refused(GROUP), "another error says nothing of room");
        room.heard(GROUP, Err(Status::NOSPC), start);
        room.heard(GROUP, Ok(4096), start + REFUSED / 2);
        assert!(room.is_refused(GROUP), "a little may find room where more does not");
        room.heard(GROUP, Ok(0), start + REFUSED);
        assert!(room.is_refused(GROUP), "an overwrite needs no room");
        room.heard(GROUP, Ok(4096), start + REFUSED);
        assert!(!room.is_refused(GROUP));
        room.heard(GROUP, Err(Status::NOSPC), start);
        room.to_tend(start + FORGOTTEN);
        assert!(!room.is_refused(GROUP), "where nobody tries");
    }
}
