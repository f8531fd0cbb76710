//! Procedures that find, create, move and remove names.

use nuri_client::Entry;
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{
    Attr, Exclusive, Make, MakeKind, RemoveKind, RenameMode, SetAttr, SetTime, Time, WithAttrs,
};

use super::attributes::device_number;
use super::{Files, Node};
use crate::floating::Change;
use crate::permission::{Caller, EXECUTE, S_ISVTX, WRITE};
use crate::protocol::attributes::{NewAttributes, write_after};
use crate::protocol::call::{How, Special};
use crate::protocol::status::NfsStatus;
use crate::rpc::xdr::Writer;

/// Directories above one that are looked at, to find where its export begins.
const DEEPEST: usize = 4096;
const NEW_FILE: u32 = 0o666;
const NEW_DIRECTORY: u32 = 0o777;

/// What loses its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    File,
    Directory,
}

/// A name that something may have.
fn check_name(name: &[u8]) -> Result<(), NfsStatus> {
    match name {
        b"" => Err(NfsStatus::INVAL),
        b"." | b".." => Err(NfsStatus::EXIST),
        name if name.contains(&b'/') || name.contains(&0) => Err(NfsStatus::INVAL),
        name if name.len() > 255 => Err(NfsStatus::NAMETOOLONG),
        _ => Ok(()),
    }
}

impl Files {
    /// Whether the caller may change names of a directory.
    fn check_names(&self, dir: &Node) -> Result<(), NfsStatus> {
        dir.check_writable()?;
        dir.check_directory()?;
        self.check(dir, WRITE | EXECUTE)
    }

    pub(super) fn lookup(
        &self,
        dir: &Node,
        name: &[u8],
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        dir.check_directory()?;
        self.check(dir, EXECUTE)?;
        let (ino, attr) = match name {
            b"." => (dir.ino(), dir.attr),
            b".." => self.above(dir)?,
            name => {
                let found = self.find(dir, name)?.ok_or(NfsStatus::NOENT)?;
                (found.ino, found.attr)
            }
        };
        out.number(NfsStatus::OK.0);
        out.bytes_of(&self.handle(dir, ino));
        write_after(Some(&dir.told(&attr)), out);
        write_after(self.client.getattr(dir.ino()).ok().map(|attr| dir.told(&attr)).as_ref(), out);
        Ok(())
    }

    fn find(&self, dir: &Node, name: &[u8]) -> Result<Option<Entry>, NfsStatus> {
        if name.len() > 255 {
            return Err(NfsStatus::NAMETOOLONG);
        }
        let found = self.client.lookup(dir.ino(), name)?;
        if let Some(entry) = &found {
            self.found(entry);
        }
        Ok(found)
    }

    /// The directory above, within the export: what was moved out of it has none.
    fn above(&self, dir: &Node) -> Result<(Ino, Attr), NfsStatus> {
        let root = dir.root.ok_or(NfsStatus::STALE)?;
        if dir.ino() == root {
            return Ok((root, dir.attr));
        }
        let above = self.parent(dir.ino())?;
        let mut at = above;
        for _ in 0..DEEPEST {
            if at == root {
                return Ok((above, self.attr(above)?));
            }
            if at == Ino::ROOT {
                break;
            }
            at = self.parent(at)?;
        }
        Err(NfsStatus::STALE)
    }

    fn parent(&self, dir: Ino) -> Result<Ino, NfsStatus> {
        Ok(self.client.readdir(dir, u64::MAX >> 1, 1, WithAttrs::No)?.parent)
    }

    pub(super) fn read_link(&self, node: &Node, out: &mut Writer) -> Result<(), NfsStatus> {
        let to = self.client.readlink(node.ino())?;
        out.number(NfsStatus::OK.0);
        write_after(Some(&node.told(&node.attr)), out);
        out.bytes_of(&to);
        Ok(())
    }

