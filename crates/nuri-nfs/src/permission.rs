//! Which user may do what. NFS leaves that to the server, which asks no one else.
//!
//! The rules are those of the kernel. Root may do everything, except execute a file that nobody may
//! execute. The owner has the owner's bits. For others the access control list counts, where there
//! is one, or else the group's and others' bits.

use nuri_proto::op::meta::Attr;

pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;
pub(crate) const S_ISVTX: u32 = 0o1000;

/// Who calls, after squashing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Caller {
    pub(crate) fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub(crate) fn owns(&self, attr: &Attr) -> bool {
        self.is_root() || self.uid == attr.uid
    }
}

fn is_kind(attr: &Attr, kind: u32) -> bool {
    attr.mode & 0o170_000 == kind
}

/// What the caller may do: bits of [`READ`], [`WRITE`] and [`EXECUTE`]. `list` gives the file's
/// access control list as it is kept, and is asked only where it counts.
pub(crate) fn allowed<E>(
    attr: &Attr,
    caller: &Caller,
    list: impl FnOnce() -> Result<Option<Vec<u8>>, E>,
) -> Result<u32, E> {
    // Links have no permissions of their own.
    if is_kind(attr, 0o120_000) {
        return Ok(READ | WRITE | EXECUTE);
    }
    if caller.is_root() {
        let runs = is_kind(attr, 0o040_000) || attr.mode & 0o111 != 0;
        return Ok(READ | WRITE | if runs { EXECUTE } else { 0 });
    }
    if caller.uid == attr.uid {
        return Ok(attr.mode >> 6 & 7);
    }
    if let Some(granted) = list()?.and_then(|list| granted(&list, attr, caller)) {
        return Ok(granted);
    }
    Ok(if caller.is_in(attr.gid) { attr.mode >> 3 & 7 } else { attr.mode & 7 })
}

/// One line of an access control list: kind, permissions, user or group.
#[derive(Clone, Copy)]
struct Line {
    tag: u16,
    bits: u32,
    id: u32,
}

const LIST_VERSION: [u8; 4] = 2u32.to_le_bytes();
const USER: u16 = 0x02;
const OWN_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// What a list grants to who is not the owner (acl(5)); `None` where it is none.
fn granted(list: &[u8], attr: &Attr, caller: &Caller) -> Option<u32> {
    let lines = lines(list)?;
    let of = |tag| lines.iter().filter(move |line| line.tag == tag);
    let mask = of(MASK).map(|line| line.bits).next().unwrap_or(7);
    if let Some(own) = of(USER).find(|line| line.id == caller.uid) {
        return Some(own.bits & mask);
    }
    let own_group = of(OWN_GROUP).filter(|_| caller.is_in(attr.gid));
    let groups = own_group.chain(of(GROUP).filter(|line| caller.is_in(line.id)));
    let through_groups = groups.map(|line| line.bits & mask).reduce(|a, b| a | b);
    through_groups.or_else(|| of(OTHERS).map(|line| line.bits).next())
}

fn lines(list: &[u8]) -> Option<Vec<Line>> {
    let lines = list.strip_prefix(&LIST_VERSION)?;
    let line = |bytes: &[u8]| Line {
        tag: u16::from_le_bytes([bytes[0], bytes[1]]),
        bits: u32::from(bytes[2] & 7),
        id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    Some(lines.chunks_exact(8).map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(mode: u32) -> Attr {
        Attr { mode, uid: 10, gid: 20, ..Attr::default() }
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller { uid, gid, groups: groups.to_vec() }
    }

    fn bits(mode: u32, caller: &Caller) -> u32 {
        allowed(&attr(mode), caller, || Ok::<_, ()>(None)).unwrap()
    }

    #[test]
    fn bits_of_owner_group_and_others() {
        assert_eq!(bits(0o100_640, &caller(10, 1, &[])), READ | WRITE);
        assert_eq!(bits(0o100_640, &caller(11, 20, &[])), READ);
        assert_eq!(bits(0o100_640, &caller(11, 1, &[5, 20])), READ);
        assert_eq!(bits(0o100_640, &caller(11, 1, &[5])), 0);
        assert_eq!(bits(0o100_077, &caller(10, 20, &[])), 0, "the owner has the owner's bits");
        assert_eq!(bits(0o100_644, &caller(0, 0, &[])), READ | WRITE);
        assert_eq!(bits(0o100_654, &caller(0, 0, &[])), 7);
        assert_eq!(bits(0o040_000, &caller(0, 0, &[])), 7);
    }

    fn list(lines: &[(u16, u16, u32)]) -> Vec<u8> {
        let line = |(tag, bits, id): &(u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        [LIST_VERSION.to_vec(), lines.iter().flat_map(line).collect()].concat()
    }

    #[test]
    fn access_control_lists_name_users_and_groups() {
        let list = list(&[
            (0x01, 7, u32::MAX),
            (USER, 6, 11),
            (OWN_GROUP, 5, u32::MAX),
            (GROUP, 2, 30),
            (MASK, 6, u32::MAX),
            (OTHERS, 1, u32::MAX),
        ]);
        let of = |who: &Caller| {
            allowed(&attr(0o100_761), who, || Ok::<_, ()>(Some(list.clone()))).unwrap()
        };
        assert_eq!(of(&caller(10, 1, &[])), 7, "the owner is not masked");
        assert_eq!(of(&caller(11, 1, &[])), 6);
        assert_eq!(of(&caller(12, 20, &[])), 4, "5 and the mask 6");
        assert_eq!(of(&caller(12, 20, &[30])), 6, "any group that grants it");
        assert_eq!(of(&caller(12, 1, &[30])), 2);
        assert_eq!(of(&caller(12, 1, &[])), 1);
        assert_eq!(
            allowed(&attr(0o644), &caller(12, 1, &[]), || Ok::<_, ()>(Some(vec![9]))),
            Ok(4)
        );
    }
}
