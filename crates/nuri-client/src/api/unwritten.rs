//! The client's API: what would be lost if the client ended now. A command asks this when it wants
//! to unmount and the client cannot write its data out.

use std::sync::Arc;

use nuri_proto::id::Ino;

use crate::client::Client;
use crate::inode::Inode;

/// Directories above a file that are looked for.
const DEEPEST: usize = 256;

/// A file whose state, as programs see it, is not yet durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unwritten {
    pub ino: Ino,
    /// Not known to be durable. None where only its size or times are not told.
    pub bytes: u64,
    /// From the space's root on, as far as this client knows it; empty where it does not.
    pub path: Vec<u8>,
}

impl Client {
    /// The files whose state, as programs see it, is not yet durable: at most `most` of them, and
    /// their total number. Makes no call.
    pub fn unwritten(&self, most: usize) -> (Vec<Unwritten>, usize) {
        let mut files: Vec<_> = self.inodes.all().iter().filter_map(unwritten_of).collect();
        files.sort_by_key(|file| file.ino);
        let count = files.len();
        files.truncate(most);
        for file in &mut files {
            file.path = self.known_path(file.ino);
        }
        (files, count)
    }

    fn known_path(&self, ino: Ino) -> Vec<u8> {
        let mut path = Vec::new();
        let mut below = ino;
        for _ in 0..DEEPEST {
            let Some((parent, name)) = self.known_place(below) else {
                let unknown = if path.is_empty() { "" } else { "..." };
                return [unknown.as_bytes(), &path].concat();
            };
            path = [&b"/"[..], &name, &path].concat();
            if parent == Ino::ROOT {
                return path.split_off(1);
            }
            below = parent;
        }
        path
    }

    fn known_place(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        self.dentries.place_of(ino).or_else(|| self.journal.place_of(ino))
    }
}

fn unwritten_of(node: &Arc<Inode>) -> Option<Unwritten> {
    let state = node.state.lock();
    let file =
        state.file.as_ref().filter(|file| file.own.is_dirty() && !state.is_beyond_reach())?;
    let known = state.attr.map_or(0, |attr| attr.size);
    let bytes = match file.own.inline() {
        Some(bytes) => bytes.len() as u64,
        // What lies beyond the size that the server knows is nobody's.
        None => file.own.buffer.volatile().max(file.own.size().saturating_sub(known)),
    };
    Some(Unwritten { ino: node.ino, bytes, path: Vec::new() })
}
