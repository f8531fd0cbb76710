//! POSIX access control lists, as they lie in extended attributes, and the mode bits that go with
//! them.
//!
//! The kernel checks access. This file keeps lists in step with modes. A list that is set changes
//! the mode, `chmod` changes the list, and a new inode inherits the directory's default list. The
//! metadata server does that, and a client that answers from its journal does the same. Form:
//! version 2, then (tag, rights, id) of 2, 2 and 4 bytes, little-endian (`acl(5)`).

use crate::Status;
use crate::change::S_ISGID;
use crate::op::meta::{Attr, SetGroupId, XattrSet};
use crate::xattr::{ACL_ACCESS, ACL_DEFAULT};

const VERSION: [u8; 4] = [2, 0, 0, 0];
const ENTRY: usize = 8;
const OWNER: u16 = 1;
const GROUP: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// A list. It has an entry each for owner, group and others, and a mask where it names anybody.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Acl(Vec<Entry>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    rights: u16,
    id: u32,
}

impl Acl {
    /// # Errors
    /// `INVAL` for what is no such list.
    fn parse(bytes: &[u8]) -> Result<Acl, Status> {
        let entries = bytes.strip_prefix(&VERSION).ok_or(Status::INVAL)?;
        if !entries.len().is_multiple_of(ENTRY) {
            return Err(Status::INVAL);
        }
        let entry = |e: &[u8]| Entry {
            tag: u16::from_le_bytes([e[0], e[1]]),
            rights: u16::from_le_bytes([e[2], e[3]]) & 7,
            id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
        };
        let acl = Acl(entries.chunks_exact(ENTRY).map(entry).collect());
        let count = |tag| acl.0.iter().filter(|e| e.tag == tag).count();
        let named = acl.0.len() > 3;
        let whole = [OWNER, GROUP, OTHER].into_iter().all(|tag| count(tag) == 1);
        if whole && count(MASK) == usize::from(named) { Ok(acl) } else { Err(Status::INVAL) }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_vec();
        for entry in &self.0 {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.rights.to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out
    }

    /// Whether mode bits say all that it says.
    fn is_plain(&self) -> bool {
        self.0.len() == 3
    }

    /// What the group's mode bits stand for: the mask, where there is one.
    fn group_class(&self) -> u16 {
        if self.is_plain() { GROUP } else { MASK }
    }

    fn shift(&self, tag: u16) -> Option<u32> {
        match tag {
            OWNER => Some(6),
            OTHER => Some(0),
            tag if tag == self.group_class() => Some(3),
            _ => None,
        }
    }

    /// Its permission bits, as a mode shows them.
    fn mode(&self) -> u32 {
        let bits = |e: &Entry| self.shift(e.tag).map_or(0, |shift| u32::from(e.rights) << shift);
        self.0.iter().map(bits).sum()
    }

    fn each_class(&mut self, f: impl Fn(u16, u32) -> u16) {
        let shifts: Vec<_> = self.0.iter().map(|e| self.shift(e.tag)).collect();
        for (entry, shift) in self.0.iter_mut().zip(shifts) {
            entry.rights = shift.map_or(entry.rights, |shift| f(entry.rights, shift));
        }
    }

    /// After `chmod`.
    fn set_mode(&mut self, mode: u32) {
        self.each_class(|_, shift| (mode >> shift & 7) as u16);
    }

    /// Of a new inode: no more than the mode that its maker asked for.
    fn narrow(&mut self, mode: u32) {
        self.each_class(|rights, shift| rights & (mode >> shift & 7) as u16);
    }
}

/// Permission bits and lists of a new inode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inherited {
    pub mode: u32,
    pub access: Option<Vec<u8>>,
    pub default: Option<Vec<u8>>,
}

impl Inherited {
    /// The bits and lists that a new inode with `mode` inherits from a directory with this default
    /// list. Without a list the mask of the creating process counts.
    ///
    /// # Errors
    /// `INVAL` for what is no list.
    pub fn from_directory(
        list: Option<&[u8]>,
        (mode, umask): (u32, u32),
        is_dir: bool,
    ) -> Result<Inherited, Status> {
        let Some(bytes) = list else {
            return Ok(Inherited { mode: mode & !(umask & 0o777), ..Inherited::default() });
        };
        let mut acl = Acl::parse(bytes)?;
        acl.narrow(mode);
        Ok(Inherited {
            mode: mode & !0o777 | acl.mode(),
            access: (!acl.is_plain()).then(|| acl.encode()),
            default: is_dir.then(|| bytes.to_vec()),
        })
    }

