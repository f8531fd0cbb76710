//! Changes of names that are made once although they are asked for twice, by two sessions.
//!
//! A client of NFS repeats a call that was not answered. The server that had the call may be gone
//! then, and another one has its address. What was done is remembered in the space, in the same
//! transaction as the change, with the address that the clients use.

use serde::{Deserialize, Serialize};

use super::call;
use super::meta::{Link, Make, Rename, Unlink};
use crate::id::Ino;

/// Which call of which client: a checksum of both.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct CallKey(pub [u8; 16]);

/// A change, and as what it is remembered. The answer is that of the change.
///
/// Where the call was done before, nothing is done again: `DONE_BEFORE`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangeOnce {
    pub done: Remember,
    pub change: NameChange,
}
call!(ChangeOnce => ChangeOnceReply);

/// Calls that one change may forget.
pub const MOST_FORGOTTEN: usize = 2;

/// As what a call is remembered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Remember {
    /// The file that stands for the address.
    pub place: Ino,
    pub key: CallKey,
    /// Grows with each call at the address.
    pub number: u64,
    /// Older ones that need not be remembered any more, at most [`MOST_FORGOTTEN`].
    pub forget: Vec<CallKey>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum NameChange {
    Make(Make),
    Link(Link),
    Unlink(Unlink),
    Rename(Rename),
}

macro_rules! changes_a_name {
    ($($name:ident)*) => {
        $(impl From<$name> for NameChange {
            fn from(change: $name) -> NameChange {
                NameChange::$name(change)
            }
        })*
    };
}
changes_a_name! { Make Link Unlink Rename }

/// The encoded answer of the change.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangeOnceReply {
    pub reply: Vec<u8>,
}

/// Calls that were done at an address, after this key, at most so many.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CallsDone {
    pub place: Ino,
    pub after: Option<CallKey>,
    pub max: u32,
}
call!(CallsDone => CallsDoneReply);

/// In the order of their keys. Fewer than were asked for: there are no more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallsDoneReply {
    pub calls: Vec<CallDone>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallDone {
    pub key: CallKey,
    pub number: u64,
    /// What it made.
    pub made: Option<Ino>,
}
