//! What a member of a group may do with a stripe: pure decisions over [`Held`].
//!
//! MEMBER-1 A stripe has at most one staged write, beside the base. The base stays whole until that
//!    write is decided.
//! MEMBER-2 A write is staged only on the base that it names, and only above everything aborted.
//! MEMBER-3 The same write again gets the same answer, staged or committed.
//! MEMBER-4 A staged write is committed when a caller that knows says "decided". It is dropped when
//!    a caller that knows says "aborted". The member itself never guesses.
//! MEMBER-5 An abort is a promise: no write up to its version is staged any more, not even one that
//!    is still under way.
//! MEMBER-6 A program's read never passes an undecided write.
//! MEMBER-7 Content that others computed replaces the base only where it is newer, or where the
//!    base is damaged. It never does so under a staged write that is newer still. Content of a
//!    write that is not decided is bound by the promise of MEMBER-5, as that write is.
//! MEMBER-8 What a look at the stripe found is repaired only on the very write that was looked at.
//!    A stripe that was truncated meanwhile is gone, or has begun anew, and is left alone.

use nuri_proto::id::Epoch;
use nuri_proto::op::member::{Install, Reason};
use nuri_proto::stripe::{Covers, Earlier, Held, Stage, Staged, Version};
use nuri_rules::broken;

/// What comes first, then the write is staged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    Nothing,
    Commit,
    Drop,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageVerdict {
    Accept(First),
    /// It is held already.
    Already,
    Refuse,
}

/// Rules MEMBER-1 to MEMBER-5.
pub fn stage(held: &Held, ask: &Stage) -> StageVerdict {
    let is_staged =
        held.staged.as_ref().is_some_and(|s| s.id == ask.id && s.version == ask.version);
    let is_committed = held.last == ask.id && held.covers.newest() == ask.version;
    if is_staged || is_committed {
        return StageVerdict::Already;
    }
    let (first, base) = match (&held.staged, ask.earlier) {
        (None, _) => (First::Nothing, &held.covers),
        (Some(s), Earlier::Decided(v)) if v == s.version => (First::Commit, &s.covers),
        (Some(s), Earlier::Aborted(v)) if v == s.version => (First::Drop, &held.covers),
        (Some(_), _) if broken!("stage_over_staged") => (First::Drop, &held.covers),
        (Some(_), _) => return StageVerdict::Refuse,
    };
    let aborted = ask.version <= held.floor && !broken!("abort_forgotten");
    let based = base.same(&ask.base) || broken!("any_base");
    let rises = ask.version > base.newest();
    if aborted || !based || !rises { StageVerdict::Refuse } else { StageVerdict::Accept(first) }
}

/// What the member holds once the write is staged.
pub fn staged(held: &Held, ask: &Stage, first: First) -> Held {
    let mut next = match first {
        First::Commit => committed(held),
        First::Nothing | First::Drop => Held { staged: None, ..held.clone() },
    };
    next.group = ask.group;
    next.staged = Some(Staged {
        version: ask.version,
        id: ask.id,
        covers: ask.covers.clone(),
        participants: ask.participants,
    });
    next
}

/// Whether a staged write is to be committed on "decided up to `version`".
pub fn commits(held: &Held, version: Version) -> bool {
    held.staged.as_ref().is_some_and(|s| s.version == version)
}

/// What the member holds once the staged write is committed.
pub fn committed(held: &Held) -> Held {
    match &held.staged {
        None => held.clone(),
        Some(s) => Held { covers: s.covers.clone(), last: s.id, staged: None, ..held.clone() },
    }
}

/// What the member holds once it promised to stage nothing more up to `version` (MEMBER-5). What it
/// holds already stays: it may have come just before, and count.
pub fn promised(held: &Held, version: Version) -> Held {
    if broken!("promise_drops") {
        return aborted(held, version);
    }
    Held { floor: held.floor.max(version), ..held.clone() }
}

