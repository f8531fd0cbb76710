//! The keys and records of the metadata store. Their byte tables are in `docs/disk-format.md`.
//!
//! A record begins with the number of its format. A record with an unknown number is refused, never
//! guessed.

use nuri_proto::Status;
use nuri_proto::change::{S_IFDIR, S_IFMT};
use nuri_proto::id::{Ino, ObjectId, SessionId};
use nuri_proto::layout::{Layout, LayoutPolicy};
use nuri_proto::limit::MAX_INLINE;
use nuri_proto::op::meta::{Attr, FileRecord, Time};
use nuri_proto::op::once::CallKey;
use nuri_rules::broken;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Type bits of a mode.
/// Record of an orphan that never had a name, and may still be given one.
pub const NAMELESS: &[u8] = &[1];

const RECORD_FORMAT: u8 = 1;

/// First byte of each family of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Family {
    Inode = b'I',
    Inline = b'D',
    /// (parent, name) -> entry
    Entry = b'E',
    /// (parent, cookie) -> name and inode, for stable directory positions
    Cookie = b'C',
    Xattr = b'X',
    Orphan = b'O',
    Session = b'S',
    /// (session, slot) -> last sequence and reply
    Slot = b'R',
    Counters = b'N',
    /// Objects whose data is to be deleted from the targets.
    Garbage = b'G',
    /// (file that stands for an address, call) -> what was done
    Done = b'M',
}

fn key(family: Family, id: u64) -> Vec<u8> {
    let mut out = vec![family as u8];
    out.extend_from_slice(&id.to_be_bytes());
    out
}

fn key_with(family: Family, id: u64, tail: &[u8]) -> Vec<u8> {
    let mut out = key(family, id);
    out.extend_from_slice(tail);
    out
}

pub fn inode_key(ino: Ino) -> Vec<u8> {
    key(Family::Inode, ino.0)
}
pub fn inline_key(ino: Ino) -> Vec<u8> {
    key(Family::Inline, ino.0)
}
pub fn entry_key(parent: Ino, name: &[u8]) -> Vec<u8> {
    key_with(Family::Entry, parent.0, name)
}
pub fn cookie_prefix(parent: Ino) -> Vec<u8> {
    key(Family::Cookie, parent.0)
}
pub fn cookie_key(parent: Ino, cookie: u64) -> Vec<u8> {
    key_with(Family::Cookie, parent.0, &cookie.to_be_bytes())
}
pub fn xattr_key(ino: Ino, name: &[u8]) -> Vec<u8> {
    key_with(Family::Xattr, ino.0, name)
}
pub fn xattr_prefix(ino: Ino) -> Vec<u8> {
    key(Family::Xattr, ino.0)
}
pub fn orphan_key(ino: Ino) -> Vec<u8> {
    key(Family::Orphan, ino.0)
}
pub fn session_key(session: SessionId) -> Vec<u8> {
    key(Family::Session, session.0)
}
pub fn slot_key(session: SessionId, slot: u32) -> Vec<u8> {
    key_with(Family::Slot, session.0, &slot.to_be_bytes())
}
pub fn slot_prefix(session: SessionId) -> Vec<u8> {
    key(Family::Slot, session.0)
}
pub fn garbage_key(object: ObjectId) -> Vec<u8> {
    key(Family::Garbage, object.0)
}
pub fn done_key(place: Ino, key: CallKey) -> Vec<u8> {
    key_with(Family::Done, place.0, &key.0)
}
pub fn done_prefix(place: Ino) -> Vec<u8> {
    key(Family::Done, place.0)
}
pub fn counters_key() -> Vec<u8> {
    vec![Family::Counters as u8]
}
pub fn family_prefix(family: Family) -> Vec<u8> {
    vec![family as u8]
}

/// The number after the family byte.
pub fn key_id(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(1..9)?.try_into().ok()?))
}

/// What follows the number: a name, or a cookie.
pub fn key_tail(key: &[u8]) -> &[u8] {
    key.get(9..).unwrap_or_default()
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inode {
    pub attr: Attr,
    /// Tree that quotas and snapshots will count by; 0 is the whole space.
    pub tree: u32,
    pub body: Body,
}

/// First cookie of a directory: 1 and 2 are `.` and `..`.
pub const FIRST_COOKIE: u64 = 3;

impl Inode {
    /// A directory of root that has no name yet; a space begins with one.
    pub fn new_directory(ino: Ino, parent: Ino, mode: u32, now: Time) -> Inode {
        let attr = Attr { ino, ..Attr::default().made(S_IFDIR | mode, (0, 0), now) };
        let body = Directory { parent, next_cookie: FIRST_COOKIE, policy: None };
        Inode { attr, tree: 0, body: Body::Directory(body) }
    }
}

/// The content of an inode, by its kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    File(File),
    Directory(Directory),
    Symlink(Vec<u8>),
    Special,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct File {
    pub object: ObjectId,
    pub layout: Layout,
    pub truncate_version: u32,
    /// The data is in the inline record.
    pub inline: bool,
    /// The targets may hold data of the object.
    pub on_targets: bool,
    /// An unfinished truncation: data from here on is to be punched before the file may grow.
    pub punch_from: Option<u64>,
    /// A writer may have pushed data beyond this size without publishing it: whoever writes next
    /// punches from here first.
    pub grown_from: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Directory {
    pub parent: Ino,
    pub next_cookie: u64,
    pub policy: Option<LayoutPolicy>,
}

/// A directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub ino: Ino,
    pub cookie: u64,
    /// Type bits of the mode, shifted down by 12.
    pub kind: u8,
}

/// A directory entry by its position.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CookieEntry {
    pub ino: Ino,
    pub kind: u8,
    pub name: Vec<u8>,
}

