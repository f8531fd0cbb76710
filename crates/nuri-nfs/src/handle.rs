//! Handles: the names by which clients keep files, for as long as they like.
//!
//! A handle names an export and an inode, and nothing of the server that gave it. So every server
//! of the space understands it, before and after any restart. Numbers of exports and inodes are
//! never used again, so a handle never means another file. A keyed checksum keeps clients from
//! making handles of files that they were not led to. The key is the space's own.

use hmac::{Hmac, Mac};
use nuri_proto::id::Ino;
use nuri_rules::broken;
use sha2::Sha256;

const VERSION: u8 = 1;
const LEN: usize = 32;
const CHECKED: usize = 20;

/// The space's key for handles.
#[derive(Clone, PartialEq, Eq)]
pub struct HandleKey(pub(crate) [u8; 32]);

/// A file of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    pub export: u64,
    pub ino: Ino,
}

impl HandleKey {
    /// The handle as clients keep it: version, export, inode, checksum.
    pub fn seal(&self, handle: Handle) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[0] = VERSION;
        bytes[4..12].copy_from_slice(&handle.export.to_be_bytes());
        bytes[12..CHECKED].copy_from_slice(&handle.ino.0.to_be_bytes());
        let sum = self.checksum(&bytes[..CHECKED]).finalize().into_bytes();
        bytes[CHECKED..].copy_from_slice(&sum[..LEN - CHECKED]);
        bytes
    }

    fn checksum(&self, bytes: &[u8]) -> Hmac<Sha256> {
        // A key of any length is one.
        let mut sum = <Hmac<Sha256> as Mac>::new_from_slice(&self.0)
            .unwrap_or_else(|_| unreachable!("a key of any length is one"));
        sum.update(bytes);
        sum
    }

    /// NFS-4: the handle that `bytes` are, if this space gave it.
    pub fn open(&self, bytes: &[u8]) -> Option<Handle> {
        let (checked, sum) = bytes.split_at_checked(CHECKED)?;
        if bytes.len() != LEN || checked[..4] != [VERSION, 0, 0, 0] {
            return None;
        }
        let is_own = self.checksum(checked).verify_truncated_left(sum).is_ok();
        if !is_own && !broken!("nfs_any_handle") {
            return None;
        }
        let number = |at: usize| checked[at..at + 8].try_into().map(u64::from_be_bytes);
        let (export, ino) = (number(4).ok()?, Ino(number(12).ok()?));
        // Volumes and the like are no files.
        (!ino.is_hidden()).then_some(Handle { export, ino })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: HandleKey = HandleKey([7; 32]);

    #[test]
    fn handles_are_understood_by_every_server_with_the_key() {
        let handle = Handle { export: 0xabcd_0123_4567_89ef, ino: Ino(77) };
        let bytes = KEY.seal(handle);
        assert_eq!(KEY.open(&bytes), Some(handle));
        assert_eq!(HandleKey([8; 32]).open(&bytes), None, "of another space");
    }

    #[test]
    fn guessed_and_cut_handles_are_refused() {
        let bytes = KEY.seal(Handle { export: 1, ino: Ino(77) });
        for at in 0..LEN {
            for bit in 0..8 {
                let mut other = bytes;
                other[at] ^= 1 << bit;
                assert_eq!(KEY.open(&other), None, "byte {at}, bit {bit}");
            }
            assert_eq!(KEY.open(&bytes[..at]), None);
        }
        assert_eq!(KEY.open(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(KEY.open(&KEY.seal(Handle { export: 1, ino: Ino::VOLUMES })), None);
    }
}
