//! The lease table: which session may cache which inode. Pure: calls in, recalls out, no clock.
//!
//! There is one coarse lease per inode, for its attributes and its entries or data as a whole.
//! Readers share a lease, a writer is alone. A grant has a number, and a recall names the highest
//! number that it takes back. So a client does not cache a grant that its recall has overtaken.
//! Interest without a mode means that a session may still have the inode open.

pub(crate) mod directory_delegation;
pub(crate) mod pressure;
pub(crate) mod range;
pub(crate) mod recall;

use std::collections::HashMap;

use nuri_proto::id::{Ino, SessionId};
use nuri_proto::op::meta::{Grant, LeaseMode, Recall};
use nuri_proto::op::part::{Ahead, PartGrant};
use nuri_proto::range_map::Span;
use nuri_rules::broken;

use crate::lease::range::Parts;

/// So often nothing is granted in passing on an inode that was taken back from caches.
const CONTENTION_BACKOFF: u32 = 64;

/// Nearly full is a table in which less than this part of the limit is left.
const CROWDED: usize = 10;

/// So often a file's writer is recalled for another one before its parts are granted apart.
const RIVALRY: u32 = 2;

/// What the other sessions must give up for an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Want {
    /// No writer elsewhere.
    Shared,
    /// No cache elsewhere.
    Alone,
    /// No cache anywhere: not the caller's own either.
    Nobody,
    /// No cache elsewhere, nor these bytes being written.
    Part(Span),
}

impl Want {
    fn is_exclusive(self) -> bool {
        matches!(self, Want::Alone | Want::Nobody)
    }
}

/// An inode and what an operation needs there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    pub ino: Ino,
    pub want: Want,
}

struct Holder {
    session: SessionId,
    mode: Option<LeaseMode>,
    number: u64,
    /// A recall under way: what it may keep.
    recalled: Option<Option<LeaseMode>>,
    /// What it may write without a mode, while others write elsewhere. Few inodes have any.
    parts: Option<Box<Parts>>,
}

impl Holder {
    fn new(session: SessionId, mode: Option<LeaseMode>, number: u64) -> Holder {
        Holder { session, mode, number, recalled: None, parts: None }
    }

    fn has_parts(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| !parts.is_empty())
    }

    /// What to recall for the claim, where the holder is in its way.
    fn in_the_way(&self, want: Want) -> Option<Taken> {
        match (want, self.mode) {
            (Want::Shared, Some(LeaseMode::Read)) => None,
            (Want::Shared, Some(LeaseMode::Write)) => Some(Taken::Down(Some(LeaseMode::Read))),
            (_, Some(_)) => Some(Taken::Down(None)),
            (Want::Part(_), None) if broken!("parts_overlap") => None,
            (Want::Part(need), None) => self.parts.as_ref()?.in_the_way(need).map(Taken::Part),
            (_, None) => self.has_parts().then_some(Taken::Down(None)),
        }
    }
}

/// What a session had on an inode before it was forgotten.
pub(crate) struct Forgotten {
    ino: Ino,
    holder: Holder,
}

/// What a recall takes.
enum Taken {
    /// The lease and all parts, down to what may be kept.
    Down(Option<LeaseMode>),
    Part(Span),
}

/// Writers of one file that take it from each other.
#[derive(Clone, Copy, Default)]
struct Rivals {
    recalls: u32,
    /// Since the last part was granted.
    is_fresh: bool,
}

/// An operation's place among those that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    number: u64,
    pub(crate) session: SessionId,
}

/// All leases of one metadata server.
pub struct LeaseTable {
    inodes: HashMap<Ino, Vec<Holder>>,
    /// Those that operations wait to have alone, with their turns.
    awaited: HashMap<Ino, Vec<Turn>>,
    /// Those that were taken back from caches: how often to grant nothing in passing.
    contended: HashMap<Ino, u32>,
    rivals: HashMap<Ino, Rivals>,
    next: u64,
    turns: u64,
    /// Beyond this many inodes only leases that were asked for are granted.
    limit: usize,
}

impl LeaseTable {
    /// A table whose grant numbers are above all numbers of earlier epochs.
    pub fn new(epoch: u64, limit: usize) -> LeaseTable {
        let (inodes, awaited, contended, rivals) = Default::default();
        let next = epoch << Grant::EPOCH_SHIFT;
        LeaseTable { inodes, awaited, contended, rivals, next, turns: 0, limit }
    }

