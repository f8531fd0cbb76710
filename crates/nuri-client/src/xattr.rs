//! Extended attributes, and what a write takes away from a program: set-user-id, set-group-id and
//! capabilities.
//!
//! The kernel leaves that to us (`FUSE_HANDLE_KILLPRIV_V2`); else it would ask for
//! `security.capability` before every write. That none is set is known under the lease.

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{SetAttr, XattrGet, XattrList, XattrMode, XattrRemove, XattrSet};

use crate::fs::{Client, Shared};

const CAPABILITY: &[u8] = b"security.capability";
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;

/// What a change takes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privileges {
    /// Of a caller that may keep the bits (`CAP_FSETID`).
    Capabilities,
    /// Also set-user-id, and set-group-id of what the group may execute.
    All,
}

/// The mode without what a change takes away.
fn reduced(mode: u32, what: Privileges) -> u32 {
    let group = if mode & S_IXGRP == 0 { 0 } else { S_ISGID };
    match what {
        Privileges::All if mode & S_IFMT == S_IFREG => mode & !(S_ISUID | group),
        _ => mode,
    }
}

impl Shared {
    fn forget_capability(&self, ino: Ino) {
        if let Some(node) = self.find(ino) {
            node.state.lock().no_capability = false;
        }
    }

    /// Known without asking: there is nothing to take away.
    fn has_no_privileges(&self, ino: Ino, what: Privileges) -> bool {
        self.trusts_leases()
            && self.find(ino).is_some_and(|node| {
                let state = node.state.lock();
                let plain = state.attr.is_some_and(|attr| reduced(attr.mode, what) == attr.mode);
                state.mode.is_some() && state.no_capability && plain
            })
    }
}

impl Client {
    /// Takes away what the file must not keep when its content or owner changes.
    ///
    /// # Errors
    /// The server's.
    pub fn drop_privileges(&self, ino: Ino, what: Privileges) -> Result<(), Status> {
        if self.shared.has_no_privileges(ino, what) {
            return Ok(());
        }
        let mode = self.getattr(ino)?.mode;
        if mode & S_IFMT == S_IFREG && self.xattr_get(ino, CAPABILITY).is_ok() {
            match self.xattr_remove(ino, CAPABILITY) {
                Ok(()) | Err(Status::NODATA) => {}
                Err(status) => return Err(status),
            }
        }
        let left = reduced(mode, what);
        if left != mode {
            let mode = Some(left & !S_IFMT);
            self.setattr(&SetAttr { ino, mode, ..SetAttr::default() })?;
        }
        Ok(())
    }

    /// Reads an extended attribute.
    ///
    /// # Errors
    /// `NODATA` where it is not set.
    pub fn xattr_get(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Status> {
        let call = XattrGet { ino, name: name.to_vec() };
        let node = self.shared.find(ino).filter(|_| name == CAPABILITY);
        let Some(node) = node else {
            return self.shared.session.call(&call);
        };
        let leased = {
            let state = node.state.lock();
            if state.mode.is_some() && state.no_capability && self.shared.trusts_leases() {
                return Err(Status::NODATA);
            }
            state.mode.map(|_| state.number)
        };
        let reply = self.shared.session.call(&call);
        let mut state = node.state.lock();
        let held = state.mode.is_some() && !state.revoking && leased == Some(state.number);
        state.no_capability |= held && reply == Err(Status::NODATA);
        reply
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// The server's.
    pub fn xattr_set(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Status> {
        let call = XattrSet { ino, name: name.to_vec(), value: value.to_vec(), mode };
        self.shared.forget_capability(ino);
        let outcome = self.shared.session.change(&call, &[]);
        // A reader of it may have noted its absence meanwhile.
        self.shared.forget_capability(ino);
        self.shared.forget_attr(ino);
        outcome
    }

    /// Names of extended attributes.
    ///
    /// # Errors
    /// The server's.
    pub fn xattr_list(&self, ino: Ino) -> Result<Vec<Vec<u8>>, Status> {
        self.shared.session.call(&XattrList { ino })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NODATA` where it is not set.
    pub fn xattr_remove(&self, ino: Ino, name: &[u8]) -> Result<(), Status> {
        self.shared.session.change(&XattrRemove { ino, name: name.to_vec() }, &[])?;
        self.shared.forget_attr(ino);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_from_files_that_the_group_may_execute() {
        let all = |mode| reduced(mode, Privileges::All);
        assert_eq!(all(S_IFREG | 0o6755), S_IFREG | 0o755);
        assert_eq!(all(S_IFREG | 0o2644), S_IFREG | 0o2644, "a mark for locking, not a privilege");
        assert_eq!(all(0o042_775), 0o042_775, "directories keep theirs");
        assert_eq!(reduced(S_IFREG | 0o4755, Privileges::Capabilities), S_IFREG | 0o4755);
    }
}
