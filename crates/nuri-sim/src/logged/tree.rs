//! What must be there: a tree of names, attributes and small files, changed step by step.

use std::collections::BTreeMap;

use nuri_proto::acl::{self, Inherited};
use nuri_proto::change::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use nuri_proto::id::Ino;
use nuri_proto::op::log::{Change, Step};
use nuri_proto::op::meta::{
    Attr, Link, Make, MakeKind, Publish, Rename, SetAttr, Time, Unlink, XattrSet,
};
use nuri_proto::xattr::{ACL_ACCESS, ACL_DEFAULT, is_acl};

use crate::check::{Wrong, wrong};

/// What an inode is beside its attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    Directory(BTreeMap<Vec<u8>, Ino>),
    File(Vec<u8>),
    Link(Vec<u8>),
    Special,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    pub attr: Attr,
    pub body: Body,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Item {
    /// Without extended attributes.
    pub fn new(attr: Attr, body: Body) -> Item {
        Item { attr, body, xattrs: BTreeMap::new() }
    }
}

/// A step with its data, as the model keeps it.
#[derive(Clone, Debug)]
pub struct Note {
    /// Its number in the log.
    pub number: u64,
    pub step: Step,
    pub inline: Vec<u8>,
    pub touched: Vec<Ino>,
}

/// Everything that has a name, by number.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Tree(pub BTreeMap<Ino, Item>);

impl Tree {
    /// # Errors
    /// Where the step needs what is not there.
    pub fn apply(&mut self, note: &Note) -> Result<(), Wrong> {
        let at = note.step.at;
        let done = match &note.step.change {
            Change::Make(ino, call) => self.make(*ino, call, at),
            Change::Unlink(call, _) => self.unlink(call, at),
            Change::Rename(call, _) => self.rename(call, at),
            Change::SetAttr(call) => self.set(call, at),
            Change::Publish(call) => self.publish(call, &note.inline, at),
            Change::Extend(call) => self.0.get(&call.ino).map(|_| ()),
            Change::Link(call) => self.link(call, at),
            Change::XattrSet(call) => self.set_xattr(call, at),
            Change::XattrRemove(call) => {
                self.changed(call.ino, at).and_then(|item| item.xattrs.remove(&call.name)).map(drop)
            }
        };
        done.ok_or_else(|| wrong!("the model cannot do {:?}", note.step))
    }

    /// Names of a directory.
    pub fn names(&self, dir: Ino) -> Option<&BTreeMap<Vec<u8>, Ino>> {
        match &self.0.get(&dir)?.body {
            Body::Directory(names) => Some(names),
            _ => None,
        }
    }

    fn dir(&mut self, dir: Ino) -> Option<(&mut Attr, &mut BTreeMap<Vec<u8>, Ino>)> {
        let item = self.0.get_mut(&dir)?;
        match &mut item.body {
            Body::Directory(names) => Some((&mut item.attr, names)),
            _ => None,
        }
    }

    fn make(&mut self, ino: Ino, call: &Make, at: Time) -> Option<()> {
        let inherited = match &call.kind {
            MakeKind::Symlink(_) => Inherited::by_link(),
            kind => {
                let list = self.0.get(&call.parent)?.xattrs.get(ACL_DEFAULT).map(Vec::as_slice);
                let asked = (call.mode & 0o7777, call.umask);
                Inherited::from_directory(list, asked, *kind == MakeKind::Directory).ok()?
            }
        };
        let rights = inherited.mode;
        let (mode, body, size) = match &call.kind {
            MakeKind::File => (S_IFREG | rights, Body::File(Vec::new()), 0),
            MakeKind::Directory => (S_IFDIR | rights, Body::Directory(BTreeMap::new()), 0),
            MakeKind::Symlink(to) => (S_IFLNK | rights, Body::Link(to.clone()), to.len() as u64),
            MakeKind::Special { .. } => (call.mode & S_IFMT | rights, Body::Special, 0),
        };
        let rdev = if let MakeKind::Special { rdev } = call.kind { rdev } else { 0 };
        let (parent, names) = self.dir(call.parent)?;
        let made = parent.made(mode, (call.uid, call.gid), at);
        let attr = Attr { ino, size, rdev, change: inherited.change(), ..made };
        parent.name_added(attr.is_dir(), at);
        let is_new = names.insert(call.name.clone(), ino).is_none();
        is_new.then_some(())?;
        let lists = inherited.into_xattrs().map(|(name, list)| (name.to_vec(), list));
        self.0.insert(ino, Item { attr, body, xattrs: lists.collect() });
        Some(())
    }

