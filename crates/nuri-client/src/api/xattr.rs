//! The client's API: extended attributes. Also, what a write takes away from a program file:
//! set-user-id, set-group-id and capabilities.
//!
//! The kernel leaves the second duty to the mount (`FUSE_HANDLE_KILLPRIV_V2`). Otherwise the kernel
//! would ask for `security.capability` before every write. Under the lease the client knows that no
//! capability is set.

use nuri_proto::Status;
use nuri_proto::change::{CAPABILITY, S_IFDIR, S_IFMT, S_IFREG, S_ISGID};
use nuri_proto::id::Ino;
use nuri_proto::op::Call;
use nuri_proto::op::meta::{
    LeaseMode, SetAttr, SetGroupId, XattrGet, XattrList, XattrMode, XattrRemove, XattrSet,
};
use nuri_proto::xattr::ACL_DEFAULT;

use crate::client::Client;
use crate::inode::InodeState;

const S_ISUID: u32 = 0o4000;
const S_IXGRP: u32 = 0o0010;
const SET_ID: u32 = S_ISUID | S_ISGID;

/// Which privileges of a file a change takes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privileges {
    /// Of a caller that may keep the bits (`CAP_FSETID`).
    Capabilities,
    /// Also set-user-id, and set-group-id of what the group may execute.
    All,
    /// Also set-group-id of what the group may not execute, where the caller is not in the group.
    Of(Caller),
}

/// The process that changes a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Its number, as `/proc` has it.
    pub thread: u32,
    pub gid: u32,
}

impl Caller {
    /// Whether it is in the group. One that cannot be asked is not.
    fn is_in(self, gid: u32) -> bool {
        let path = format!("/proc/{}/status", self.thread);
        let others = || is_listed(&std::fs::read_to_string(path).unwrap_or_default(), gid);
        self.gid == gid || others()
    }
}

/// Reads `Groups: GID GID ...`.
fn is_listed(status: &str, gid: u32) -> bool {
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    groups.is_some_and(|gids| gids.split_whitespace().any(|word| word.parse() == Ok(gid)))
}

/// The mode without what a change takes away.
fn reduced(mode: u32, what: Privileges, is_member: impl FnOnce(Caller) -> bool) -> u32 {
    if what == Privileges::Capabilities || mode & S_IFMT == S_IFDIR || mode & SET_ID == 0 {
        return mode;
    }
    let keeps_group = match what {
        _ if mode & S_IXGRP != 0 => false,
        Privileges::Of(caller) => is_member(caller),
        _ => true,
    };
    mode & !(S_ISUID | if keeps_group { 0 } else { S_ISGID })
}

impl Client {
    /// The server changes one: what is known counts no more.
    fn doubt_xattrs(&self, ino: Ino) {
        if let Some(node) = self.inodes.find(ino) {
            node.state.lock().xattrs.doubt();
        }
    }