/// A session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionRecord {
    pub client: String,
}

/// The last outcome of a reply slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlotRecord {
    pub sequence: u64,
    pub status: u32,
    pub reply: Vec<u8>,
}

/// A call that must not be done again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DoneRecord {
    pub number: u64,
    pub made: Option<Ino>,
}

/// An object to delete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GarbageRecord {
    pub layout: Layout,
}

/// Counters of the shard, written with every batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    pub next_ino: u64,
    pub next_object: u64,
    pub next_session: u64,
    pub inodes: u64,
    /// Bytes that files hold, as published.
    pub allocated: u64,
    /// Latest stamp given: stamps never go back, whatever the clock does.
    pub stamp: Time,
}

impl Inode {
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    pub fn kind(&self) -> u8 {
        ((self.attr.mode & S_IFMT) >> 12) as u8
    }

    pub fn as_dir(&self) -> Result<&Directory, Status> {
        match &self.body {
            Body::Directory(dir) => Ok(dir),
            _ => Err(Status::NOTDIR),
        }
    }

    pub fn as_dir_mut(&mut self) -> Result<&mut Directory, Status> {
        match &mut self.body {
            Body::Directory(dir) => Ok(dir),
            _ => Err(Status::NOTDIR),
        }
    }

    pub fn as_file(&self) -> Result<&File, Status> {
        match &self.body {
            Body::File(file) => Ok(file),
            Body::Directory(_) => Err(Status::ISDIR),
            _ => Err(Status::INVAL),
        }
    }

    pub fn as_file_mut(&mut self) -> Result<&mut File, Status> {
        match &mut self.body {
            Body::File(file) => Ok(file),
            Body::Directory(_) => Err(Status::ISDIR),
            _ => Err(Status::INVAL),
        }
    }
}

impl File {
    /// Whether the targets may hold bytes of the object, published or not. Bytes below the size are
    /// pushed without a call to the server. That never happens for a size that fits into the inline
    /// record.
    pub fn may_have_data(&self, size: u64) -> bool {
        let is_large = size > MAX_INLINE && !broken!("sparse_has_nothing");
        let is_marked = self.grown_from.is_some() || self.punch_from.is_some();
        self.on_targets || is_marked || is_large
    }

    /// The record that a client needs to reach the data.
    pub fn record(&self, inline: Option<Vec<u8>>) -> FileRecord {
        FileRecord {
            object: self.object,
            layout: self.layout.clone(),
            truncate_version: self.truncate_version,
            inline,
            punch_from: self.punch_from.into_iter().chain(self.grown_from).min(),
        }
    }
}

/// Encodes a record.
///
/// # Errors
/// [`Status::IO`] where the value cannot be encoded, which does not happen with our values.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Status> {
    postcard::to_extend(value, vec![RECORD_FORMAT]).map_err(|_| Status::IO)
}

/// Decodes a record.
///
/// # Errors
/// [`Status::CORRUPT`] for an unknown format or broken bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Status> {
    match bytes.split_first() {
        Some((&RECORD_FORMAT, rest)) => postcard::from_bytes(rest).map_err(|_| Status::CORRUPT),
        _ => Err(Status::CORRUPT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_by_directory_then_position() {
        assert!(cookie_key(Ino(1), 9) < cookie_key(Ino(1), 10));
        assert!(cookie_key(Ino(1), u64::MAX) < cookie_key(Ino(2), 0));
        assert_eq!(key_id(&entry_key(Ino(7), b"x")), Some(7));
        assert_eq!(key_tail(&entry_key(Ino(7), b"x")), b"x");
    }

    #[test]
    fn unknown_record_formats_are_refused() {
        let mut bytes = encode(&Entry { ino: Ino(1), cookie: 2, kind: 4 }).unwrap();
        bytes[0] = 9;
        assert_eq!(decode::<Entry>(&bytes), Err(Status::CORRUPT));
    }
}