    fn changed(&mut self, ino: Ino, at: Time) -> Option<&mut Item> {
        let item = self.0.get_mut(&ino)?;
        item.attr.changed(at);
        Some(item)
    }

    fn set_xattr(&mut self, call: &XattrSet, at: Time) -> Option<()> {
        let item = self.changed(call.ino, at)?;
        let value = match is_acl(&call.name) {
            true => call.set_list(&mut item.attr).ok()?,
            false => Some(call.value.clone()),
        };
        match value {
            Some(value) => item.xattrs.insert(call.name.clone(), value),
            None => item.xattrs.remove(&call.name),
        };
        Some(())
    }

    fn set(&mut self, call: &SetAttr, at: Time) -> Option<()> {
        let item = self.0.get_mut(&call.ino)?;
        if let (Some(mode), Some(list)) = (call.mode, item.xattrs.get_mut(ACL_ACCESS)) {
            *list = acl::follow_mode(list, mode).ok()?;
        }
        if call.size.is_none() {
            item.attr.set(call, at);
            return Some(());
        }
        item.attr.emptied(call, at);
        item.body = Body::File(Vec::new());
        Some(())
    }

    fn link(&mut self, call: &Link, at: Time) -> Option<()> {
        self.0.get_mut(&call.ino)?.attr.link_added(at);
        let (dir, names) = self.dir(call.parent)?;
        dir.name_added(false, at);
        names.insert(call.name.clone(), call.ino).is_none().then_some(())
    }

    /// An inode with its last name is gone from here, whoever has it open. Whether it is a
    /// directory.
    fn lose_name(&mut self, ino: Ino, at: Time) -> Option<bool> {
        let attr = &mut self.0.get_mut(&ino)?.attr;
        attr.link_dropped(at);
        let (is_dir, is_gone) = (attr.is_dir(), attr.nlink == 0);
        if is_gone {
            self.0.remove(&ino);
        }
        Some(is_dir)
    }

    fn unlink(&mut self, call: &Unlink, at: Time) -> Option<()> {
        let ino = self.dir(call.parent)?.1.remove(&call.name)?;
        let is_dir = self.lose_name(ino, at)?;
        self.dir(call.parent)?.0.name_removed(is_dir, at);
        Some(())
    }

    fn rename(&mut self, call: &Rename, at: Time) -> Option<()> {
        let moved = self.dir(call.parent)?.1.remove(&call.name)?;
        let is_dir = self.0.get(&moved)?.attr.is_dir();
        if let Some(over) = self.dir(call.new_parent)?.1.insert(call.new_name.clone(), moved) {
            let was_dir = self.lose_name(over, at)?;
            self.dir(call.new_parent)?.0.name_removed(was_dir, at);
        }
        self.dir(call.parent)?.0.name_removed(is_dir, at);
        self.dir(call.new_parent)?.0.name_added(is_dir, at);
        self.changed(moved, at).map(|_| ())
    }

    fn publish(&mut self, call: &Publish, inline: &[u8], at: Time) -> Option<()> {
        let item = self.0.get_mut(&call.ino)?;
        let attr = &mut item.attr;
        attr.published(call.mtime.map(|mtime| mtime.at(at)));
        (attr.size, attr.allocated) = (call.size, call.size.next_multiple_of(512));
        item.body = Body::File(inline.to_vec());
        Some(())
    }
}
