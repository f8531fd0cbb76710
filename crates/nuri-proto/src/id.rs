//! Typed identifiers. Two ids of different kinds never mix.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A machine or process that runs services. Assigned by the authority, never reused.
    NodeId(u32)
}
id! {
    /// A directory or block device that stores chunks. Assigned by the authority, never reused.
    TargetId(u32)
}
id! {
    /// The ordered targets that hold one stripe.
    GroupId(u32)
}
id! {
    /// A named set of targets.
    PoolId(u32)
}
id! {
    /// A client's standing at the metadata server. Never reused.
    SessionId(u64)
}
id! {
    /// Names the data of one file generation. Never reused: truncation to zero takes a new one.
    ObjectId(u64)
}
id! {
    /// Counts membership changes of a group, ownership changes of a store, or versions of the map.
    Epoch(u64)
}
id! {
    /// Random per start of a process. Bytes acknowledged from memory carry it: a different boot id
    /// later means that those bytes are gone.
    BootId(u64)
}
id! {
    /// Random per emptying of a store: a wiped target comes back as another incarnation.
    Incarnation(u64)
}

/// Names a space. Random, chosen once at creation, checked on every connection and superblock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub [u8; 16]);

impl std::fmt::Display for ClusterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl std::str::FromStr for ClusterId {
    type Err = hex::FromHexError;

    fn from_str(text: &str) -> Result<ClusterId, hex::FromHexError> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes)?;
        Ok(ClusterId(bytes))
    }
}

/// An inode number. The upper 16 bits name the metadata shard, so that directories can later be
/// spread over several metadata servers without renumbering. The last shard's inodes are hidden:
/// no mount reaches them, by name or by number.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of the space.
    pub const ROOT: Ino = Ino(1);
    /// The directory of the volumes: each volume is a file in it.
    pub const VOLUMES: Ino = Ino::new(Ino::HIDDEN, 1);
    const HIDDEN: u16 = u16::MAX;
    const SHARD_SHIFT: u32 = 48;

    /// Inode `counter` of `shard`.
    pub const fn new(shard: u16, counter: u64) -> Ino {
        Ino((shard as u64) << Self::SHARD_SHIFT | (counter & ((1 << Self::SHARD_SHIFT) - 1)))
    }

    /// The metadata shard that owns this inode.
    pub const fn shard(self) -> u16 {
        (self.0 >> Self::SHARD_SHIFT) as u16
    }

    /// The inode's number within the shard. No two inodes of a space have the same number, whatever
    /// their shards.
    pub const fn counter(self) -> u64 {
        self.0 & ((1 << Self::SHARD_SHIFT) - 1)
    }

    /// Whether no mount may reach it.
    pub const fn is_hidden(self) -> bool {
        self.shard() == Self::HIDDEN
    }
}

impl std::fmt::Display for Ino {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one chunk: the part of one stripe that lies on one target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ChunkKey {
    pub object: ObjectId,
    /// Index into the layout's list of components; one for now.
    pub component: u16,
    /// Row number of the stripe within the object.
    pub stripe: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_and_counter_do_not_mix() {
        let ino = Ino::new(3, 77);
        assert_eq!((ino.shard(), ino.0 & 0xffff_ffff_ffff), (3, 77));
        assert_eq!(Ino::ROOT.shard(), 0);
        assert!(!Ino::ROOT.is_hidden() && Ino::VOLUMES.is_hidden());
        assert_eq!(Ino::new(u16::MAX, 77).counter(), 77);
    }
}
