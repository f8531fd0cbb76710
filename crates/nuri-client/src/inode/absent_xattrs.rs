//! Extended attributes that are known not to be set, so that the kernel's questions cost no call.

use nuri_proto::change::CAPABILITY;

/// What new inodes of a directory inherit.
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
/// What the kernel asks for again and again: before writes and at every check of rights.
const ASKED: [&[u8]; 3] = [CAPABILITY, b"system.posix_acl_access", DEFAULT_LIST];

/// Which of `ASKED` are known not to be set, by bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AbsentXattrs(u8);

impl AbsentXattrs {
    const ALL: u8 = (1 << ASKED.len()) - 1;
    /// One may have been set here: an answer from before that must not deny it.
    const DOUBT: u8 = 1 << 7;

    /// The one that is noted for a name, if any.
    pub(crate) fn of(name: &[u8]) -> Option<AbsentXattrs> {
        ASKED.iter().position(|asked| *asked == name).map(|at| AbsentXattrs(1 << at))
    }

    /// Nothing is known, and no earlier answer says anything.
    pub(crate) fn in_doubt() -> AbsentXattrs {
        AbsentXattrs(AbsentXattrs::DOUBT)
    }

    /// The server's answer says that this one is not set.
    pub(crate) fn note(&mut self, one: AbsentXattrs) {
        self.0 |= one.0;
    }

    /// The server's answer says that none is set.
    pub(crate) fn note_bare(&mut self) {
        if self.0 & AbsentXattrs::DOUBT == 0 {
            self.0 |= AbsentXattrs::ALL;
        }
    }

    /// The server's answer says that no capability is set.
    pub(crate) fn note_no_capability(&mut self) {
        if self.0 & AbsentXattrs::DOUBT == 0 {
            self.0 |= AbsentXattrs::of(CAPABILITY).map_or(0, |one| one.0);
        }
    }

    /// The server's answer says that the directory has no default list.
    pub(crate) fn note_no_default_list(&mut self) {
        if self.0 & AbsentXattrs::DOUBT == 0 {
            self.0 |= AbsentXattrs::of(DEFAULT_LIST).map_or(0, |one| one.0);
        }
    }

    /// Of a directory: new inodes get the rights that were asked for.
    pub(crate) fn hands_down_nothing(self) -> bool {
        AbsentXattrs::of(DEFAULT_LIST).is_some_and(|list| self.covers(list))
    }

    pub(crate) fn covers(self, one: AbsentXattrs) -> bool {
        self.0 & one.0 == one.0
    }
}