    /// Number of the last grant.
    pub fn last(&self) -> u64 {
        self.next
    }

    fn holders(&self, ino: Ino) -> &[Holder] {
        self.inodes.get(&ino).map_or(&[], Vec::as_slice)
    }

    /// Sessions in the way of `claim`, each with the recall to send where none is under way yet.
    pub fn conflicts(
        &mut self,
        claim: Claim,
        session: SessionId,
    ) -> Vec<(SessionId, Option<Recall>)> {
        let Some(holders) = self.inodes.get_mut(&claim.ino) else {
            return Vec::new();
        };
        let mut out = Vec::new();
        let own_too = claim.want == Want::Nobody;
        for holder in holders.iter_mut().filter(|h| own_too || h.session != session) {
            let number = holder.number;
            let (keep, part, send) = match holder.in_the_way(claim.want) {
                None => continue,
                Some(Taken::Part(span)) => {
                    let parts = holder.parts.as_mut();
                    let is_new = parts.is_some_and(|parts| parts.recall(span, number));
                    (None, Some(span), is_new && holder.recalled.is_none())
                }
                Some(Taken::Down(keep)) => {
                    // A recall under way that keeps too much is sent again, sharper.
                    let send = holder.recalled.is_none_or(|already| already > keep);
                    if send && holder.mode == Some(LeaseMode::Write) && keep.is_none() {
                        let rivals = self.rivals.entry(claim.ino).or_default();
                        (rivals.recalls, rivals.is_fresh) = (rivals.recalls + 1, true);
                    }
                    if send && keep.is_none() {
                        self.contended.insert(claim.ino, CONTENTION_BACKOFF);
                    }
                    holder.recalled = if send { Some(keep) } else { holder.recalled };
                    (keep, None, send)
                }
            };
            let recall = Recall { ino: claim.ino, number, keep, part };
            out.push((holder.session, send.then_some(recall)));
        }
        out
    }

    /// Whether a session that asks to write bytes of the file is granted only these bytes, because
    /// others write the file too.
    pub fn is_in_parts(&self, ino: Ino, session: SessionId) -> bool {
        let holders = self.holders(ino);
        let has_lease = holders.iter().any(|h| h.session == session && h.mode.is_some());
        let rivals = self.rivals.get(&ino).copied().unwrap_or_default();
        let is_wanted = rivals.recalls >= RIVALRY && rivals.is_fresh;
        !has_lease && (is_wanted || self.has_parts(ino))
    }

    /// Whether any session holds ranges of the file.
    pub fn has_parts(&self, ino: Ino) -> bool {
        self.holders(ino).iter().any(Holder::has_parts)
    }

    /// Grants bytes of a file, and as many of the spans ahead as nobody holds. Conflicts must have
    /// been resolved. `None` while some of the file, or all, is being recalled from the session
    /// itself.
    pub fn grant_part(
        &mut self,
        ino: Ino,
        session: SessionId,
        need: Span,
        ahead: Ahead,
    ) -> Option<PartGrant> {
        if let Some(rivals) = self.rivals.get_mut(&ino) {
            rivals.is_fresh = false;
        }
        let is_free = |span: &Span| {
            self.holders(ino).iter().all(|holder| {
                let held = |p: &Parts| {
                    let others = holder.session != session && p.meets(*span);
                    others && !broken!("parts_overlap")
                };
                holder.parts.as_ref().is_none_or(|p| !held(p) && !p.is_recalled(*span))
            })
        };
        if !is_free(&need) {
            return None;
        }
        let granted: Vec<_> = ahead.spans().take_while(is_free).collect();
        self.next += 1;
        let number = self.next;
        let holder = self.holder_mut(ino, session);
        if holder.recalled.is_some() && !broken!("grant_during_recall") {
            return None;
        }
        holder.number = number;
        let parts = holder.parts.get_or_insert_default();
        parts.add(need);
        granted.iter().for_each(|span| parts.add(*span));
        Some(PartGrant { number, count: granted.len() as u32 })
    }

