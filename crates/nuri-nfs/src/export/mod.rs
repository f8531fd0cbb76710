//! Exports: directories of the space that clients may mount, with their clients and the clients'
//! rights.

mod client;
mod store;
mod table;

use serde::{Deserialize, Serialize};

pub use client::{ClientError, Host, HostError};
pub(crate) use store::normal;
pub use store::{ExportError, Store};
pub use table::Table;

use crate::permission::Caller;
use crate::rpc::message::Credentials;

/// A directory that is exported.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Export {
    /// Never used again: handles carry it.
    pub id: u64,
    /// In the space, from its root: `/home`.
    pub path: String,
    /// The first that fits a client counts.
    pub clients: Vec<Client>,
}

/// Which clients, and what they may.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Client {
    pub host: Host,
    pub access: Access,
    pub squash: Squash,
    pub anonymous: Anonymous,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    Read,
    Write,
}

/// Which users become the anonymous one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Squash {
    None,
    Root,
    All,
}

/// Whose name those get who have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Anonymous {
    pub uid: u32,
    pub gid: u32,
}

impl Anonymous {
    /// The user `nobody`.
    pub const NOBODY: Anonymous = Anonymous { uid: 65_534, gid: 65_534 };
}

impl Client {
    /// NFS-5: who calls, as far as the space is concerned.
    pub fn squash(&self, credentials: &Credentials) -> Caller {
        let Anonymous { uid, gid } = self.anonymous;
        let nobody = Caller { uid, gid, groups: Vec::new() };
        let Credentials::Sys { uid: said, gid: said_group, groups } = credentials else {
            return nobody;
        };
        match self.squash {
            Squash::All => nobody,
            Squash::Root if *said == 0 => nobody,
            Squash::None => Caller { uid: *said, gid: *said_group, groups: groups.clone() },
            Squash::Root => {
                let plain = |group: u32| if group == 0 { gid } else { group };
                let groups = groups.iter().map(|group| plain(*group)).collect();
                Caller { uid: *said, gid: plain(*said_group), groups }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squashed_users_become_the_anonymous_one() {
        let client = |squash| Client {
            host: "*".parse().unwrap(),
            access: Access::Write,
            squash,
            anonymous: Anonymous { uid: 99, gid: 98 },
        };
        let says = |uid, gid, groups: &[u32]| Credentials::Sys { uid, gid, groups: groups.into() };
        let is = |uid, gid, groups: &[u32]| Caller { uid, gid, groups: groups.into() };
        let root = says(0, 0, &[0, 7]);
        assert_eq!(client(Squash::None).squash(&root), is(0, 0, &[0, 7]));
        assert_eq!(client(Squash::Root).squash(&root), is(99, 98, &[]));
        assert_eq!(client(Squash::Root).squash(&says(5, 0, &[0, 7])), is(5, 98, &[98, 7]));
        assert_eq!(client(Squash::All).squash(&says(5, 6, &[7])), is(99, 98, &[]));
        assert_eq!(client(Squash::None).squash(&Credentials::Nobody), is(99, 98, &[]));
    }
}
