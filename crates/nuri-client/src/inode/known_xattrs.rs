//! What the client knows of an inode's extended attributes, while it holds a lease on the inode.
//!
//! The client may know that some attributes that the kernel asks for are not set. Then the kernel's
//! questions cost no call. Or it knows all attributes, and then the journal answers for them.

use nuri_proto::acl::{self, Inherited};
use nuri_proto::change::CAPABILITY;
use nuri_proto::xattr::{ACL_ACCESS, ACL_DEFAULT};
use nuri_rules::broken;

/// What the kernel asks for again and again: before writes and at every check of rights.
const ASKED: [&[u8]; 3] = [CAPABILITY, ACL_ACCESS, ACL_DEFAULT];
/// None is set, whatever its name.
const BARE: u8 = 1 << 7;

/// Attributes in the order of their names. There are few, of many inodes: they take little room.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Xattrs(Vec<Xattr>);

/// Name and value.
type Xattr = (Box<[u8]>, Box<[u8]>);

impl Xattrs {
    fn place(&self, name: &[u8]) -> Result<usize, usize> {
        self.0.binary_search_by(|(own, _)| (**own).cmp(name))
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.place(name).ok().map(|at| &*self.0[at].1)
    }

    pub(crate) fn insert(&mut self, name: &[u8], value: Vec<u8>) {
        let value = value.into_boxed_slice();
        match self.place(name) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, (name.into(), value));
            }
        }
    }

    /// Removes the attribute; returns whether it was set.
    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        self.place(name).map(|at| self.0.remove(at)).is_ok()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|(name, _)| &**name)
    }
}