    /// Reclaims ranges of the file for a session after a restart. `false` where another holder came
    /// first.
    pub fn reclaim_parts(&mut self, ino: Ino, session: SessionId, spans: &[Span]) -> bool {
        let others = self.holders(ino).iter().filter(|h| h.session != session);
        let meets = |h: &Holder| {
            let parts = h.parts.as_ref();
            parts.is_some_and(|parts| spans.iter().any(|span| parts.meets(*span)))
        };
        if others.into_iter().any(|h| h.mode.is_some() || meets(h)) {
            return false;
        }
        // Said again: a recall under way names the number that it was answered with.
        if self.holders(ino).iter().any(|h| h.session == session && h.has_parts()) {
            return true;
        }
        self.next += 1;
        let number = self.next;
        let holder = self.holder_mut(ino, session);
        holder.number = number;
        let parts = holder.parts.get_or_insert_default();
        spans.iter().filter(|span| span.is_valid()).for_each(|span| parts.add(*span));
        self.rivals.insert(ino, Rivals { recalls: RIVALRY, is_fresh: false });
        true
    }

    fn holder_mut(&mut self, ino: Ino, session: SessionId) -> &mut Holder {
        let holders = self.inodes.entry(ino).or_default();
        let at = holders.iter().position(|h| h.session == session);
        let at = at.unwrap_or_else(|| {
            holders.push(Holder::new(session, None, 0));
            holders.len() - 1
        });
        &mut holders[at]
    }

    /// Whether another session writes the inode.
    pub fn written_elsewhere(&self, ino: Ino, session: SessionId) -> bool {
        let writes = |h: &Holder| h.session != session && h.mode == Some(LeaseMode::Write);
        self.holders(ino).iter().any(writes)
    }

    /// The place of an operation that begins now.
    pub fn turn(&mut self, session: SessionId) -> Turn {
        self.turns += 1;
        Turn { number: self.turns, session }
    }

    /// Notes that an operation waits for these claims. Until it is done, nothing that would be in
    /// its way is granted in passing. Otherwise many readers would keep it waiting, each one
    /// recalled and back again.
    pub fn begin_wait(&mut self, claims: &[Claim], turn: Turn) {
        for claim in claims.iter().filter(|claim| claim.want.is_exclusive()) {
            self.awaited.entry(claim.ino).or_default().push(turn);
        }
    }

    /// Notes that the operation does not wait for the claims any more. Returns whether others
    /// waited for that.
    pub fn end_wait(&mut self, claims: &[Claim], turn: Turn) -> bool {
        let mut was_awaited = false;
        for claim in claims.iter().filter(|claim| claim.want.is_exclusive()) {
            if let Some(turns) = self.awaited.get_mut(&claim.ino) {
                turns.retain(|other| *other != turn);
            }
            self.awaited.retain(|_, turns| !turns.is_empty());
            was_awaited = true;
        }
        was_awaited
    }

    /// Whether the inode was just taken back from caches because it changes: who shares it asks
    /// each time then, which costs less than to be recalled each time.
    fn is_wary(&mut self, ino: Ino) -> bool {
        let Some(left) = self.contended.get_mut(&ino) else { return false };
        *left -= 1;
        if *left == 0 {
            self.contended.remove(&ino);
        }
        true
    }

    /// Whether a requested lease comes after an operation of another session that waits to have the
    /// inode alone. A session that holds a lease already does not wait: the recall of its lease may
    /// wait for what the session does.
    pub fn comes_after(&self, claim: Claim, turn: Turn) -> bool {
        claim.want == Want::Shared
            && self.is_awaited_before(claim.ino, turn)
            && self.held(claim.ino, turn.session).is_none()
    }

    /// Whether an operation of another session waits already to have the inode alone.
    pub fn is_awaited_before(&self, ino: Ino, turn: Turn) -> bool {
        let before = |t: &Turn| t.session != turn.session && t.number < turn.number;
        self.awaited.get(&ino).is_some_and(|turns| turns.iter().any(before))
    }

    /// Grants a lease in passing, where the table has room and nothing is in the way. If the
    /// session already has a stronger lease, that lease stays and is the answer.
    pub fn offer(&mut self, ino: Ino, session: SessionId, mode: LeaseMode) -> Option<Grant> {
        let known = self.inodes.contains_key(&ino);
        if !known && self.inodes.len() >= self.limit || self.awaited.contains_key(&ino) {
            return None;
        }
        if self.is_wary(ino) {
            return None;
        }
        let blocked = self.is_blocked(ino, session, mode);
        if blocked { None } else { self.grant(ino, session, mode) }
    }