    pub(super) fn create(
        &self,
        dir: &Node,
        name: &[u8],
        how: How,
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        self.check_names(dir)?;
        check_name(name)?;
        let found = match how {
            How::Unchecked(new) => self.create_or_find(dir, name, &new)?,
            How::Guarded(new) => (self.make(dir, name, (MakeKind::File, NEW_FILE), &new)?, 1),
            How::Exclusive(verifier) => self.create_once(dir, name, verifier)?,
        };
        self.tell_found(dir, (&found.0, found.1), out)
    }

    /// The file, and in how many steps that changed the directory.
    fn create_or_find(
        &self,
        dir: &Node,
        name: &[u8],
        new: &NewAttributes,
    ) -> Result<(Entry, u64), NfsStatus> {
        match self.make(dir, name, (MakeKind::File, NEW_FILE), new) {
            Err(NfsStatus::EXIST) => {}
            outcome => return outcome.map(|entry| (entry, 1)),
        }
        // Between both it may have gone: then the client asks again.
        let found = self.find(dir, name)?.ok_or(NfsStatus::JUKEBOX)?;
        let node = dir.of(found.attr);
        if !node.is_file() {
            return Err(NfsStatus::EXIST);
        }
        if new.size.is_some() {
            self.check_data(&node, WRITE)?;
            self.change(&node, &NewAttributes { size: new.size, ..NewAttributes::default() })?;
        }
        Ok((Entry { ino: found.ino, attr: self.attr(found.ino)? }, 0))
    }

    /// All eight bytes of the client's number are kept, in the times of the new file. The client
    /// sets them to true ones when it has its answer.
    fn create_once(
        &self,
        dir: &Node,
        name: &[u8],
        verifier: [u8; 8],
    ) -> Result<(Entry, u64), NfsStatus> {
        let number = u64::from_be_bytes(verifier);
        let at = |sec: u64| SetTime::At(Time { sec: sec as i64, nsec: 0 });
        let (atime, mtime) = (Some(at(number >> 32)), Some(at(number & 0xffff_ffff)));
        match self.make(dir, name, (MakeKind::File, 0), &NewAttributes::default()) {
            Ok(made) => {
                let ino = made.ino;
                self.client.setattr(&SetAttr { ino, atime, mtime, ..SetAttr::default() })?;
                Ok((Entry { ino, attr: self.attr(ino)? }, 1))
            }
            Err(NfsStatus::EXIST) => {
                let found = self.find(dir, name)?.ok_or(NfsStatus::EXIST)?;
                let own = |time: Time, is: Option<SetTime>| is == Some(SetTime::At(time));
                let is_own = own(found.attr.atime, atime) && own(found.attr.mtime, mtime);
                if is_own { Ok((found, 0)) } else { Err(NfsStatus::EXIST) }
            }
            Err(status) => Err(status),
        }
    }

    pub(super) fn make_directory(
        &self,
        dir: &Node,
        name: &[u8],
        new: &NewAttributes,
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        self.check_names(dir)?;
        check_name(name)?;
        let entry = self.make(dir, name, (MakeKind::Directory, NEW_DIRECTORY), new)?;
        self.tell_made(dir, &entry, out)
    }

    pub(super) fn make_link(
        &self,
        dir: &Node,
        name: &[u8],
        (new, to): (&NewAttributes, &[u8]),
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        self.check_names(dir)?;
        check_name(name)?;
        if to.is_empty() || to.contains(&0) {
            return Err(NfsStatus::INVAL);
        }
        // A link's mode means nothing.
        let new = NewAttributes { mode: None, ..*new };
        let entry = self.make(dir, name, (MakeKind::Symlink(to.to_vec()), 0o777), &new)?;
        self.tell_made(dir, &entry, out)
    }

    pub(super) fn make_special(
        &self,
        dir: &Node,
        name: &[u8],
        (what, new): (Special, &NewAttributes),
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        self.check_names(dir)?;
        check_name(name)?;
        let number = |major, minor| device_number(major, minor).ok_or(NfsStatus::INVAL);
        let (kind, rdev) = match what {
            Special::Character { major, minor } => (0o020_000, number(major, minor)?),
            Special::Block { major, minor } => (0o060_000, number(major, minor)?),
            Special::Socket => (0o140_000, 0),
            Special::Fifo => (0o010_000, 0),
        };
        if rdev != 0 && !dir.caller.is_root() {
            return Err(NfsStatus::PERM);
        }
        let entry = self.make(dir, name, (MakeKind::Special { rdev }, kind | NEW_FILE), new)?;
        self.tell_made(dir, &entry, out)
    }

