//! Volumes by name: creates, lists, resizes, renames and removes them, and takes one for a server.

use std::sync::Arc;

use nuri_client::{Access, Client, LockPlace};
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::layout::{LayoutPolicy, Shape};
use nuri_proto::limit::MAX_FILE;
use nuri_proto::op::lock::{LockClass, LockMode};
use nuri_proto::op::meta::{Attr, LayoutReply, MakeUnnamed, RemoveKind, RenameMode, SetAttr};
use nuri_proto::range_map::Span;

use super::device::Volume;
use super::memory;
use super::owner::Owner;
use crate::export::About;
use crate::order::Order;

/// Sizes are multiples of this, and at least so large.
const UNIT: u64 = 4096;
const SMALLEST: u64 = 1 << 20;
const LONGEST_NAME: usize = 128;

/// Why something cannot be done with a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error(
        "{0:?} cannot be a volume's name: up to {LONGEST_NAME} letters, digits, dots, dashes and \
         underscores, the first a letter or digit"
    )]
    Name(String),
    #[error("there is a volume {0} already")]
    Exists(String),
    #[error("there is no volume {name}; {}", crate::export::listed(.there))]
    Unknown { name: String, there: Vec<String> },
    #[error(
        "a volume's size is a multiple of 4096 bytes, at least 1 MiB and at most {MAX_FILE} bytes"
    )]
    Size,
    #[error("{asked} bytes are more than the whole space has, which is {room} bytes")]
    Room { asked: u64, room: u64 },
    #[error("it would lose what lies beyond {0} bytes: say --force where that is nothing")]
    Shrinks(u64),
    #[error("volume {0} is in use: stop its server first")]
    InUse(String),
    #[error("there are not targets enough for shape {0}: nuri target list")]
    Shape(Shape),
    #[error("no secret for other servers: {0}")]
    Token(std::io::Error),
    #[error("{what}: {status}")]
    Server { what: &'static str, status: Status },
}

/// Whether a volume may become smaller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shrink {
    Refused,
    Forced,
}

/// A volume as it is listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeView {
    pub name: String,
    pub size: u64,
    /// Bytes that it costs, copies and parity not counted.
    pub used: u64,
    /// None until it has data.
    pub shape: Option<Shape>,
    pub in_use: bool,
    /// The machine of the server that owns it, while it is in use.
    pub owner: Option<String>,
    /// Answered bytes are known to be lost: no flush succeeds until that is accepted.
    pub is_doubtful: bool,
}

/// The volumes of a space.
pub struct Catalog {
    client: Arc<Client>,
}

pub(super) fn at(what: &'static str) -> impl Fn(Status) -> VolumeError {
    move |status| VolumeError::Server { what, status }
}

fn check_name(name: &str) -> Result<(), VolumeError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_name = begins && name.chars().all(is_plain) && name.len() <= LONGEST_NAME;
    if is_name { Ok(()) } else { Err(VolumeError::Name(name.into())) }
}

impl Catalog {
    pub fn new(client: Arc<Client>) -> Catalog {
        Catalog { client }
    }

    /// Makes a volume. It is there as a whole, or not at all.
    ///
    /// # Errors
    /// Why it is not.
    pub fn create(&self, name: &str, size: u64, shape: Option<Shape>) -> Result<(), VolumeError> {
        check_name(name)?;
        self.check_size(size)?;
        let make = MakeUnnamed { parent: Ino::VOLUMES, mode: 0o600, umask: 0, uid: 0, gid: 0 };
        let made = self.client.make_unnamed(&make, Access::Both);
        let (entry, fh) = made.map_err(at("no volume could be made"))?;
        let ino = entry.ino;
        let outcome = self.make_ready(ino, size, shape).and_then(|()| {
            let link = self.client.link(ino, Ino::VOLUMES, name.as_bytes());
            link.map(|_| self.client.forget(ino, 1)).map_err(|status| match status {
                Status::EXIST => VolumeError::Exists(name.into()),
                status => at("it got no name")(status),
            })
        });
        self.client.release(fh);
        self.client.forget(ino, 1);
        outcome.map(drop)
    }

    fn make_ready(&self, ino: Ino, size: u64, shape: Option<Shape>) -> Result<(), VolumeError> {
        if let Some(shape) = shape {
            let policy = LayoutPolicy { shape, ..LayoutPolicy::default() };
            self.client.set_layout(ino, policy).map_err(|status| match status {
                Status::INVAL => VolumeError::Shape(shape),
                status => at("it got no layout")(status),
            })?;
        }
        self.set_size(ino, size)
    }