    /// Whether others hold what excludes the lease. Who writes parts asks for the whole itself,
    /// when it has given these up.
    fn is_blocked(&self, ino: Ino, session: SessionId, mode: LeaseMode) -> bool {
        let in_the_way = |h: &Holder| match h.mode {
            None => h.has_parts(),
            Some(held) => {
                h.session != session && (mode == LeaseMode::Write || held == LeaseMode::Write)
            }
        };
        self.holders(ino).iter().any(in_the_way)
    }

    /// Reclaims a lease for a session after a restart. A session that repeats the call, because it
    /// had no answer, is answered what it holds: others may have asked for it by then. `None` where
    /// another holder came first.
    pub fn reclaim(&mut self, ino: Ino, session: SessionId, mode: LeaseMode) -> Option<Grant> {
        let own = self.holders(ino).iter().find(|h| h.session == session);
        match own.map(|h| (h.mode, h.number)) {
            Some((Some(held), number)) if held >= mode => Some(Grant { mode: held, number }),
            _ if self.is_blocked(ino, session, mode) => None,
            _ => self.grant(ino, session, mode),
        }
    }

    /// Grants a lease. Conflicts must have been resolved. `None` while the session's own lease is
    /// being recalled.
    pub fn grant(&mut self, ino: Ino, session: SessionId, mode: LeaseMode) -> Option<Grant> {
        self.next += 1;
        let number = self.next;
        let holders = self.inodes.entry(ino).or_default();
        let Some(holder) = holders.iter_mut().find(|h| h.session == session) else {
            holders.push(Holder::new(session, Some(mode), number));
            return Some(Grant { mode, number });
        };
        if holder.recalled.is_some() && !broken!("grant_during_recall") {
            return None;
        }
        // Given up before the whole was asked for.
        holder.parts = None;
        let mode = holder.mode.map_or(mode, |have| have.max(mode));
        (holder.mode, holder.number) = (Some(mode), number);
        Some(Grant { mode, number })
    }

    /// Notes that a recall was obeyed; returns whether this ended it. An answer to an older recall
    /// changes nothing: a repeated call, or one that keeps more than is allowed by now. Later
    /// grants are not touched.
    pub fn recall_done(
        &mut self,
        ino: Ino,
        session: SessionId,
        number: u64,
        kept: Option<LeaseMode>,
    ) -> bool {
        let holders = self.inodes.get_mut(&ino).into_iter().flatten();
        let Some(holder) = holders.into_iter().find(|h| h.session == session) else {
            return true;
        };
        match holder.recalled {
            Some(allowed) if holder.number <= number && kept <= allowed => {
                (holder.mode, holder.recalled, holder.parts) = (kept, None, None);
                true
            }
            Some(_) => false,
            None => true,
        }
    }

    /// Notes that the session writes no more under grants up to the number; returns whether it
    /// could write.
    pub fn downgrade(&mut self, ino: Ino, session: SessionId, number: u64) -> bool {
        let holders = self.inodes.get_mut(&ino).into_iter().flatten();
        let Some(holder) = holders.into_iter().find(|h| h.session == session) else {
            return false;
        };
        let wrote = holder.mode == Some(LeaseMode::Write) && holder.number <= number;
        if wrote {
            holder.mode = Some(LeaseMode::Read);
        }
        wrote
    }

    /// Notes that the recall of a range was obeyed; returns whether this ended all recalls of the
    /// session there.
    pub fn part_done(&mut self, ino: Ino, session: SessionId, number: u64, span: Span) -> bool {
        let holders = self.inodes.get_mut(&ino).into_iter().flatten();
        let Some(holder) = holders.into_iter().find(|h| h.session == session) else {
            return true;
        };
        if let Some(parts) = &mut holder.parts {
            parts.recall_done(span, number);
        }
        holder.recalled.is_none() && holder.parts.as_ref().is_none_or(|parts| parts.is_settled())
    }

    /// Notes that the session gave up all its ranges, asked or not. Grants above the number are
    /// newer. Returns the same as `part_done`.
    pub fn parts_given_up(&mut self, ino: Ino, session: SessionId, number: u64) -> bool {
        let holders = self.inodes.get_mut(&ino).into_iter().flatten();
        let Some(holder) = holders.into_iter().find(|h| h.session == session) else {
            return true;
        };
        if holder.number > number {
            return self.part_done(ino, session, number, Span::ALL);
        }
        holder.parts = None;
        holder.recalled.is_none()
    }

