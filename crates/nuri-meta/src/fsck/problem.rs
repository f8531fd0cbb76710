//! The kinds of faults that a stored namespace can have. Each kind is shown as a sentence for
//! people.

use std::fmt::{self, Display, Formatter};

use nuri_proto::id::Ino;

use crate::namespace::schema::{Entry, Family};

/// One fault of a stored namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Problem {
    /// A record that this program cannot read.
    Unreadable {
        key: Vec<u8>,
    },
    NoCounters,
    NoRoot,
    /// The directory of the volumes is gone, and there are some.
    NoVolumes,
    /// Inline data or an extended attribute without its inode.
    Stray {
        key: Vec<u8>,
    },

    EntryOfNothing {
        parent: Ino,
        name: Vec<u8>,
        cookie: u64,
    },
    EntryInNothing {
        parent: Ino,
        name: Vec<u8>,
    },
    EntryType {
        parent: Ino,
        name: Vec<u8>,
        kind: u8,
    },
    /// A directory has one name.
    SecondName {
        parent: Ino,
        name: Vec<u8>,
        cookie: u64,
        ino: Ino,
    },
    NoPosition {
        parent: Ino,
        name: Vec<u8>,
        entry: Entry,
    },
    PositionOfNothing {
        parent: Ino,
        cookie: u64,
        name: Vec<u8>,
    },
    /// A new name would get the position of another one.
    NextPosition {
        dir: Ino,
        highest: u64,
    },

    WrongNumber {
        ino: Ino,
        says: Ino,
    },
    WrongParent {
        dir: Ino,
        says: Ino,
        parent: Ino,
    },
    /// Neither a name nor a program keeps it.
    Nameless {
        ino: Ino,
    },
    OrphanWithNames {
        ino: Ino,
    },
    /// Directories that lie in one another.
    Unreachable {
        dir: Ino,
    },

    Links {
        ino: Ino,
        says: u32,
        counted: u32,
    },
    Entries {
        dir: Ino,
        says: u64,
        counted: u64,
    },
    Inline {
        ino: Ino,
        is_there: bool,
    },

    Counters {
        inodes: (u64, u64),
        allocated: (u64, u64),
    },
    /// A number would be given twice.
    NextNumber {
        what: &'static str,
        says: u64,
        highest: u64,
    },
}

impl Problem {
    /// The stage of the fault. Faults of a later stage may be only a consequence of faults of an
    /// earlier one.
    pub(super) fn stage(&self) -> u8 {
        match self {
            Problem::Unreadable { .. }
            | Problem::NoCounters
            | Problem::NoRoot
            | Problem::NoVolumes
            | Problem::Stray { .. } => 0,
            Problem::WrongNumber { .. }
            | Problem::EntryOfNothing { .. }
            | Problem::EntryInNothing { .. }
            | Problem::EntryType { .. }
            | Problem::SecondName { .. } => 1,
            Problem::PositionOfNothing { .. } | Problem::NextPosition { .. } => 2,
            Problem::NoPosition { .. } | Problem::WrongParent { .. } => 3,
            Problem::NextNumber { .. } => 4,
            Problem::OrphanWithNames { .. } | Problem::Nameless { .. } => 5,
            Problem::Unreachable { .. } => 6,
            Problem::Links { .. } | Problem::Entries { .. } | Problem::Inline { .. } => 7,
            Problem::Counters { .. } => 8,
        }
    }
}

/// What a family of records is, in words.
fn family_name(key: &[u8]) -> &'static str {
    let is = |family: Family| key.first() == Some(&(family as u8));
    let names = [
        (Family::Inode, "inode"),
        (Family::Inline, "inline data of inode"),
        (Family::Entry, "a name in directory"),
        (Family::Cookie, "a position in directory"),
        (Family::Xattr, "an attribute of inode"),
        (Family::Session, "session"),
        (Family::Slot, "a reply to session"),
        (Family::Garbage, "deleted object"),
        (Family::Done, "a call at the address of inode"),
    ];
    names.into_iter().find(|(family, _)| is(*family)).map_or("a record", |(_, name)| name)
}

fn number(key: &[u8]) -> u64 {
    crate::namespace::schema::key_id(key).unwrap_or(0)
}

impl Display for Problem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = |name: &[u8]| format!("{:?}", String::from_utf8_lossy(name));
        match self {
            Problem::Unreadable { key } => {
                write!(f, "{} {} cannot be read", family_name(key), number(key))
            }
            Problem::NoCounters => f.write_str("the counters cannot be read"),
            Problem::NoRoot => f.write_str("the root directory is gone"),
            Problem::NoVolumes => f.write_str("the directory of the volumes is gone"),
            Problem::Stray { key } => {
                write!(f, "{} {}, which is gone", family_name(key), number(key))
            }
            Problem::EntryOfNothing { parent, name, .. } => {
                write!(f, "entry {} of {parent} points to nothing", text(name))
            }
            Problem::EntryInNothing { parent, name } => {
                write!(f, "entry {} is in {parent}, which is no directory", text(name))
            }
            Problem::EntryType { parent, name, .. } => {
                write!(f, "entry {} of {parent} has another type", text(name))
            }
            Problem::SecondName { parent, name, ino, .. } => {
                write!(f, "entry {} of {parent} is a second name of directory {ino}", text(name))
            }
            Problem::NoPosition { parent, name, .. } => {
                write!(f, "entry {} of {parent} has no position", text(name))
            }
            Problem::PositionOfNothing { parent, cookie, name } => {
                write!(f, "position {cookie} in {parent}, of {}, has no entry", text(name))
            }
            Problem::NextPosition { dir, highest } => {
                write!(f, "directory {dir} would give position {highest} twice")
            }
            Problem::WrongNumber { ino, says } => write!(f, "inode {ino} calls itself {says}"),
            Problem::WrongParent { dir, says, parent } => {
                write!(f, "directory {dir} says that it is in {says}, and is in {parent}")
            }
            Problem::Nameless { ino } => {
                write!(f, "inode {ino} has no name, and is no removed file")
            }
            Problem::OrphanWithNames { ino } => {
                write!(f, "inode {ino} is kept as a removed file, and has a name or links")
            }
            Problem::Unreachable { dir } => write!(f, "directory {dir} is not below the root"),
            Problem::Links { ino, says, counted } => {
                write!(f, "inode {ino} says {says} links, has {counted}")
            }
            Problem::Entries { dir, says, counted } => {
                write!(f, "directory {dir} says {says} entries, has {counted}")
            }
            Problem::Inline { ino, .. } => {
                write!(f, "file {ino} disagrees with its inline data")
            }
            Problem::Counters { inodes, allocated } => write!(
                f,
                "counters say {} inodes and {} bytes, counted {} and {}",
                inodes.0, allocated.0, inodes.1, allocated.1
            ),
            Problem::NextNumber { what, says, highest } => {
                write!(f, "the last {what} given is {says}, and there is {highest}")
            }
        }
    }
}
