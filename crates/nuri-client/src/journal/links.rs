//! Adds further names to files, by the journal.

use nuri_proto::Status;
use nuri_proto::change::S_IFDIR;
use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_LINKS;
use nuri_proto::op::log::{Change, Step};
use nuri_proto::op::meta::Link;

use super::Journal;
use super::answer::is_plain_name;
use super::directory::Child;
use super::queue::Logged;
use crate::inode::Entry;

impl Journal {
    /// Gives an inode a further name. `None`: the server has to be asked, as for a file that never
    /// had a name.
    pub(crate) fn link_journalled(&self, call: &Link) -> Option<Result<Entry, Status>> {
        if !is_plain_name(&call.name) || call.ino.is_hidden() {
            return None;
        }
        let (dir, node) = (self.inodes.find(call.parent)?, self.inodes.find(call.ino)?);
        if !dir.state.lock().names_known {
            return None;
        }
        self.provide_numbers();
        let mut log = self.open_journal()?;
        let dir_attr = *dir.state.lock().known_directory()?;
        if log.names(call.parent)?.get(&call.name).is_some() {
            return Some(Err(Status::EXIST));
        }
        let mut state = node.state.lock();
        let attr = state.alone()?;
        let is_linkable = attr.mode & nuri_proto::change::S_IFMT != S_IFDIR
            && (1..MAX_LINKS).contains(&attr.nlink);
        if !is_linkable || dir_attr.nlink == 0 || log.take_number().is_none() {
            return None;
        }
        let now = self.stamp(attr.ctime.max(dir_attr.ctime));
        attr.link_added(now);
        let step = Step { at: now, change: Change::Link(call.clone()) };
        let step = log.append(Logged::new(step, &[call.ino, call.parent]));
        state.logged = step;
        state.lookups += 1;
        let attr = state.view()?;
        drop(state);
        let mut parent = dir.state.lock();
        parent.attr.as_mut()?.name_added(false, now);
        parent.logged = step;
        parent.usage.note_change();
        drop(parent);
        log.names(call.parent)?.insert(&call.name, Child { ino: call.ino, is_dir: false });
        Some(Ok(Entry { ino: call.ino, attr }))
    }

    /// Takes an inode exclusively that gets a further name in a known directory.
    pub(crate) fn take_linked(&self, ino: Ino, parent: Ino) {
        let is_known = self.inodes.find(parent).is_some_and(|dir| dir.state.lock().names_known);
        if is_known {
            self.take_inode(ino);
        }
    }
}