    /// Notes that the session forgot the inode: it has no lease, and the inode is not open.
    pub fn release(&mut self, ino: Ino, session: SessionId, number: u64) {
        let Some(holders) = self.inodes.get_mut(&ino) else {
            return;
        };
        holders.retain(|h| h.session != session || h.number > number);
        if holders.is_empty() {
            self.contended.remove(&ino);
            self.rivals.remove(&ino);
            self.inodes.remove(&ino);
        }
    }

    /// Notes that the session does not have the inode open, whatever its leases are. Returns what
    /// it had, for [`LeaseTable::remember`].
    pub(crate) fn forget(&mut self, ino: Ino, session: SessionId) -> Option<Forgotten> {
        let holders = self.inodes.get_mut(&ino)?;
        let at = holders.iter().position(|h| h.session == session)?;
        let holder = holders.swap_remove(at);
        // Nothing is left of it: the inode's own notes go too, where nobody else has it.
        self.release(ino, session, u64::MAX);
        Some(Forgotten { ino, holder })
    }

    /// The session has again what it had: what made the table forget it did not happen.
    pub(crate) fn remember(&mut self, Forgotten { ino, holder }: Forgotten) {
        let holders = self.inodes.entry(ino).or_default();
        holders.retain(|h| h.session != holder.session);
        holders.push(holder);
    }

    /// Drops everything of a session that ended. Returns the inodes that it had.
    pub fn drop_session(&mut self, session: SessionId) -> Vec<Ino> {
        let has = |holders: &Vec<Holder>| holders.iter().any(|h| h.session == session);
        let inos: Vec<_> =
            self.inodes.iter().filter(|(_, h)| has(h)).map(|(ino, _)| *ino).collect();
        inos.iter().for_each(|ino| self.release(*ino, session, u64::MAX));
        inos
    }

    /// Sessions that may have the inode open.
    pub fn interested(&self, ino: Ino) -> Vec<SessionId> {
        self.holders(ino).iter().map(|h| h.session).collect()
    }

    /// Notes that a session has the inode open, without a lease.
    pub fn note_open(&mut self, ino: Ino, session: SessionId) {
        if !self.holders(ino).iter().any(|h| h.session == session) {
            let holder = Holder::new(session, None, 0);
            self.inodes.entry(ino).or_default().push(holder);
        }
    }

    /// What the session holds on the inode.
    pub fn held(&self, ino: Ino, session: SessionId) -> Option<LeaseMode> {
        self.holders(ino).iter().find(|h| h.session == session)?.mode
    }

    /// Whether the session may publish what it wrote. A reader under recall may too, because its
    /// kernel hands over pages that a program changed through a mapping without telling anybody.
    /// Nobody else writes before that recall is answered.
    pub fn may_publish(&self, ino: Ino, session: SessionId) -> bool {
        let mut holders = self.holders(ino).iter();
        let own = holders.find(|h| h.session == session);
        own.is_some_and(|h| match h.mode {
            Some(LeaseMode::Write) => true,
            Some(LeaseMode::Read) => h.recalled.is_some(),
            None => h.has_parts(),
        })
    }

    /// Where the table is nearly full: the session that holds most, and how many leases it should
    /// give back.
    pub fn lease_pressure(&self) -> Option<(SessionId, usize)> {
        if self.inodes.len() < self.limit - self.limit / CROWDED {
            return None;
        }
        let mut held: HashMap<SessionId, usize> = HashMap::new();
        for holder in self.inodes.values().flatten() {
            *held.entry(holder.session).or_default() += 1;
        }
        let (session, held) = held.into_iter().max_by_key(|(session, held)| (*held, *session))?;
        Some((session, held.min(2 * self.limit / CROWDED)))
    }

    /// Number of inodes with leases or interest.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);
    const C: SessionId = SessionId(3);
    const F: Ino = Ino(7);
    const READ: Option<LeaseMode> = Some(LeaseMode::Read);

    fn claim(want: Want) -> Claim {
        Claim { ino: F, want }
    }

