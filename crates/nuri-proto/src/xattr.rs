//! Which extended attributes an inode may have. The server uses the same code as a client that
//! answers from its journal before the server knows.

use crate::Status;
use crate::limit::{MAX_NAME, MAX_XATTR_LIST, MAX_XATTR_VALUE};
use crate::op::meta::{XattrMode, XattrSet};

/// Names of the access control lists, which the mode follows.
pub const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
pub const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Whether the attribute is an access control list.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

/// Bytes that a name takes in a list of names.
fn listed(name: &[u8]) -> usize {
    name.len() + 1
}

impl XattrSet {
    /// Whether the attribute may be set beside those that are set already.
    ///
    /// # Errors
    /// What `setxattr` says.
    pub fn check<'n>(&self, names: impl IntoIterator<Item = &'n [u8]>) -> Result<(), Status> {
        self.check_lengths()?;
        let (mut is_set, mut used) = (false, 0);
        for name in names {
            is_set |= name == self.name;
            used += listed(name);
        }
        match (self.mode, is_set) {
            (XattrMode::Create, true) => Err(Status::EXIST),
            (XattrMode::Replace, false) => Err(Status::NODATA),
            (_, false) if used + listed(&self.name) > MAX_XATTR_LIST => Err(Status::NOSPC),
            _ => Ok(()),
        }
    }

    /// Whether name and value have lengths that are possible.
    ///
    /// # Errors
    /// What `setxattr` says.
    pub fn check_lengths(&self) -> Result<(), Status> {
        match (self.name.len(), self.value.len()) {
            (len, _) if len == 0 || len > MAX_NAME => Err(Status::RANGE),
            (_, len) if len > MAX_XATTR_VALUE => Err(Status::TOOBIG),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Ino;
    use crate::op::meta::SetGroupId;

    fn set(name: &[u8], value: usize, mode: XattrMode) -> XattrSet {
        let (name, value) = (name.to_vec(), vec![0; value]);
        XattrSet { ino: Ino(1), name, value, mode, group_id: SetGroupId::Keep }
    }

    #[test]
    fn modes_lengths_and_the_whole_list_are_bounded() {
        let there: [&[u8]; 2] = [b"user.a", b"user.b"];
        let check = |name: &[u8], value, mode| set(name, value, mode).check(there);
        assert_eq!(check(b"user.a", 1, XattrMode::Any), Ok(()));
        assert_eq!(check(b"user.a", 1, XattrMode::Create), Err(Status::EXIST));
        assert_eq!(check(b"user.c", 1, XattrMode::Replace), Err(Status::NODATA));
        assert_eq!(check(b"", 1, XattrMode::Any), Err(Status::RANGE));
        assert_eq!(check(&[b'x'; MAX_NAME + 1], 1, XattrMode::Any), Err(Status::RANGE));
        assert_eq!(check(b"user.a", MAX_XATTR_VALUE, XattrMode::Any), Ok(()));
        assert_eq!(check(b"user.a", MAX_XATTR_VALUE + 1, XattrMode::Any), Err(Status::TOOBIG));
        let many: Vec<Vec<u8>> =
            (0..MAX_XATTR_LIST / 8).map(|i| format!("{i:07}").into()).collect();
        let names = || many.iter().map(Vec::as_slice);
        assert_eq!(set(b"user.new", 1, XattrMode::Any).check(names()), Err(Status::NOSPC));
        assert_eq!(set(&many[0], 1, XattrMode::Any).check(names()), Ok(()));
    }
}