    fn set_size(&self, ino: Ino, size: u64) -> Result<(), VolumeError> {
        let change = SetAttr { ino, size: Some(size), ..SetAttr::default() };
        let set = self.client.setattr_durably(&change);
        set.map(drop).map_err(at("its size could not be set"))
    }

    fn check_size(&self, size: u64) -> Result<(), VolumeError> {
        if size < SMALLEST || !size.is_multiple_of(UNIT) {
            return Err(VolumeError::Size);
        }
        let (room, _, _) = self.client.statfs().map_err(at("no answer of the space"))?;
        let room = room.min(MAX_FILE);
        if size > room { Err(VolumeError::Room { asked: size, room }) } else { Ok(()) }
    }

    /// Names of all volumes, sorted.
    ///
    /// # Errors
    /// The server's.
    pub fn names(&self) -> Result<Vec<String>, VolumeError> {
        let all = self.client.all_names(Ino::VOLUMES);
        let all = all.map_err(at("the volumes could not be listed"))?;
        // Beside them are other things that the space keeps for itself.
        let name = |name: Vec<u8>| String::from_utf8(name).ok();
        let volumes = all.into_iter().filter_map(name).filter(|name| check_name(name).is_ok());
        let mut names: Vec<String> = volumes.collect();
        names.sort();
        Ok(names)
    }

    /// All volumes, by name.
    ///
    /// # Errors
    /// The server's.
    pub fn list(&self) -> Result<Vec<VolumeView>, VolumeError> {
        let view = |name: String| match self.with(&name, |attr| self.view(&name, attr)) {
            // It was removed meanwhile.
            Err(VolumeError::Unknown { .. }) => None,
            view => Some(view),
        };
        self.names()?.into_iter().filter_map(view).collect()
    }

    fn view(&self, name: &str, attr: &Attr) -> Result<VolumeView, VolumeError> {
        let shape = match self.client.layout(attr.ino).map_err(at("no layout"))? {
            LayoutReply::File(_, layout, _) => layout.components.first().map(|c| c.shape),
            LayoutReply::Directory(_) => None,
        };
        let (size, used) = (attr.size, attr.allocated);
        let in_use = !self.is_free(attr.ino)?;
        let is_doubtful =
            memory::is_doubtful(&self.client, attr.ino).map_err(at("its mark is not known"))?;
        let owner = if in_use { self.owner(attr.ino)? } else { None };
        let (name, owner) = (name.into(), owner.map(|owner| owner.host().to_owned()));
        Ok(VolumeView { name, size, used, shape, in_use, owner, is_doubtful })
    }

    /// Finds a volume and does something with it.
    fn with<T>(
        &self,
        name: &str,
        act: impl FnOnce(&Attr) -> Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        check_name(name)?;
        let found = match self.client.lookup(Ino::VOLUMES, name.as_bytes()) {
            Err(Status::STALE) => None,
            found => found.map_err(at("the volume could not be looked up"))?,
        };
        let Some(entry) = found else {
            return Err(VolumeError::Unknown { name: name.into(), there: self.names()? });
        };
        let outcome = act(&entry.attr);
        self.client.forget(entry.ino, 1);
        outcome
    }

    /// Changes a volume that nobody serves.
    fn change<T>(
        &self,
        name: &str,
        act: impl FnOnce(&Attr) -> Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        self.with(name, |attr| {
            let fh = self.client.open(attr.ino, Access::Both).map_err(at("no access"))?;
            let place = place(attr.ino, fh);
            let taken = match self.client.locks().lock(&place, Some(LockMode::Exclusive)) {
                Err(Status::AGAIN) => Err(VolumeError::InUse(name.into())),
                taken => taken.map_err(at("it could not be locked")),
            };
            let outcome = taken.and_then(|()| act(attr));
            self.client.locks().release_locks(fh);
            self.client.release(fh);
            outcome
        })
    }

    fn is_free(&self, ino: Ino) -> Result<bool, VolumeError> {
        let fh = self.client.open(ino, Access::Read).map_err(at("no access"))?;
        let test = self.client.locks().lock_test(&place(ino, fh), LockMode::Exclusive);
        self.client.release(fh);
        test.map(|holder| holder.is_none()).map_err(at("its lock could not be looked at"))
    }