    #[test]
    fn readers_share_and_a_writer_is_recalled_to_reading() {
        let mut table = LeaseTable::new(1, 100);
        let grant = table.grant(F, A, LeaseMode::Write).unwrap();
        assert_eq!(table.offer(F, B, LeaseMode::Read), None);
        let conflicts = table.conflicts(claim(Want::Shared), B);
        let recall = Recall { ino: F, number: grant.number, keep: READ, part: None };
        assert_eq!(conflicts, [(A, Some(recall))]);
        assert_eq!(table.conflicts(claim(Want::Shared), B), [(A, None)]);
        table.recall_done(F, A, grant.number, READ);
        assert!(table.conflicts(claim(Want::Shared), B).is_empty());
        assert!(table.offer(F, B, LeaseMode::Read).is_some());
    }

    #[test]
    fn a_sharper_recall_is_sent_again() {
        let mut table = LeaseTable::new(1, 100);
        table.grant(F, A, LeaseMode::Write);
        table.conflicts(claim(Want::Shared), B);
        let sharper = table.conflicts(claim(Want::Alone), B);
        assert_eq!(sharper[0].1.unwrap().keep, None);
    }

    #[test]
    fn a_reader_may_publish_only_under_its_recall() {
        let mut table = LeaseTable::new(1, 100);
        let grant = table.grant(F, A, LeaseMode::Read).unwrap();
        assert!(!table.may_publish(F, A));
        table.conflicts(claim(Want::Alone), B);
        assert!(table.may_publish(F, A) && !table.may_publish(F, B));
        table.recall_done(F, A, grant.number, None);
        assert!(!table.may_publish(F, A));
    }

    /// Catches `broken!("grant_during_recall")`.
    #[test]
    fn nothing_is_granted_to_a_holder_under_recall() {
        let mut table = LeaseTable::new(1, 100);
        let grant = table.grant(F, A, LeaseMode::Read).unwrap();
        table.conflicts(claim(Want::Alone), B);
        assert_eq!(table.grant(F, A, LeaseMode::Read), None);
        table.recall_done(F, A, grant.number, None);
        assert!(table.conflicts(claim(Want::Alone), B).is_empty());
        assert_eq!(table.interested(F), [A]);
    }

    #[test]
    fn a_late_answer_does_not_end_a_newer_lease() {
        let mut table = LeaseTable::new(1, 100);
        let old = table.grant(F, A, LeaseMode::Read).unwrap();
        table.grant(F, A, LeaseMode::Read);
        table.recall_done(F, A, old.number, None);
        table.release(F, A, old.number);
        assert_eq!(table.held(F, A), READ);
    }

    #[test]
    fn readers_in_passing_do_not_keep_a_writer_waiting() {
        let mut table = LeaseTable::new(1, 100);
        table.grant(F, A, LeaseMode::Read);
        let waits = [claim(Want::Alone)];
        let turns = [table.turn(C), table.turn(C)];
        table.begin_wait(&waits, turns[0]);
        table.begin_wait(&waits, turns[1]);
        assert_eq!(table.offer(F, B, LeaseMode::Read), None);
        table.end_wait(&waits, turns[0]);
        assert_eq!(table.offer(F, B, LeaseMode::Read), None);
        table.end_wait(&waits, turns[1]);
        assert!(table.offer(F, B, LeaseMode::Read).is_some());
    }

    #[test]
    fn what_was_taken_back_is_not_granted_in_passing_for_a_while() {
        let mut table = LeaseTable::new(1, 100);
        let grant = table.grant(F, A, LeaseMode::Read).unwrap();
        table.conflicts(claim(Want::Alone), B);
        table.recall_done(F, A, grant.number, None);
        for _ in 0..CONTENTION_BACKOFF {
            assert_eq!(table.offer(F, B, LeaseMode::Read), None);
        }
        assert!(table.offer(F, B, LeaseMode::Read).is_some());
    }

    #[test]
    fn who_asks_to_read_comes_after_writers_that_wait_already() {
        let mut table = LeaseTable::new(1, 100);
        table.grant(F, A, LeaseMode::Read);
        let [before, writer] = [table.turn(B), table.turn(C)];
        table.begin_wait(&[claim(Want::Alone)], writer);
        assert!(!table.comes_after(claim(Want::Shared), before));
        let after = [A, B, C].map(|session| table.turn(session));
        let comes_after = |turn: &Turn| table.comes_after(claim(Want::Shared), *turn);
        assert_eq!(after.each_ref().map(comes_after), [false, true, false]);
        table.end_wait(&[claim(Want::Alone)], writer);
        assert!(!table.comes_after(claim(Want::Shared), after[1]));
    }

