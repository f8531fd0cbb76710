//! Versions of a stripe and what a member of its group keeps of it (rules in `nuri-stripe`).

use nuri_rules::broken;
use serde::{Deserialize, Serialize};

use crate::id::{Epoch, GroupId, SessionId};
use crate::limit::MAX_MEMBERS;

/// Version of a stripe's data: group epoch over a counter. Higher is newer.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Version(pub u64);

impl Version {
    /// The version of a stripe that was never written.
    pub const NONE: Version = Version(0);
    const COUNTER_BITS: u32 = 44;
    /// The lowest bits of the counter tell writes apart.
    const WRITE_BITS: u32 = 12;

    pub const fn new(epoch: Epoch, counter: u64) -> Version {
        Version(epoch.0 << Self::COUNTER_BITS | (counter & ((1 << Self::COUNTER_BITS) - 1)))
    }

    /// The group's epoch when the stripe was written.
    pub const fn epoch(self) -> Epoch {
        Epoch(self.0 >> Self::COUNTER_BITS)
    }

    /// The next version, for this write. Two writers that know equally little take different
    /// versions. So where versions are equal, the bytes are equal.
    pub fn next_of(self, epoch: Epoch, id: WriteId) -> Version {
        if broken!("versions_collide") {
            return self.next(epoch);
        }
        let mask = (1 << (Self::WRITE_BITS / 2)) - 1;
        let write = (id.session.0 & mask) << (Self::WRITE_BITS / 2) | id.number & mask;
        let above = (self.0.max(Version::new(epoch, 0).0) >> Self::WRITE_BITS) + 1;
        Version(above << Self::WRITE_BITS | write)
    }

    /// The next version, written in `epoch`.
    pub fn next(self, epoch: Epoch) -> Version {
        Version(self.0.max(Version::new(epoch, 0).0) + 1)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.epoch(), self.0 & ((1 << Self::COUNTER_BITS) - 1))
    }
}

/// Versions that a member's bytes stand for: of a copy or a data chunk its own (one entry); of a
/// parity chunk those of all data chunks. Entries left out are [`Version::NONE`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Covers(pub Vec<Version>);

impl Covers {
    pub fn one(version: Version) -> Covers {
        Covers(vec![version])
    }

    pub fn get(&self, i: usize) -> Version {
        self.0.get(i).copied().unwrap_or_default()
    }

    pub fn set(&mut self, i: usize, version: Version) {
        if self.0.len() <= i {
            self.0.resize(i + 1, Version::NONE);
        }
        self.0[i] = version;
    }

    pub fn newest(&self) -> Version {
        self.0.iter().max().copied().unwrap_or_default()
    }

    /// Whether both have the same versions, whether or not they are spelled out.
    pub fn same(&self, other: &Covers) -> bool {
        (0..self.0.len().max(other.0.len())).all(|i| self.get(i) == other.get(i))
    }

    /// Whether no entry is older than the other's.
    pub fn reaches(&self, other: &Covers) -> bool {
        (0..other.0.len()).all(|i| self.get(i) >= other.get(i))
    }
}

/// Tells one write from every other, also one with the same version.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct WriteId {
    pub session: SessionId,
    /// Never used twice by the session.
    pub number: u64,
}

/// Members of a group as bits by their places in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Members(pub u32);

const _: () = assert!(MAX_MEMBERS <= 32);

impl Members {
    pub fn of(places: impl IntoIterator<Item = usize>) -> Members {
        Members(places.into_iter().fold(0, |bits, place| bits | 1 << place))
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn has(self, place: usize) -> bool {
        self.0 & (1 << place) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_MEMBERS).filter(move |place| self.has(*place))
    }
}

/// A write that a member holds durably beside the base, until the write is committed or aborted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Staged {
    pub version: Version,
    pub id: WriteId,
    /// What the member's bytes stand for once it is committed.
    pub covers: Covers,
    /// Who must hold it for it to count.
    pub participants: Members,
}

/// What a member keeps of a stripe, apart from the bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Held {
    pub group: GroupId,
    pub covers: Covers,
    /// The write that was committed last.
    pub last: WriteId,
    /// Nothing up to this version is staged any more: it was aborted.
    pub floor: Version,
    pub staged: Option<Staged>,
}

impl Held {
    /// The newest version that the member has ever seen.
    pub fn newest(&self) -> Version {
        let staged = self.staged.as_ref().map_or(Version::NONE, |s| s.version);
        self.covers.newest().max(self.floor).max(staged)
    }
}

/// A write as one member is asked to stage it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stage {
    pub group: GroupId,
    pub version: Version,
    pub id: WriteId,
    /// What the member's bytes must stand for now.
    pub base: Covers,
    /// And then.
    pub covers: Covers,
    pub participants: Members,
    /// What became of an earlier write of the same stripe, where the writer knows.
    pub earlier: Earlier,
}

/// The outcome of an earlier write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Earlier {
    #[default]
    Unknown,
    Decided(Version),
    Aborted(Version),
}

/// How a write changes a member's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// The payload replaces what lies at `offset`.
    Bytes { offset: u32 },
    /// The payload is added (XOR) to what lies at `offset`.
    Xor { offset: u32 },
}

/// A member's answer to a [`Stage`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StageReply {
    /// It is on stable storage.
    Staged { allocated: u64 },
    /// Nothing changed, because the member holds this.
    Refused(Held),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_rise_with_counter_and_epoch() {
        let first = Version::NONE.next(Epoch(3));
        assert_eq!((first.epoch(), first.to_string()), (Epoch(3), "3.1".into()));
        assert!(first.next(Epoch(3)) > first);
        assert_eq!(first.next(Epoch(3)).next(Epoch(4)).to_string(), "4.1");
        assert!(first.next(Epoch(2)) > first, "an older epoch never leads back");
    }

    #[test]
    fn writes_on_the_same_base_have_different_versions() {
        let id = |session, number| WriteId { session: SessionId(session), number };
        let base = Version::new(Epoch(3), 9);
        let all = [id(1, 1), id(1, 2), id(2, 1), id(2, 2)].map(|id| base.next_of(Epoch(3), id));
        assert!(all.iter().all(|v| *v > base && v.epoch() == Epoch(3)));
        assert!((1..all.len()).all(|i| !all[..i].contains(&all[i])), "{all:?}");
        assert!(all[3].next_of(Epoch(3), id(1, 1)) > all[3]);
        assert_eq!(base.next_of(Epoch(4), id(1, 1)).epoch(), Epoch(4));
    }

    #[test]
    fn covers_need_not_spell_out_what_was_never_written() {
        let mut covers = Covers::default();
        assert!(covers.same(&Covers(vec![Version::NONE; 3])));
        covers.set(2, Version(5));
        assert_eq!((covers.get(1), covers.newest()), (Version::NONE, Version(5)));
        assert!(covers.reaches(&Covers(vec![Version(0), Version(0), Version(4)])));
        assert!(!covers.reaches(&Covers::one(Version(1))));
    }
}