    /// Makes a name that is not there.
    fn make(
        &self,
        dir: &Node,
        name: &[u8],
        (kind, usual): (MakeKind, u32),
        new: &NewAttributes,
    ) -> Result<Entry, NfsStatus> {
        let mode = new.mode.map_or(usual, |mode| usual & 0o170_000 | mode & 0o7777);
        let Caller { uid, gid, .. } = dir.caller;
        let (parent, name, exclusive) = (dir.ino(), name.to_vec(), Exclusive::Yes);
        let call = Make { parent, name, kind, mode, umask: 0, uid, gid, exclusive };
        let entry = match dir.standing.change(|done| self.client.make_once(&call, done))? {
            Change::Made(entry) => entry,
            Change::Before(made) => {
                self.client.lookup_number(made.ok_or(NfsStatus::SERVERFAULT)?)?
            }
        };
        self.found(&entry);
        let own = |number: Option<u32>, is: u32| number.filter(|number| *number != is);
        let rest = NewAttributes {
            mode: None,
            uid: own(new.uid, entry.attr.uid).filter(|_| dir.caller.is_root()),
            gid: own(new.gid, entry.attr.gid)
                .filter(|gid| dir.caller.is_root() || dir.caller.is_in(*gid)),
            size: new.size.filter(|size| *size > 0),
            ..*new
        };
        if rest == NewAttributes::default() {
            return Ok(entry);
        }
        self.change(&dir.of(entry.attr), &rest)?;
        Ok(Entry { ino: entry.ino, attr: self.attr(entry.ino)? })
    }

    fn tell_made(&self, dir: &Node, entry: &Entry, out: &mut Writer) -> Result<(), NfsStatus> {
        self.tell_found(dir, (entry, 1), out)
    }

    /// An entry that was found, or made: a change of the directory of so many steps.
    fn tell_found(
        &self,
        dir: &Node,
        (entry, steps): (&Entry, u64),
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        self.make_durable(dir.ino())?;
        out.number(NfsStatus::OK.0);
        out.boolean(true);
        out.bytes_of(&self.handle(dir, entry.ino));
        write_after(Some(&dir.told(&entry.attr)), out);
        self.wcc(dir, steps).write(out);
        Ok(())
    }

    /// What has a name that is about to go, where the caller may take it away.
    fn leaving(&self, dir: &Node, name: &[u8]) -> Result<Entry, NfsStatus> {
        let found = self.find(dir, name)?.ok_or(NfsStatus::NOENT)?;
        let is_sticky = dir.attr.mode & S_ISVTX != 0;
        let may = !is_sticky || dir.caller.owns(&dir.attr) || dir.caller.owns(&found.attr);
        if may { Ok(found) } else { Err(NfsStatus::ACCES) }
    }

    /// The same. Nothing where it is gone, and the metadata server knows whether by this call.
    fn leaving_now(&self, dir: &Node, name: &[u8]) -> Result<Option<Entry>, NfsStatus> {
        match self.leaving(dir, name) {
            Err(NfsStatus::NOENT) if dir.standing.is_new() => Ok(None),
            found => found.map(Some),
        }
    }

    pub(super) fn remove(
        &self,
        dir: &Node,
        name: &[u8],
        what: What,
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        self.check_names(dir)?;
        if [&b"."[..], b".."].contains(&name) {
            return Err(NfsStatus::INVAL);
        }
        let kind = match what {
            What::File => RemoveKind::File,
            What::Directory => RemoveKind::Directory,
        };
        if !dir.standing.was_done() {
            let found = self.leaving_now(dir, name)?;
            dir.standing.change(|done| self.client.remove_once((dir.ino(), name), kind, done))?;
            found.iter().for_each(|found| self.forget_lost(found.ino));
        }
        self.make_durable(dir.ino())?;
        out.number(NfsStatus::OK.0);
        self.wcc(dir, 1).write(out);
        Ok(())
    }