    #[test]
    fn a_full_table_offers_nothing_new_but_grants_what_is_asked() {
        let mut table = LeaseTable::new(1, 1);
        assert!(table.offer(F, A, LeaseMode::Read).is_some());
        assert_eq!(table.offer(Ino(8), A, LeaseMode::Read), None);
        assert!(table.grant(Ino(8), A, LeaseMode::Read).is_some());
        assert_eq!(table.drop_session(A).len(), 2);
        assert!(table.is_empty());
    }

    #[test]
    fn a_writer_that_reads_only_is_not_in_the_way_of_readers() {
        let mut table = LeaseTable::new(1, 100);
        let old = table.grant(F, A, LeaseMode::Write).unwrap();
        table.grant(F, A, LeaseMode::Write).unwrap();
        assert!(!table.downgrade(F, A, old.number), "it was granted anew");
        assert!(!table.downgrade(F, B, u64::MAX));
        assert_eq!(table.held(F, A), Some(LeaseMode::Write));
        assert!(table.downgrade(F, A, old.number + 1));
        assert!(table.conflicts(claim(Want::Shared), B).is_empty());
        assert_eq!(table.held(F, A), READ);
    }

    #[test]
    fn in_a_crowd_who_holds_most_gives_back() {
        let mut table = LeaseTable::new(1, 100);
        let holder = |i| if i < 60 { A } else { B };
        assert!((0..89).all(|i| table.offer(Ino(i), holder(i), LeaseMode::Read).is_some()));
        assert_eq!(table.lease_pressure(), None);
        table.offer(Ino(89), B, LeaseMode::Read);
        assert_eq!(table.lease_pressure(), Some((A, 20)));
    }

    #[test]
    fn parts_that_are_claimed_again_keep_the_number_that_a_recall_names() {
        let mut table = LeaseTable::new(1, 100);
        let span = Span { start: 0, end: 10 };
        assert!(table.reclaim_parts(F, A, &[span]));
        let recalls = table.conflicts(claim(Want::Part(span)), B);
        let Recall { number, part, .. } = recalls[0].1.unwrap();
        assert!(table.reclaim_parts(F, A, &[span]), "said again");
        assert!(table.part_done(F, A, number, part.unwrap()));
        assert!(table.conflicts(claim(Want::Part(span)), B).is_empty());
    }

    /// A repeated answer, or one to an older recall, must not take a lease that the holder still
    /// caches under.
    #[test]
    fn a_repeated_answer_changes_nothing() {
        let mut table = LeaseTable::new(1, 100);
        let grant = table.grant(F, A, LeaseMode::Write).unwrap();
        table.conflicts(claim(Want::Shared), B);
        assert!(table.recall_done(F, A, grant.number, READ));
        assert!(table.recall_done(F, A, grant.number, READ));
        assert_eq!(table.held(F, A), READ);
        table.conflicts(claim(Want::Alone), B);
        assert!(!table.recall_done(F, A, grant.number, READ));
        assert_eq!(table.conflicts(claim(Want::Alone), B), [(A, None)], "still waited for");
        assert!(table.recall_done(F, A, grant.number, None));
        assert_eq!(table.held(F, A), None);
    }

    #[test]
    fn what_is_reclaimed_again_is_answered_though_others_ask_for_it_by_then() {
        let mut table = LeaseTable::new(1, 10);
        let grant = table.reclaim(F, A, LeaseMode::Write).unwrap();
        assert_eq!(table.conflicts(claim(Want::Alone), B).len(), 1);
        assert_eq!(table.reclaim(F, A, LeaseMode::Write), Some(grant), "no answer had arrived");
        assert_eq!(table.reclaim(F, B, LeaseMode::Read), None);
        assert!(table.recall_done(F, A, grant.number, None), "the recall counts all the same");
        assert!(table.reclaim(F, B, LeaseMode::Read).is_some(), "and is no reason to refuse");
    }

    #[test]
    fn what_nobody_may_cache_is_taken_from_the_caller_too() {
        let mut table = LeaseTable::new(1, 100);
        table.grant(F, A, LeaseMode::Write);
        assert!(table.conflicts(claim(Want::Alone), A).is_empty());
        let recalled = table.conflicts(claim(Want::Nobody), A);
        assert_eq!(recalled.iter().map(|(session, _)| *session).collect::<Vec<_>>(), [A]);
    }
}
