//! The record in a volume that says which server owns it.
//!
//! The owner is the server that has locked the volume. It records the address where other servers
//! reach it, and a secret without which its door opens nothing. Only members of the space can read
//! the record. The record may be old. Then no server listens there any more, or the server there
//! does not know the secret.

use nuri_client::Client;
use nuri_proto::Status;
use nuri_proto::id::Ino;

use crate::peer::Token;

/// Of the volume's inode.
const MARK: &[u8] = b"nuri.owner";

/// Where the owner is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub(super) address: String,
    pub(super) token: Token,
}

impl Owner {
    /// `None` where the volume never had one.
    pub(super) fn read(client: &Client, ino: Ino) -> Result<Option<Owner>, Status> {
        match client.xattr_get(ino, MARK) {
            Err(Status::NODATA) => Ok(None),
            found => Ok(Owner::parse(&String::from_utf8_lossy(&found?))),
        }
    }

    pub(super) fn write(&self, client: &Client, ino: Ino) -> Result<(), Status> {
        client.mark_hidden(ino, MARK, self.shown().as_bytes())
    }

    /// Of the address.
    pub(super) fn host(&self) -> &str {
        self.address.rsplit_once(':').map_or(&self.address, |(host, _)| host)
    }

    fn shown(&self) -> String {
        format!("{} {}", self.address, self.token)
    }

    fn parse(text: &str) -> Option<Owner> {
        let (address, token) = text.split_once(' ')?;
        Some(Owner { address: address.into(), token: token.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_as_it_was_written() {
        let owner = Owner { address: "[::1]:7".into(), token: Token::random().unwrap() };
        assert_eq!(Owner::parse(&owner.shown()), Some(owner));
        for wrong in ["", "a:1", "a:1 x", "a:1 "] {
            assert_eq!(Owner::parse(wrong), None, "{wrong}");
        }
    }
}
