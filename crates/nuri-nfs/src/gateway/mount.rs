//! MOUNT version 3 (RFC 1813, 5): the way from a path to the first handle.

use std::sync::Arc;

use nuri_proto::id::Ino;

use super::Gateway;
use crate::export::Export;
use crate::handle::Handle;
use crate::protocol::LONGEST_PATH;
use crate::protocol::status::NfsStatus;
use crate::rpc::message::{self, AUTH_SYS, Call, Refusal};
use crate::rpc::xdr::{Reader, Writer};
use crate::server::Peer;

impl Gateway {
    pub(super) fn mount(
        &self,
        call: &Call,
        mut input: Reader<'_>,
        peer: &Peer,
    ) -> Result<Writer, Refusal> {
        let mut out = message::accepted(call.xid, Vec::new());
        let path = |input: &mut Reader<'_>| {
            let path = input.bytes(LONGEST_PATH).map_err(|_| Refusal::Arguments)?;
            Ok(String::from_utf8_lossy(path).into_owned())
        };
        match call.procedure {
            // Nobody keeps a list of who has mounted what: nothing could keep it true.
            0 | 4 => {}
            1 => self.mount_path(&path(&mut input)?, peer, &mut out),
            2 => out.boolean(false),
            3 => drop(path(&mut input)?),
            5 => self.tell_exports(&mut out),
            _ => return Err(Refusal::Procedure),
        }
        Ok(out)
    }

    fn mount_path(&self, path: &str, peer: &Peer, out: &mut Writer) {
        match self.first_handle(path, peer) {
            Ok((export, handle)) => {
                tracing::info!("nfs: {} mounts {}", peer.address, export.path);
                out.number(NfsStatus::OK.0);
                out.bytes_of(&handle);
                out.number(1);
                out.number(AUTH_SYS);
            }
            Err(status) => {
                let why = match status {
                    NfsStatus::ACCES => "it is none of the export's clients",
                    NfsStatus::NOENT => "it is not exported, or not there",
                    NfsStatus::NOTDIR => "it is no directory",
                    _ => "it could not be looked up",
                };
                tracing::warn!("nfs: {} may not mount {path:?}: {why}", peer.address);
                out.number(status.0);
            }
        }
    }

    /// The handle of a path: of an export, or of a directory below one.
    fn first_handle(&self, path: &str, peer: &Peer) -> Result<(Arc<Export>, [u8; 32]), NfsStatus> {
        let wanted = parts(path);
        let all = self.files.exports.all();
        // The one that is nearest to it.
        let covering = all.iter().filter(|known| wanted.starts_with(&parts(&known.export.path)));
        let nearest = covering.max_by_key(|known| parts(&known.export.path).len());
        let known = nearest.ok_or(NfsStatus::NOENT)?;
        if self.files.exports.client(&known.export, peer.address).is_none() {
            return Err(NfsStatus::ACCES);
        }
        let mut ino = known.root.ok_or(NfsStatus::NOENT)?;
        for part in &wanted[parts(&known.export.path).len()..] {
            ino = self.below(ino, part)?;
        }
        let handle = Handle { export: known.export.id, ino };
        Ok((known.export.clone(), self.files.key.seal(handle)))
    }

    fn below(&self, dir: Ino, name: &str) -> Result<Ino, NfsStatus> {
        if [".", ".."].contains(&name) {
            return Err(NfsStatus::INVAL);
        }
        let found = self.files.client.lookup(dir, name.as_bytes())?;
        let entry = found.ok_or(NfsStatus::NOENT)?;
        self.files.client.forget(entry.ino, 1);
        let is_directory = entry.attr.mode & 0o170_000 == 0o040_000;
        if is_directory { Ok(entry.ino) } else { Err(NfsStatus::NOTDIR) }
    }

    fn tell_exports(&self, out: &mut Writer) {
        for known in self.files.exports.all().iter() {
            out.boolean(true);
            out.bytes_of(known.export.path.as_bytes());
            for client in &known.export.clients {
                out.boolean(true);
                out.bytes_of(client.host.to_string().as_bytes());
            }
            out.boolean(false);
        }
        out.boolean(false);
    }
}

fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}