    /// The bits of a symbolic link, which has no lists.
    pub fn by_link() -> Inherited {
        Inherited { mode: 0o777, ..Inherited::default() }
    }

    /// The first change counter of the inode. The value 1 says that it has no extended attributes.
    pub fn change(&self) -> u64 {
        if self.access.is_some() || self.default.is_some() { 2 } else { 1 }
    }

    /// The lists with their names.
    pub fn into_xattrs(self) -> impl Iterator<Item = (&'static [u8], Vec<u8>)> {
        let both = [(ACL_ACCESS, self.access), (ACL_DEFAULT, self.default)];
        both.into_iter().filter_map(|(name, list)| Some((name, list?)))
    }
}

impl XattrSet {
    /// Sets a list on an inode with these attributes; the mode follows. Returns the list that the
    /// inode has from now on. A list that only repeats the mode counts as no list.
    ///
    /// # Errors
    /// `INVAL` for what is no list, `NOTDIR` for a default one of anything else.
    pub fn set_list(&self, attr: &mut Attr) -> Result<Option<Vec<u8>>, Status> {
        let acl = Acl::parse(&self.value)?;
        if self.name == ACL_DEFAULT {
            return if attr.is_dir() { Ok(Some(acl.encode())) } else { Err(Status::NOTDIR) };
        }
        attr.mode = attr.mode & !0o777 | acl.mode();
        if self.group_id == SetGroupId::Drop {
            attr.mode &= !S_ISGID;
        }
        Ok((!acl.is_plain()).then(|| acl.encode()))
    }
}

/// The list of an inode whose mode was set.
///
/// # Errors
/// `INVAL` for what is no list.
pub fn follow_mode(list: &[u8], mode: u32) -> Result<Vec<u8>, Status> {
    let mut acl = Acl::parse(list)?;
    acl.set_mode(mode);
    Ok(acl.encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        let all = entries.iter().map(|&(tag, rights, id)| Entry { tag, rights, id });
        Acl(all.collect())
    }

    fn for_one() -> Acl {
        acl(&[(OWNER, 6, 0), (2, 7, 12), (GROUP, 5, 0), (MASK, 7, 0), (OTHER, 1, 0)])
    }

    #[test]
    fn lists_round_trip_and_broken_ones_are_refused() {
        let list = for_one();
        assert_eq!(Acl::parse(&list.encode()), Ok(list.clone()));
        let bytes = list.encode();
        assert_eq!(Acl::parse(&bytes[..bytes.len() - 1]), Err(Status::INVAL));
        assert_eq!(Acl::parse(b"\x03\0\0\0"), Err(Status::INVAL));
        let no_mask = acl(&[(OWNER, 6, 0), (2, 7, 12), (GROUP, 5, 0), (OTHER, 1, 0)]);
        assert_eq!(Acl::parse(&no_mask.encode()), Err(Status::INVAL));
        assert_eq!(Acl::parse(&acl(&[(OWNER, 6, 0)]).encode()), Err(Status::INVAL));
    }

    #[test]
    fn the_groups_bits_are_the_mask() {
        let mut list = for_one();
        assert_eq!(list.mode(), 0o671);
        list.set_mode(0o740);
        assert_eq!(list.mode(), 0o740);
        assert_eq!(list.0[2].rights, 5, "the group's own entry stays");
        list.narrow(0o620);
        assert_eq!(list.mode(), 0o600);
        let plain = acl(&[(OWNER, 7, 0), (GROUP, 5, 0), (OTHER, 4, 0)]);
        assert!(plain.is_plain() && plain.mode() == 0o754);
    }

    #[test]
    fn new_inodes_get_no_more_than_they_were_asked_for() {
        let list = for_one().encode();
        let get = |list, is_dir| Inherited::from_directory(list, (0o1640, 0o077), is_dir).unwrap();
        let without = get(None, true);
        assert_eq!((without.mode, without.change()), (0o1600, 1));
        let file = get(Some(&list), false);
        assert_eq!((file.mode, file.change(), &file.default), (0o1640, 2, &None));
        let mut expected = for_one();
        expected.narrow(0o640);
        assert_eq!(file.access, Some(expected.encode()));
        let plain = acl(&[(OWNER, 7, 0), (GROUP, 5, 0), (OTHER, 4, 0)]).encode();
        let file = get(Some(&plain), false);
        assert_eq!((file.mode, file.change(), file.access), (0o1640, 1, None));
        let dir = get(Some(&plain), true);
        assert_eq!((dir.change(), dir.default), (2, Some(plain)));
        assert!(Inherited::from_directory(Some(b"x"), (0o644, 0), false).is_err());
    }
}