impl<N: AsRef<[u8]>> FromIterator<(N, Vec<u8>)> for Xattrs {
    fn from_iter<I: IntoIterator<Item = (N, Vec<u8>)>>(pairs: I) -> Xattrs {
        let mut all = Xattrs::default();
        pairs.into_iter().for_each(|(name, value)| all.insert(name.as_ref(), value));
        all
    }
}

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
        let is_listed = self.all.as_ref().is_some_and(|all| all.get(name).is_none());
        self.absent & (bit(name) | BARE) != 0 || is_listed
    }

    /// Of a directory: the list that new inodes inherit, or no list, where that is known.
    pub(crate) fn default_list(&self) -> Option<Option<&[u8]>> {
        if self.lacks(ACL_DEFAULT) || broken!("default_list_not_inherited") {
            return Some(None);
        }
        self.all.as_ref()?.get(ACL_DEFAULT).map(Some)
    }

    /// The attributes of an inode that was just made here, with those that it inherited.
    pub(crate) fn of_new(inherited: Inherited) -> KnownXattrs {
        let mut known = KnownXattrs::default();
        match inherited.change() {
            1 => known.note_bare(),
            _ => known.all = Some(Box::new(inherited.into_xattrs().collect())),
        }
        known
    }

    /// Whether every attribute is known.
    pub(crate) fn is_complete(&self) -> bool {
        self.absent & BARE != 0 || self.all.is_some()
    }

    /// All attributes, where every one is known.
    pub(crate) fn all(&mut self) -> Option<&mut Xattrs> {
        if self.absent & BARE != 0 {
            self.absent &= !BARE;
            self.all = Some(Box::default());
        }
        self.all.as_deref_mut()
    }

    /// Notes that the server changes an attribute: nothing is known any more, and no earlier answer
    /// counts.
    pub(crate) fn doubt(&mut self) {
        self.note_change();
        self.all = None;
    }

    /// Notes that an attribute was changed here, in `all`.
    pub(crate) fn note_change(&mut self) {
        (self.absent, self.changes) = (0, self.changes + 1);
    }

    /// Makes an access control list follow a mode that was changed here.
    pub(crate) fn follow_mode(&mut self, mode: u32) {
        let list = self.all.as_ref().and_then(|all| all.get(ACL_ACCESS));
        match (list.map(|list| acl::follow_mode(list, mode)), &mut self.all) {
            (Some(Ok(list)), Some(all)) => {
                all.insert(ACL_ACCESS, list);
                self.changes += 1;
            }
            _ => self.doubt_list(),
        }
    }

    /// Notes that the server may have changed the mode, and an access control list with it.
    pub(crate) fn doubt_list(&mut self) {
        if !self.lacks(ACL_ACCESS) {
            (self.all, self.changes) = (None, self.changes + 1);
        }
    }

    /// Whether an attribute was changed since the lease began.
    pub(crate) fn were_changed(&self) -> bool {
        self.changes > 0
    }

    /// Called before the client asks the server.
    pub(crate) fn asked(&self) -> Asked {
        Asked(self.changes)
    }

    /// Notes that the answer to that question says that this attribute is not set.
    pub(crate) fn note_absent(&mut self, name: &[u8], asked: Asked) {
        if asked == self.asked() {
            self.absent |= bit(name);
        }
    }

    /// Notes that the answer to that question has all attributes.
    pub(crate) fn note_all(&mut self, all: Xattrs, asked: Asked) {
        if asked == self.asked() && !self.is_complete() {
            self.all = Some(Box::new(all));
        }
    }

    /// Notes that some answer says that no attribute is set.
    pub(crate) fn note_bare(&mut self) {
        if self.changes == 0 {
            self.absent = u8::MAX;
        }
    }

    /// Notes that some answer says that no capability is set.
    pub(crate) fn note_no_capability(&mut self) {
        self.note_absent(CAPABILITY, Asked(0));
    }

    /// Notes that some answer says that the directory has no default list.
    pub(crate) fn note_no_default_list(&mut self) {
        self.note_absent(ACL_DEFAULT, Asked(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_kept_by_name() {
        let mut all = Xattrs::from_iter([(b"b", b"1".to_vec()), (b"a", b"2".to_vec())]);
        all.insert(b"c", b"3".into());
        all.insert(b"b", b"4".into());
        assert!(all.names().eq([b"a", b"b", b"c"]));
        assert_eq!((all.get(b"b"), all.get(b"d")), (Some(&b"4"[..]), None));
        assert!(all.remove(b"a") && !all.remove(b"a") && all.names().eq([b"b", b"c"]));
    }

    #[test]
    fn an_inode_without_attributes_is_known_as_a_whole() {
        let mut known = KnownXattrs::default();
        assert!(!known.lacks(b"user.a") && !known.is_complete() && known.all().is_none());
        known.note_bare();
        assert!(known.lacks(b"user.a") && known.lacks(CAPABILITY) && known.is_complete());
        known.all().unwrap().insert(b"user.a", b"1".into());
        known.note_change();
        assert!(!known.lacks(b"user.a") && known.lacks(b"user.b") && known.lacks(ACL_DEFAULT));
        known.doubt();
        assert!(!known.lacks(b"user.b") && !known.lacks(ACL_DEFAULT));
    }

    /// Owner, user 12, group, mask, others.
    fn list(mask: u8) -> Vec<u8> {
        let entry = |(tag, rights): (u8, u8)| [tag, 0, rights, 0, 12, 0, 0, 0];
        let entries = [(1, 6), (2, 7), (4, 5), (16, mask), (32, 0)];
        [&[2, 0, 0, 0][..], entries.map(entry).as_flattened()].concat()
    }

    #[test]
    fn a_list_follows_the_mode() {
        let mut known = KnownXattrs::default();
        let asked = known.asked();
        known.note_all(Xattrs::from_iter([(ACL_ACCESS, list(7))]), asked);
        known.follow_mode(0o640);
        assert_eq!(known.all().unwrap().get(ACL_ACCESS), Some(&list(4)[..]));
        known.doubt_list();
        assert!(!known.is_complete(), "the server may have changed it");
        known.note_all(Xattrs::default(), asked);
        assert!(!known.is_complete(), "asked before");
        known.note_all(Xattrs::default(), known.asked());
        known.doubt_list();
        known.follow_mode(0o600);
        assert!(known.is_complete(), "there is no list");
        let mut known = KnownXattrs::default();
        known.note_all(Xattrs::from_iter([(ACL_ACCESS, b"none".to_vec())]), known.asked());
        known.follow_mode(0o600);
        assert!(!known.is_complete(), "the server knows what it is");
    }

    /// Catches `broken!("default_list_not_inherited")`.
    #[test]
    fn a_directory_is_known_to_hand_a_list_down_or_none() {
        let mut known = KnownXattrs::default();
        assert_eq!(known.default_list(), None);
        known.note_no_default_list();
        assert_eq!(known.default_list(), Some(None));
        let inherit = |is_dir| Inherited::from_directory(Some(&list(7)), (0o750, 0), is_dir);
        let made = KnownXattrs::of_new(inherit(true).unwrap());
        assert_eq!(made.default_list(), Some(Some(&list(7)[..])));
        let mut file = KnownXattrs::of_new(inherit(false).unwrap());
        assert!(
            file.lacks(ACL_DEFAULT) && file.all().unwrap().get(ACL_ACCESS) == Some(&list(5)[..])
        );
        let bare = KnownXattrs::of_new(Inherited::default());
        assert!(bare.lacks(b"user.a"));
    }

    #[test]
    fn answers_from_before_a_change_say_nothing() {
        let mut known = KnownXattrs::default();
        let asked = known.asked();
        known.doubt();
        known.note_absent(CAPABILITY, asked);
        known.note_all(Xattrs::default(), asked);
        known.note_bare();
        known.note_no_capability();
        assert!(!known.lacks(CAPABILITY) && !known.is_complete());
        let asked = known.asked();
        known.note_absent(CAPABILITY, asked);
        assert!(known.lacks(CAPABILITY) && !known.lacks(ACL_DEFAULT));
        known.note_all(Xattrs::from_iter([(b"user.a", Vec::new())]), asked);
        assert!(known.lacks(ACL_DEFAULT) && !known.lacks(b"user.a"));
    }
}
