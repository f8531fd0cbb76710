//! The procedures of NFS version 3 on the files of a space.
//!
//! Each call names files by handles. [`Files::enter`] checks the handle, the client and the user,
//! for every call and every handle of it (NFS-5). Then the call is carried out. What it changed is
//! made durable before the call is answered (NFS-1).

mod attributes;
mod data;
mod listing;
mod names;
mod places;

use std::sync::Arc;

use nuri_client::{Client, Entry};
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::Attr;
use nuri_rules::broken;

use crate::export::{Access, Export, Table};
use crate::floating::Standing;
use crate::handle::{Handle, HandleKey};
use crate::opened::Opened;
use crate::permission::{self, Caller};
use crate::protocol::attributes::{Attributes, Wcc, write_after};
use crate::protocol::call::{RawHandle, Request};
use crate::protocol::status::NfsStatus;
use crate::remembered::Remembered;
use crate::rpc::message::Credentials;
use crate::rpc::xdr::Writer;
use crate::server::Peer;
use attributes::told;

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// Files of the space as a server of NFS gives them to its clients.
pub(crate) struct Files {
    pub(crate) client: Arc<Client>,
    pub(crate) exports: Arc<Table>,
    pub(crate) key: HandleKey,
    pub(crate) opened: Opened,
    pub(crate) remembered: Remembered,
}

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) credentials: &'a Credentials,
    pub(crate) peer: &'a Peer,
    pub(crate) standing: &'a Standing,
}

/// A file that a caller reached by its handle.
pub(crate) struct Node {
    export: Arc<Export>,
    /// Where the export begins.
    root: Option<Ino>,
    caller: Caller,
    access: Access,
    /// Of the call that reached it.
    standing: Standing,
    /// As it was when the call came.
    attr: Attr,
}

impl Node {
    fn ino(&self) -> Ino {
        self.attr.ino
    }

    fn is_directory(&self) -> bool {
        self.attr.mode & 0o170_000 == 0o040_000
    }

    fn is_file(&self) -> bool {
        self.attr.mode & 0o170_000 == 0o100_000
    }

    /// Whether anything may be changed through this export.
    fn check_writable(&self) -> Result<(), NfsStatus> {
        if self.access == Access::Write { Ok(()) } else { Err(NfsStatus::ROFS) }
    }

    fn check_directory(&self) -> Result<(), NfsStatus> {
        if self.is_directory() { Ok(()) } else { Err(NfsStatus::NOTDIR) }
    }

    fn told(&self, attr: &Attr) -> Attributes {
        told(attr, self.export.id)
    }
}

impl Files {
    /// Carries a call out. What it is answered with stands in `out` then.
    pub(crate) fn answer(&self, request: &Request<'_>, asker: Asker<'_>, out: &mut Writer) {
        let start = out.len();
        if let Err(status) = self.carry_out(request, asker, out) {
            out.truncate(start);
            out.number(status.0);
            for (handle, form) in told_anyway(request).into_iter().flatten() {
                if form == Form::BeforeAndAfter {
                    // Nothing was changed, or nobody knows by whom.
                    out.boolean(false);
                }
                let node = self.enter(handle, asker).ok();
                write_after(node.map(|node| node.told(&node.attr)).as_ref(), out);
            }
        }
    }

    fn carry_out(
        &self,
        request: &Request<'_>,
        asker: Asker<'_>,
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        match *request {
            Request::Null => Ok(()),
            Request::GetAttributes(file) => self.get_attributes(self.enter(file, asker)?, out),
            Request::SetAttributes { file, new, guard } => {
                self.set_attributes(&self.enter(file, asker)?, (&new, guard), out)
            }
            Request::Access { file, wanted } => self.access(&self.enter(file, asker)?, wanted, out),
            Request::Read { file, offset, count } => {
                self.read(&self.enter(file, asker)?, (offset, count), out)
            }
            Request::Write { file, offset, stable, data } => {
                self.write(&self.enter(file, asker)?, (offset, stable, data), out)
            }
            Request::Commit(file) => self.commit(&self.enter(file, asker)?, out),
            Request::List(listing) => self.list(&self.enter(listing.dir, asker)?, listing, out),
            Request::ListWithAttributes(listing) => {
                self.list_with_attributes(&self.enter(listing.dir, asker)?, listing, out)
            }
            Request::SpaceStatistics(file) => self.statistics(&self.enter(file, asker)?, out),
            Request::SpaceInformation(file) => self.information(&self.enter(file, asker)?, out),
            Request::PathLimits(file) => self.path_limits(&self.enter(file, asker)?, out),
            _ => self.carry_out_on_names(request, asker, out),
        }
    }

    fn carry_out_on_names(
        &self,
        request: &Request<'_>,
        asker: Asker<'_>,
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        match *request {
            Request::Lookup(place) => self.lookup(&self.enter(place.dir, asker)?, place.name, out),
            Request::ReadLink(file) => self.read_link(&self.enter(file, asker)?, out),
            Request::Create { place, how } => {
                self.create(&self.enter(place.dir, asker)?, place.name, how, out)
            }
            Request::MakeDirectory { place, new } => {
                self.make_directory(&self.enter(place.dir, asker)?, place.name, &new, out)
            }
            Request::MakeLink { place, new, to } => {
                self.make_link(&self.enter(place.dir, asker)?, place.name, (&new, to), out)
            }
            Request::MakeSpecial { place, what } => {
                let (what, new) = what.ok_or(NfsStatus::BADTYPE)?;
                self.make_special(&self.enter(place.dir, asker)?, place.name, (what, &new), out)
            }
            Request::Remove(place) => {
                self.remove(&self.enter(place.dir, asker)?, place.name, names::What::File, out)
            }
            Request::RemoveDirectory(place) => {
                self.remove(&self.enter(place.dir, asker)?, place.name, names::What::Directory, out)
            }
            Request::Rename { from, to } => {
                let dirs = (&self.enter(from.dir, asker)?, &self.enter(to.dir, asker)?);
                self.rename((dirs.0, from.name), (dirs.1, to.name), out)
            }
            Request::Link { file, place } => {
                let (file, dir) = (self.enter(file, asker)?, self.enter(place.dir, asker)?);
                self.link(&file, (&dir, place.name), out)
            }
            _ => Err(NfsStatus::SERVERFAULT),
        }
    }

