//! POSIX access control lists, as they lie in extended attributes, and the mode bits that go with
//! them.
//!
//! The kernel checks access; here lists are kept in step with modes: a list that is set changes
//! the mode, `chmod` changes the list, and new inodes inherit the directory's default list.
//! Form: version 2, then (tag, rights, id) of 2, 2 and 4 bytes, little-endian (`acl(5)`).

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::xattr::{ACL_ACCESS, ACL_DEFAULT};

use crate::namespace::schema::xattr_key;
use crate::namespace::txn::Txn;

const VERSION: [u8; 4] = [2, 0, 0, 0];
const ENTRY: usize = 8;
const OWNER: u16 = 1;
const GROUP: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// A list. It has an entry each for owner, group and others, and a mask where it names anybody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Acl(Vec<Entry>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: u16,
    rights: u16,
    id: u32,
}

impl Acl {
    /// # Errors
    /// `INVAL` for what is no such list.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Acl, Status> {
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

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_vec();
        for entry in &self.0 {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.rights.to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out
    }

    /// Whether mode bits say all that it says.
    pub(crate) fn is_plain(&self) -> bool {
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
    pub(crate) fn mode(&self) -> u32 {
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
    pub(crate) fn set_mode(&mut self, mode: u32) {
        self.each_class(|_, shift| (mode >> shift & 7) as u16);
    }

    /// Of a new inode: no more than the mode that its maker asked for.
    pub(crate) fn narrow(&mut self, mode: u32) {
        self.each_class(|rights, shift| rights & (mode >> shift & 7) as u16);
    }
}

fn stored(txn: &Txn<'_>, ino: Ino, name: &[u8]) -> Result<Option<Acl>, Status> {
    let bytes = txn.raw(&xattr_key(ino, name))?;
    bytes.map(|bytes| Acl::parse(&bytes).map_err(|_| Status::CORRUPT)).transpose()
}

/// `chmod`: the inode's list follows its mode.
pub(crate) fn follow_mode(txn: &mut Txn<'_>, ino: Ino, mode: u32) -> Result<(), Status> {
    if let Some(mut acl) = stored(txn, ino, ACL_ACCESS)? {
        acl.set_mode(mode);
        txn.batch.put(xattr_key(ino, ACL_ACCESS), acl.encode());
    }
    Ok(())
}

/// Gives a new inode what the directory hands down; returns its permission bits. Without a default
/// list the maker's mask counts.
pub(crate) fn inherit(
    txn: &mut Txn<'_>,
    parent: Ino,
    ino: Ino,
    (mode, umask): (u32, u32),
    is_dir: bool,
) -> Result<Inherited, Status> {
    let Some(default) = stored(txn, parent, ACL_DEFAULT)? else {
        return Ok(Inherited { mode: mode & !(umask & 0o777), lists: false });
    };
    let mut acl = default.clone();
    acl.narrow(mode);
    if !acl.is_plain() {
        txn.batch.put(xattr_key(ino, ACL_ACCESS), acl.encode());
    }
    if is_dir {
        txn.batch.put(xattr_key(ino, ACL_DEFAULT), default.encode());
    }
    Ok(Inherited { mode: mode & !0o777 | acl.mode(), lists: is_dir || !acl.is_plain() })
}

/// What a new inode got.
pub(crate) struct Inherited {
    pub(crate) mode: u32,
    /// It has attributes of its own from the start.
    pub(crate) lists: bool,
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
}