    /// Reads an extended attribute.
    ///
    /// # Errors
    /// `NODATA` where it is not set.
    pub fn xattr_get(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Status> {
        if let Some(known) = self.journal.xattr_journalled(ino, name) {
            return known.ok_or(Status::NODATA);
        }
        let node = self.inodes.with(ino, |node, _| node.clone());
        let held = |state: &InodeState| {
            let is_held = state.hold.mode.is_some() && !state.hold.revoking;
            is_held.then_some((state.hold.number, state.xattrs.asked()))
        };
        let before = held(&node.state.lock());
        self.journal.flush_of(ino)?;
        let reply = self.session.call(&XattrGet { ino, name: name.to_vec() });
        let mut state = node.state.lock();
        if let Some((_, asked)) = before.filter(|_| before == held(&state))
            && reply == Err(Status::NODATA)
        {
            state.xattrs.note_absent(name, asked);
        }
        reply
    }

    /// Whether the client knows, without asking the server, that there is nothing to take away.
    pub(crate) fn has_no_privileges(&self, ino: Ino, what: Privileges) -> bool {
        self.session.trusts_leases()
            && self.inodes.find(ino).is_some_and(|node| {
                let state = node.state.lock();
                let is_plain = |mode| reduced(mode, what, |_| false) == mode;
                let bare = state.xattrs.lacks(CAPABILITY);
                let mode = match &state.parts {
                    Some(parts) => parts.mode,
                    None => state.attr.filter(|_| state.hold.mode.is_some()).map(|attr| attr.mode),
                };
                bare && mode.is_some_and(is_plain)
            })
    }

    /// Takes away the privileges that a file must not keep when its content or owner changes.
    ///
    /// # Errors
    /// The server's.
    pub fn drop_privileges(&self, ino: Ino, what: Privileges) -> Result<(), Status> {
        if self.has_no_privileges(ino, what) {
            return Ok(());
        }
        let attr = self.getattr(ino)?;
        let mode = attr.mode;
        if mode & S_IFMT == S_IFREG && self.xattr_get(ino, CAPABILITY).is_ok() {
            match self.xattr_remove(ino, CAPABILITY) {
                Ok(()) | Err(Status::NODATA) => {}
                Err(status) => return Err(status),
            }
        }
        let left = reduced(mode, what, |caller| caller.is_in(attr.gid));
        if left != mode {
            let mode = Some(left & !S_IFMT);
            self.setattr(&SetAttr { ino, mode, ..SetAttr::default() })?;
        }
        Ok(())
    }

    /// Whether the caller may take away the privileges that the file must not keep. The file's
    /// owner may. Where there is no mode to change, every caller may.
    ///
    /// # Errors
    /// The server's; `PERM`.
    pub fn may_drop_privileges(&self, ino: Ino, uid: u32, caller: Caller) -> Result<(), Status> {
        let attr = self.getattr(ino)?;
        let of = Privileges::Of(caller);
        let left = reduced(attr.mode, of, |caller| caller.is_in(attr.gid));
        let may = uid == 0 || uid == attr.uid || left == attr.mode;
        if may { Ok(()) } else { Err(Status::PERM) }
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
        (mode, group_id): (XattrMode, SetGroupId),
    ) -> Result<(), Status> {
        let call = XattrSet { ino, name: name.to_vec(), value: value.to_vec(), mode, group_id };
        self.prepare_xattr_change(ino);
        if let Some(outcome) = self.journal.set_xattr_journalled(&call) {
            return outcome;
        }
        self.change_xattr(ino, name, &call)
    }

    /// Before one is changed. Whose attributes are changed again is asked for alone: from then on
    /// the journal answers. Where it cannot be had the server changes them.
    fn prepare_xattr_change(&self, ino: Ino) {
        let is_again = self.inodes.find(ino).is_some_and(|node| {
            let state = node.state.lock();
            state.xattrs.were_changed() && !state.hold.is_alone()
        });
        let is_file = || self.getattr(ino).is_ok_and(|attr| attr.mode & S_IFMT == S_IFREG);
        if is_again && is_file() {
            let _ = self.leases.acquire(ino, LeaseMode::Write);
        }
        let _ = self.journal.fetch_xattrs(ino);
    }

    /// By the server.
    fn change_xattr<C: Call<Reply = ()>>(
        &self,
        ino: Ino,
        name: &[u8],
        call: &C,
    ) -> Result<(), Status> {
        self.doubt_xattrs(ino);
        // Nothing is made meanwhile that would inherit something else.
        let dirs: &[Ino] = if name == ACL_DEFAULT { &[ino] } else { &[] };
        let _direct = self.journal.begin_direct(dirs)?;
        let node = self.inodes.find(ino);
        // The answer to a publication on its way must not bring the old mode back.
        let _publishing = node.as_ref().map(|node| node.sync.lock());
        let outcome = self.session.change(call, &[]);
        // A reader of it may have noted its absence meanwhile.
        self.doubt_xattrs(ino);
        if let Some(node) = &node {
            let mut state = node.state.lock();
            // Where it was refused nothing may have changed.
            if outcome.is_ok() { state.outdate_attr() } else { state.forget_attr() }
        }
        outcome
    }

    /// Names of extended attributes.
    ///
    /// # Errors
    /// The server's.
    pub fn xattr_list(&self, ino: Ino) -> Result<Vec<Vec<u8>>, Status> {
        if let Some(names) = self.journal.xattr_names_journalled(ino) {
            return Ok(names);
        }
        self.journal.flush_of(ino)?;
        self.session.call(&XattrList { ino })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NODATA` where it is not set.
    pub fn xattr_remove(&self, ino: Ino, name: &[u8]) -> Result<(), Status> {
        let call = XattrRemove { ino, name: name.to_vec() };
        self.prepare_xattr_change(ino);
        if let Some(outcome) = self.journal.remove_xattr_journalled(&call) {
            return outcome;
        }
        self.change_xattr(ino, name, &call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_from_files_that_the_group_may_execute() {
        let all = |mode| reduced(mode, Privileges::All, |_| false);
        assert_eq!(all(S_IFREG | 0o6755), S_IFREG | 0o755);
        assert_eq!(all(S_IFREG | 0o2644), S_IFREG | 0o2644, "a mark for locking, not a privilege");
        assert_eq!(all(0o042_775), 0o042_775, "directories keep theirs");
        let none = reduced(S_IFREG | 0o4755, Privileges::Capabilities, |_| false);
        assert_eq!(none, S_IFREG | 0o4755);
        assert_eq!(all(0o016_755), 0o010_755, "a fifo");
        let of = Privileges::Of(Caller { thread: 0, gid: 7 });
        assert_eq!(reduced(S_IFREG | 0o2644, of, |_| false), S_IFREG | 0o644, "a stranger");
        assert_eq!(reduced(S_IFREG | 0o2644, of, |_| true), S_IFREG | 0o2644);
        assert!(is_listed("Name:\tx\nGroups:\t5 1001 \n", 1001) && !is_listed("Groups:\t5\n", 6));
    }
}