    /// NFS-5: the file of a handle, for who may have it.
    fn enter(&self, raw: RawHandle<'_>, asker: Asker<'_>) -> Result<Node, NfsStatus> {
        let handle = self.key.open(raw.0).ok_or(NfsStatus::BADHANDLE)?;
        let known = self.exports.find(handle.export).ok_or(NfsStatus::STALE)?;
        let found = self.exports.client(&known.export, asker.peer.address);
        let first = || known.export.clients.first().filter(|_| broken!("nfs_any_client"));
        let client = found.or_else(first).ok_or(NfsStatus::ACCES)?;
        let (caller, access) = (client.squash(asker.credentials), client.access);
        let attr = self.attr(handle.ino)?;
        let standing = asker.standing.clone();
        Ok(Node { root: known.root, export: known.export, caller, access, standing, attr })
    }

    /// Attributes of an inode that still has a name.
    pub(crate) fn attr(&self, ino: Ino) -> Result<Attr, NfsStatus> {
        let attr = if self.remembered.has(ino) {
            self.client.getattr(ino)
        } else {
            self.client.lookup_number(ino).map(|entry| {
                self.remembered.found(ino);
                entry.attr
            })
        };
        match attr {
            Ok(attr) if attr.nlink > 0 => Ok(attr),
            Ok(_) | Err(Status::NOENT) => Err(NfsStatus::STALE),
            Err(status) => Err(status.into()),
        }
    }

    /// An entry was found: what is known of it is kept for a while.
    fn found(&self, entry: &Entry) {
        self.remembered.found(entry.ino);
    }

    /// What the caller may do with a file of these attributes.
    fn allowed(&self, attr: &Attr, caller: &Caller) -> Result<u32, NfsStatus> {
        let list = || match self.client.xattr_get(attr.ino, ACCESS_LIST) {
            Ok(list) => Ok(Some(list)),
            Err(Status::NODATA) => Ok(None),
            Err(status) => Err(status),
        };
        Ok(permission::allowed(attr, caller, list)?)
    }

    fn check(&self, node: &Node, bits: u32) -> Result<(), NfsStatus> {
        let allowed = self.allowed(&node.attr, &node.caller)?;
        if allowed & bits == bits { Ok(()) } else { Err(NfsStatus::ACCES) }
    }

    /// NFS-5: who owns a file reads and writes it whatever its mode, since clients let programs go
    /// on that have it open.
    fn check_data(&self, node: &Node, bits: u32) -> Result<(), NfsStatus> {
        if node.caller.owns(&node.attr) { Ok(()) } else { self.check(node, bits) }
    }

    /// NFS-1: what was done to names and attributes is durable.
    fn make_durable(&self, ino: Ino) -> Result<(), NfsStatus> {
        if broken!("nfs_answered_early") {
            return Ok(());
        }
        self.client.sync_directory(ino).map_err(NfsStatus::from)
    }

    fn handle(&self, node: &Node, ino: Ino) -> [u8; 32] {
        self.key.seal(Handle { export: node.export.id, ino })
    }

    /// The file as it was before a change of so many steps and as it is now. What was before counts
    /// only if nothing else changed it in between.
    fn wcc(&self, node: &Node, steps: u64) -> Wcc {
        let Ok(after) = self.client.getattr(node.ino()) else { return Wcc::default() };
        let is_alone = after.change == node.attr.change + steps;
        let before = is_alone.then(|| node.told(&node.attr));
        Wcc { before, after: Some(node.told(&after)) }
    }
}

/// How attributes stand in an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    After,
    BeforeAndAfter,
}

/// Of which files attributes are told also where the call failed.
fn told_anyway<'a>(request: &Request<'a>) -> [Option<(RawHandle<'a>, Form)>; 2] {
    let one = |handle, form| [Some((handle, form)), None];
    match *request {
        Request::Null | Request::GetAttributes(_) => [None, None],
        Request::Lookup(place) => one(place.dir, Form::After),
        Request::List(listing) | Request::ListWithAttributes(listing) => {
            one(listing.dir, Form::After)
        }
        Request::Access { file, .. }
        | Request::Read { file, .. }
        | Request::ReadLink(file)
        | Request::SpaceStatistics(file)
        | Request::SpaceInformation(file)
        | Request::PathLimits(file) => one(file, Form::After),
        Request::SetAttributes { file, .. }
        | Request::Write { file, .. }
        | Request::Commit(file) => one(file, Form::BeforeAndAfter),
        Request::Create { place, .. }
        | Request::MakeDirectory { place, .. }
        | Request::MakeLink { place, .. }
        | Request::MakeSpecial { place, .. }
        | Request::Remove(place)
        | Request::RemoveDirectory(place) => one(place.dir, Form::BeforeAndAfter),
        Request::Rename { from, to } => {
            [Some((from.dir, Form::BeforeAndAfter)), Some((to.dir, Form::BeforeAndAfter))]
        }
        Request::Link { file, place } => {
            [Some((file, Form::After)), Some((place.dir, Form::BeforeAndAfter))]
        }
    }
}