/// What the member holds after an abort of everything up to `version` (MEMBER-5).
pub fn aborted(held: &Held, version: Version) -> Held {
    let keeps = |s: &Staged| s.version > version;
    let staged = held.staged.clone().filter(keeps);
    Held { floor: held.floor.max(version), staged, ..held.clone() }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadVerdict {
    Serve,
    CommitFirst,
    Undecided,
}

/// Rule MEMBER-6, for a reader that knows what is decided.
pub fn read(held: &Held, decided: Version) -> ReadVerdict {
    match &held.staged {
        None => ReadVerdict::Serve,
        Some(s) if s.version == decided => ReadVerdict::CommitFirst,
        Some(_) if broken!("read_undecided") => ReadVerdict::Serve,
        Some(_) => ReadVerdict::Undecided,
    }
}

/// Rules MEMBER-7 and MEMBER-8.
pub fn installs(held: &Held, install: &Install) -> bool {
    let newest = install.covers.newest();
    let wanted = match install.reason {
        Reason::Behind => !install.covers.same(&held.covers),
        Reason::Undecided { version } => held.floor < version || broken!("promise_unfenced"),
        Reason::Damaged => true,
        Reason::Found { .. } if broken!("repair_anything") => true,
        Reason::Found { last } => held.last == last && held.covers.newest() > Version::NONE,
    };
    let newer = install.covers.reaches(&held.covers) && wanted;
    let under = held.staged.as_ref().is_some_and(|s| s.version > newest);
    (newer || broken!("install_older")) && !under
}

/// Whether the chunk may be dropped, by who saw `saw` in it, or in what is staged there, and found
/// that it is of a time before a truncation: not once anything newer came.
pub fn forgets(held: &Held, saw: &Covers, epoch: Epoch) -> bool {
    let staged = held.staged.as_ref();
    let runs = staged.is_some_and(|s| s.version.epoch() >= epoch);
    let is_it = held.covers.same(saw) || staged.is_some_and(|s| s.covers.same(saw));
    is_it && !runs
}

/// What the member holds once the stripe was cut off: nothing, and nothing that was there comes
/// back.
pub fn cut_off(held: &Held) -> Held {
    Held { group: held.group, floor: held.newest(), ..Held::default() }
}

/// What the member holds once the content is installed.
pub fn installed(held: &Held, install: &Install) -> Held {
    Held {
        group: install.group,
        covers: install.covers.clone(),
        last: if install.covers.same(&held.covers) { held.last } else { install.id },
        floor: held.floor,
        staged: None,
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::{GroupId, SessionId};
    use nuri_proto::stripe::{Members, WriteId};

    use super::*;

    const V: fn(u64) -> Version = |counter| Version::new(Epoch(1), counter);

    fn ask(number: u64, base: u64, version: u64, earlier: Earlier) -> Stage {
        Stage {
            group: GroupId(1),
            version: V(version),
            id: WriteId { session: SessionId(1), number },
            base: if base == 0 { Covers::default() } else { Covers::one(V(base)) },
            covers: Covers::one(V(version)),
            participants: Members(3),
            earlier,
        }
    }

    fn accept(held: &Held, ask: &Stage) -> Held {
        match stage(held, ask) {
            StageVerdict::Accept(first) => staged(held, ask, first),
            other => panic!("{other:?}"),
        }
    }

    /// Catches `broken!("stage_over_staged")`.
    #[test]
    fn one_staged_write_and_the_same_again_is_the_same() {
        let one = ask(1, 0, 1, Earlier::Unknown);
        let held = accept(&Held::default(), &one);
        assert_eq!(stage(&held, &one), StageVerdict::Already);
        assert_eq!(stage(&committed(&held), &one), StageVerdict::Already);
        for base in [0, 1] {
            let other = ask(2, base, 2, Earlier::Unknown);
            assert_eq!(stage(&held, &other), StageVerdict::Refuse, "on {base}");
        }
        let two = accept(&held, &ask(2, 1, 2, Earlier::Decided(V(1))));
        assert_eq!((two.covers.newest(), two.newest()), (V(1), V(2)));
        let other = accept(&held, &ask(3, 0, 2, Earlier::Aborted(V(1))));
        assert_eq!(other.covers, Covers::default());
    }

    /// Catches `broken!("any_base")`.
    #[test]
    fn a_member_that_missed_a_write_refuses_the_next() {
        assert_eq!(stage(&Held::default(), &ask(2, 1, 2, Earlier::Unknown)), StageVerdict::Refuse);
        let held = committed(&accept(&Held::default(), &ask(1, 0, 5, Earlier::Unknown)));
        assert_eq!(stage(&held, &ask(2, 5, 4, Earlier::Unknown)), StageVerdict::Refuse);
    }

    /// Catches `broken!("abort_forgotten")`.
    #[test]
    fn what_was_aborted_is_never_staged() {
        let late = ask(1, 0, 1, Earlier::Unknown);
        let held = aborted(&Held::default(), V(1));
        assert_eq!(stage(&held, &late), StageVerdict::Refuse);
        let held = accept(&Held::default(), &late);
        assert_eq!(aborted(&held, V(1)).staged, None);
        let held = committed(&held);
        assert_eq!(aborted(&held, V(1)).covers, held.covers, "a commit is not undone");
    }

    /// Catches `broken!("promise_drops")`.
    #[test]
    fn a_promise_drops_nothing() {
        let held = accept(&Held::default(), &ask(1, 0, 1, Earlier::Unknown));
        let promised = promised(&held, V(1));
        assert_eq!((promised.floor, promised.staged.is_some()), (V(1), true));
        assert_eq!(stage(&promised, &ask(2, 0, 1, Earlier::Unknown)), StageVerdict::Refuse);
    }

    /// Catches `broken!("read_undecided")`.
    #[test]
    fn reads_do_not_pass_an_undecided_write() {
        let held = accept(&Held::default(), &ask(1, 0, 1, Earlier::Unknown));
        assert_eq!(read(&held, Version::NONE), ReadVerdict::Undecided);
        assert_eq!(read(&held, V(1)), ReadVerdict::CommitFirst);
        assert_eq!(read(&committed(&held), Version::NONE), ReadVerdict::Serve);
    }

    #[test]
    fn a_chunk_of_before_a_truncation_goes_unless_something_newer_came() {
        let held = committed(&accept(&Held::default(), &ask(1, 0, 1, Earlier::Unknown)));
        let saw = held.covers.clone();
        assert!(forgets(&held, &saw, Epoch(2)));
        assert!(!forgets(&held, &Covers::default(), Epoch(2)), "written since it was seen");
        let staged = accept(&held, &ask(2, 1, 2, Earlier::Unknown));
        assert!(forgets(&staged, &saw, Epoch(2)), "its writer is gone");
        assert!(forgets(&staged, &Covers::one(V(2)), Epoch(2)), "lists tell what is staged");
        assert!(!forgets(&staged, &saw, Epoch(1)), "its writer may still end it");
    }

    /// Catches `broken!("install_older")`.
    #[test]
    fn rebuilt_content_never_leads_back() {
        let held = committed(&accept(&Held::default(), &ask(1, 0, 5, Earlier::Unknown)));
        let install = |version, reason| Install {
            group: GroupId(1),
            id: WriteId::default(),
            covers: Covers::one(V(version)),
            reason,
            offset: 0,
            last: true,
        };
        assert!(installs(&held, &install(6, Reason::Behind)));
        assert!(!installs(&held, &install(5, Reason::Behind)));
        assert!(installs(&held, &install(5, Reason::Damaged)));
        assert!(!installs(&held, &install(4, Reason::Damaged)));
        let staged = accept(&held, &ask(2, 5, 7, Earlier::Unknown));
        assert!(!installs(&staged, &install(6, Reason::Behind)), "under a newer staged write");
        assert!(installs(&staged, &install(7, Reason::Behind)));
    }

    /// Catches `broken!("promise_unfenced")`.
    #[test]
    fn content_of_an_undecided_write_is_bound_by_the_promise() {
        let held = committed(&accept(&Held::default(), &ask(1, 0, 5, Earlier::Unknown)));
        let install = Install {
            group: GroupId(1),
            id: WriteId::default(),
            covers: Covers::one(V(7)),
            reason: Reason::Undecided { version: V(7) },
            offset: 0,
            last: true,
        };
        assert!(installs(&held, &install));
        assert!(installs(&promised(&held, V(6)), &install));
        assert!(!installs(&promised(&held, V(7)), &install), "others may have dropped it");
        assert!(!installs(&promised(&held, V(9)), &install));
    }

    /// Catches `broken!("repair_anything")`.
    #[test]
    fn only_what_was_looked_at_is_repaired() {
        let held = committed(&accept(&Held::default(), &ask(1, 0, 5, Earlier::Unknown)));
        let install = |version, number| Install {
            group: GroupId(1),
            id: WriteId { session: SessionId(9), number: 1 },
            covers: Covers::one(V(version)),
            reason: Reason::Found { last: WriteId { session: SessionId(1), number } },
            offset: 0,
            last: true,
        };
        assert!(installs(&held, &install(5, 1)), "it is damaged");
        assert!(installs(&held, &install(6, 1)), "it lost a write");
        assert!(!installs(&held, &install(4, 1)));
        assert!(!installs(&held, &install(6, 2)), "it was written meanwhile");
        assert!(!installs(&Held::default(), &install(5, 1)), "it was truncated meanwhile");
        let reborn = committed(&accept(&Held::default(), &ask(7, 0, 2, Earlier::Unknown)));
        assert!(!installs(&reborn, &install(5, 1)), "truncated, and written again");
    }
}
