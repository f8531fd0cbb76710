//! Extended attributes that the journal answers for. The client must know all attributes of the
//! inode, and hold it exclusively.
//!
//! Access control lists are among them: the mode follows a change of the list (`nuri_proto::acl`).

use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::log::{Change, Step};
use nuri_proto::op::meta::{Attr, XattrAll, XattrMode, XattrRemove, XattrSet};
use nuri_proto::xattr::is_acl;

use super::Journal;
use super::queue::Logged;
use crate::inode::InodeState;
use crate::inode::known_xattrs::Xattrs;

/// Longer values go to the server, so that the journal in memory stays small.
pub(super) const LONGEST: usize = 4096;

impl Journal {
    /// Reads an attribute that is known, or known not to be set. `None`: the server is asked.
    pub(crate) fn xattr_journalled(&self, ino: Ino, name: &[u8]) -> Option<Option<Vec<u8>>> {
        self.with_xattrs(ino, |state| {
            if state.xattrs.lacks(name) {
                return Some(None);
            }
            Some(state.xattrs.all()?.get(name).map(<[u8]>::to_vec))
        })
    }

    /// Names of all attributes, where they are known.
    pub(crate) fn xattr_names_journalled(&self, ino: Ino) -> Option<Vec<Vec<u8>>> {
        self.with_xattrs(ino, |state| {
            Some(state.xattrs.all()?.names().map(<[u8]>::to_vec).collect())
        })
    }

    fn with_xattrs<T>(
        &self,
        ino: Ino,
        look: impl FnOnce(&mut InodeState) -> Option<T>,
    ) -> Option<T> {
        let node = self.inodes.find(ino).filter(|_| self.session.trusts_leases())?;
        let mut state = node.state.lock();
        if state.hold.mode.is_some() { look(&mut state) } else { None }
    }

    /// Reads all attributes of an inode that this client holds exclusively, before one is changed.
    ///
    /// # Errors
    /// The server's, as `FBIG` for more than can be read. Then they are not known.
    pub(crate) fn fetch_xattrs(&self, ino: Ino) -> Result<(), Status> {
        let Some(node) = self.inodes.find(ino) else { return Ok(()) };
        let held = |state: &mut InodeState| {
            let (number, asked) = (state.hold.number, state.xattrs.asked());
            state.alone().map(|_| (number, asked))
        };
        let before = {
            let mut state = node.state.lock();
            if state.xattrs.is_complete() {
                return Ok(());
            }
            held(&mut state)
        };
        let Some((_, asked)) = before else { return Ok(()) };
        self.flush_of(ino)?;
        let all = self.session.call(&XattrAll { ino })?;
        let mut state = node.state.lock();
        if held(&mut state) == before {
            state.xattrs.note_all(Xattrs::from_iter(all), asked);
        }
        Ok(())
    }

    /// Sets an attribute.
    pub(crate) fn set_xattr_journalled(&self, call: &XattrSet) -> Option<Result<(), Status>> {
        if call.value.len() > LONGEST {
            return None;
        }
        self.provide_numbers();
        // It is checked here: a change that the server made meanwhile must not make it refuse.
        let step = XattrSet { mode: XattrMode::Any, ..call.clone() };
        self.change_xattrs(call.ino, Change::XattrSet(step), true, |attr, all| {
            let value = if is_acl(&call.name) {
                call.check_lengths()?;
                call.set_list(attr)?
            } else {
                call.check(all.names())?;
                Some(call.value.clone())
            };
            match value {
                Some(value) => all.insert(&call.name, value),
                None => _ = all.remove(&call.name),
            }
            Ok(())
        })
    }

    /// Removes an attribute.
    pub(crate) fn remove_xattr_journalled(&self, call: &XattrRemove) -> Option<Result<(), Status>> {
        self.change_xattrs(call.ino, Change::XattrRemove(call.clone()), false, |_, all| {
            if all.remove(&call.name) { Ok(()) } else { Err(Status::NODATA) }
        })
    }

    fn change_xattrs(
        &self,
        ino: Ino,
        change: Change,
        grows: bool,
        act: impl FnOnce(&mut Attr, &mut Xattrs) -> Result<(), Status>,
    ) -> Option<Result<(), Status>> {
        let node = self.inodes.find(ino)?;
        let mut log = self.open_journal()?;
        let mut state = node.state.lock();
        if state.may_be_gone() {
            return None;
        }
        let mut attr = *state.alone()?;
        let now = self.stamp(attr.ctime);
        let has_room = !grows || log.may_grow();
        let all = state.xattrs.all().filter(|_| has_room)?;
        if let Err(status) = act(&mut attr, all) {
            return Some(Err(status));
        }
        if grows {
            log.take_number();
        }
        state.xattrs.note_change();
        attr.changed(now);
        *state.alone()? = attr;
        state.logged = log.append(Logged::new(Step { at: now, change }, &[ino]));
        Some(Ok(()))
    }
}