    /// Gives a volume another size. Who uses it sees that when it connects again.
    ///
    /// # Errors
    /// Why it keeps its size.
    pub fn resize(&self, name: &str, size: u64, shrink: Shrink) -> Result<(), VolumeError> {
        self.check_size(size)?;
        // Beside who serves it a volume may grow: nobody reads there yet.
        self.with(name, |attr| match size.cmp(&attr.size) {
            std::cmp::Ordering::Less if shrink == Shrink::Refused => {
                Err(VolumeError::Shrinks(size))
            }
            std::cmp::Ordering::Less => self.change(name, |attr| self.set_size(attr.ino, size)),
            _ => self.set_size(attr.ino, size),
        })
    }

    /// Removes a volume with all that it holds.
    ///
    /// # Errors
    /// Why it stays.
    pub fn remove(&self, name: &str) -> Result<(), VolumeError> {
        self.change(name, |_| {
            let removed = self.client.remove(Ino::VOLUMES, name.as_bytes(), RemoveKind::File);
            removed.map_err(at("it could not be removed"))
        })
    }

    /// Lets a volume be used again of which answered bytes are lost.
    ///
    /// # Errors
    /// Why that cannot be.
    pub fn accept_loss(&self, name: &str) -> Result<(), VolumeError> {
        self.change(name, |attr| {
            memory::accept_loss(&self.client, attr.ino).map_err(at("its mark stays"))
        })
    }

    /// Gives a volume another name.
    ///
    /// # Errors
    /// Why it keeps its name.
    pub fn rename(&self, name: &str, new: &str) -> Result<(), VolumeError> {
        check_name(new)?;
        self.change(name, |_| {
            let (from, to) = ((Ino::VOLUMES, name.as_bytes()), (Ino::VOLUMES, new.as_bytes()));
            let moved = self.client.rename(from, to, RenameMode::NoReplace);
            moved.map(drop).map_err(|status| match status {
                Status::EXIST => VolumeError::Exists(new.into()),
                status => at("it could not be renamed")(status),
            })
        })
    }

    /// What a volume is.
    ///
    /// # Errors
    /// Where there is none of the name.
    pub(super) fn find(&self, name: &str) -> Result<Attr, VolumeError> {
        self.with(name, |attr| Ok(*attr))
    }

    /// What clients are told of a volume.
    ///
    /// # Errors
    /// Where there is none of the name.
    pub fn about(&self, name: &str) -> Result<About, VolumeError> {
        let size = self.find(name)?.size;
        Ok(About {
            name: name.into(),
            description: "a volume of a Nuri space".into(),
            size,
            read_only: false,
            block: 1,
            preferred_block: 64 << 10,
        })
    }

    /// The server that owns the volume, or did.
    pub(super) fn owner(&self, ino: Ino) -> Result<Option<Owner>, VolumeError> {
        Owner::read(&self.client, ino).map_err(at("its owner is not known"))
    }

    pub(super) fn set_owner(&self, ino: Ino, owner: &Owner) -> Result<(), VolumeError> {
        owner.write(&self.client, ino).map_err(at("its owner could not be told"))
    }

    /// Locks the volume, so that this server owns it; `None` where another one does.
    pub(super) fn take(
        &self,
        name: &str,
        order: &Arc<Order>,
    ) -> Result<Option<Volume>, VolumeError> {
        let found = self.find(name)?;
        let fh = self.client.open(found.ino, Access::Both).map_err(at("no access"))?;
        let place = place(found.ino, fh);
        let taken = match self.client.locks().lock(&place, Some(LockMode::Exclusive)) {
            Err(Status::AGAIN) => Ok(None),
            Err(status) => Err(at("it could not be locked")(status)),
            Ok(()) => self.taken(name, (found.ino, fh), order),
        };
        if !matches!(taken, Ok(Some(_))) {
            self.client.locks().release_locks(fh);
            self.client.release(fh);
        }
        taken
    }

    fn taken(
        &self,
        name: &str,
        (ino, fh): (Ino, u64),
        order: &Arc<Order>,
    ) -> Result<Option<Volume>, VolumeError> {
        // Whoever had the lock may have changed it, or put another one in its place.
        let now = self.about(name)?;
        if self.find(name)?.ino != ino {
            return Ok(None);
        }
        let volume = Volume::new(self.client.clone(), (ino, fh), (now, order.clone()));
        volume.map(Some).map_err(at("what its targets hold is not known"))
    }
}

fn place(ino: Ino, fh: u64) -> LockPlace {
    let (class, owner, pid) = (LockClass::Range, fh, std::process::id());
    LockPlace { ino, fh, class, owner, span: Span::ALL, pid }
}
