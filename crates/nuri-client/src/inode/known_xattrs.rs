//! What is known of an inode's extended attributes, while a lease of it is held: that some that the
//! kernel asks for are not set, so that its questions cost no call; or all of them, so that the
//! journal answers for them.

use std::collections::BTreeMap;

use nuri_proto::change::CAPABILITY;
use nuri_proto::xattr::{ACL_ACCESS, ACL_DEFAULT};

/// What the kernel asks for again and again: before writes and at every check of rights.
const ASKED: [&[u8]; 3] = [CAPABILITY, ACL_ACCESS, ACL_DEFAULT];
/// None is set, whatever its name.
const BARE: u8 = 1 << 7;

/// Attributes by name.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct KnownXattrs {
    /// Which of `ASKED` are known not to be set, by bits; and `BARE`.
    absent: u8,
    /// Changes that began here: an answer from before one says nothing any more.
    changes: u32,
    /// All that are set. Apart: few inodes have any.
    all: Option<Box<Xattrs>>,
}

/// When a question was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked(u32);

fn bit(name: &[u8]) -> u8 {
    ASKED.iter().position(|asked| *asked == name).map_or(0, |at| 1 << at)
}

impl KnownXattrs {
    /// Whether the attribute is known not to be set.
    pub(crate) fn lacks(&self, name: &[u8]) -> bool {
        let is_listed = self.all.as_ref().is_some_and(|all| !all.contains_key(name));
        self.absent & (bit(name) | BARE) != 0 || is_listed
    }

    /// Of a directory: new inodes get the rights that were asked for.
    pub(crate) fn hands_down_nothing(&self) -> bool {
        self.lacks(ACL_DEFAULT)
    }

    /// Whether every attribute is known.
    pub(crate) fn is_complete(&self) -> bool {
        self.absent & BARE != 0 || self.all.is_some()
    }

    /// All of them, where every one is known.
    pub(crate) fn all(&mut self) -> Option<&mut Xattrs> {
        if self.absent & BARE != 0 {
            self.absent &= !BARE;
            self.all = Some(Box::default());
        }
        self.all.as_deref_mut()
    }

    /// One is changed by the server: nothing is known, and no earlier answer says anything.
    pub(crate) fn doubt(&mut self) {
        self.note_change();
        self.all = None;
    }

    /// One was changed here, in `all`.
    pub(crate) fn note_change(&mut self) {
        (self.absent, self.changes) = (0, self.changes + 1);
    }

    /// The mode was changed: an access control list follows it.
    pub(crate) fn note_mode_change(&mut self) {
        if !self.lacks(ACL_ACCESS) {
            (self.all, self.changes) = (None, self.changes + 1);
        }
    }

    /// Before a question is asked.
    pub(crate) fn asked(&self) -> Asked {
        Asked(self.changes)
    }

    /// The answer to that question says that this one is not set.
    pub(crate) fn note_absent(&mut self, name: &[u8], asked: Asked) {
        if asked == self.asked() {
            self.absent |= bit(name);
        }
    }

    /// The answer to that question told all of them.
    pub(crate) fn note_all(&mut self, all: Xattrs, asked: Asked) {
        if asked == self.asked() && !self.is_complete() {
            self.all = Some(Box::new(all));
        }
    }

    /// Some answer says that none is set.
    pub(crate) fn note_bare(&mut self) {
        if self.changes == 0 {
            self.absent = u8::MAX;
        }
    }

    /// Some answer says that no capability is set.
    pub(crate) fn note_no_capability(&mut self) {
        self.note_absent(CAPABILITY, Asked(0));
    }

    /// Some answer says that the directory has no default list.
    pub(crate) fn note_no_default_list(&mut self) {
        self.note_absent(ACL_DEFAULT, Asked(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_without_attributes_is_known_as_a_whole() {
        let mut known = KnownXattrs::default();
        assert!(!known.lacks(b"user.a") && !known.is_complete() && known.all().is_none());
        known.note_bare();
        assert!(known.lacks(b"user.a") && known.lacks(CAPABILITY) && known.is_complete());
        known.all().unwrap().insert(b"user.a".into(), b"1".into());
        known.note_change();
        assert!(!known.lacks(b"user.a") && known.lacks(b"user.b") && known.lacks(ACL_DEFAULT));
        known.doubt();
        assert!(!known.lacks(b"user.b") && !known.lacks(ACL_DEFAULT));
    }

    #[test]
    fn a_list_that_follows_the_mode_is_read_again() {
        let mut known = KnownXattrs::default();
        let asked = known.asked();
        known.note_all(Xattrs::from([(ACL_ACCESS.to_vec(), b"list".to_vec())]), asked);
        known.note_mode_change();
        assert!(!known.is_complete());
        known.note_all(Xattrs::new(), asked);
        assert!(!known.is_complete(), "asked before");
        known.note_all(Xattrs::new(), known.asked());
        known.note_mode_change();
        assert!(known.is_complete(), "there is no list");
    }

    #[test]
    fn answers_from_before_a_change_say_nothing() {
        let mut known = KnownXattrs::default();
        let asked = known.asked();
        known.doubt();
        known.note_absent(CAPABILITY, asked);
        known.note_all(Xattrs::new(), asked);
        known.note_bare();
        known.note_no_capability();
        assert!(!known.lacks(CAPABILITY) && !known.is_complete());
        let asked = known.asked();
        known.note_absent(CAPABILITY, asked);
        assert!(known.lacks(CAPABILITY) && !known.lacks(ACL_DEFAULT));
        known.note_all(Xattrs::from([(b"user.a".to_vec(), Vec::new())]), asked);
        assert!(known.lacks(ACL_DEFAULT) && !known.lacks(b"user.a"));
    }
}