    /// It lost a name: where that was the last one, nothing is kept of it here.
    fn forget_lost(&self, ino: Ino) {
        let has_others = self.client.getattr(ino).is_ok_and(|attr| attr.nlink > 0);
        if !has_others {
            self.opened.close(ino);
        }
    }

    pub(super) fn rename(
        &self,
        (from, old): (&Node, &[u8]),
        (to, new): (&Node, &[u8]),
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        self.check_names(from)?;
        self.check_names(to)?;
        if from.export.id != to.export.id {
            return Err(NfsStatus::XDEV);
        }
        for name in [old, new] {
            // Of what has no other name than those, nothing can be moved.
            check_name(name).map_err(|status| match status {
                NfsStatus::EXIST => NfsStatus::INVAL,
                status => status,
            })?;
        }
        let steps =
            if from.standing.was_done() { 1 } else { self.move_name((from, old), (to, new))? };
        self.make_durable(to.ino())?;
        out.number(NfsStatus::OK.0);
        self.wcc(from, steps).write(out);
        self.wcc(to, steps).write(out);
        Ok(())
    }

    /// In how many steps that changed each directory.
    fn move_name(
        &self,
        (from, old): (&Node, &[u8]),
        (to, new): (&Node, &[u8]),
    ) -> Result<u64, NfsStatus> {
        let moved = self.leaving_now(from, old)?;
        if let Some(moved) = moved.filter(|_| from.ino() != to.ino()) {
            let moved = from.of(moved.attr);
            if moved.is_directory() {
                // Its name for what is above it changes.
                self.check(&moved, WRITE)?;
            }
        }
        let replaced = match self.leaving(to, new) {
            Err(NfsStatus::NOENT) => None,
            found => Some(found?),
        };
        let (here, there) = ((from.ino(), old), (to.ino(), new));
        let rename = |done| self.client.rename_once((here, there), RenameMode::Replace, done);
        from.standing.change(rename)?;
        if let Some(replaced) = &replaced {
            self.forget_lost(replaced.ino);
        }
        // Two names of one file: nothing is moved.
        let is_same = replaced.is_some_and(|is| moved.is_some_and(|moved| is.ino == moved.ino));
        Ok(u64::from(!is_same))
    }

    pub(super) fn link(
        &self,
        file: &Node,
        (dir, name): (&Node, &[u8]),
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        self.check_names(dir)?;
        check_name(name)?;
        if file.export.id != dir.export.id {
            return Err(NfsStatus::XDEV);
        }
        if file.is_directory() {
            return Err(NfsStatus::PERM);
        }
        let link = |done| self.client.link_once(file.ino(), (dir.ino(), name), done);
        let linked = dir.standing.change(link).map_err(|status| {
            // The file is gone, the directory not.
            if status == Status::NOENT { NfsStatus::STALE } else { status.into() }
        })?;
        if let Change::Made(entry) = linked {
            self.found(&entry);
        }
        let attr = self.attr(file.ino())?;
        self.make_durable(dir.ino())?;
        out.number(NfsStatus::OK.0);
        write_after(Some(&file.told(&attr)), out);
        self.wcc(dir, 1).write(out);
        Ok(())
    }
}

impl Node {
    /// Another file, reached through this directory.
    fn of(&self, attr: Attr) -> Node {
        let (export, caller) = (self.export.clone(), self.caller.clone());
        let standing = self.standing.clone();
        Node { export, root: self.root, caller, access: self.access, standing, attr }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_nothing_can_have_are_refused() {
        assert_eq!(check_name(b"a name"), Ok(()));
        assert_eq!(check_name(&[0xff; 255]), Ok(()));
        assert_eq!(check_name(&[b'x'; 256]), Err(NfsStatus::NAMETOOLONG));
        for name in [&b""[..], b"a/b", b"a\0b"] {
            assert_eq!(check_name(name), Err(NfsStatus::INVAL));
        }
        assert_eq!(check_name(b".."), Err(NfsStatus::EXIST));
    }
}
