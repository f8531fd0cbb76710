//! READ, WRITE and COMMIT.

use nuri_client::{Privileges, Sync};

use super::{Files, Node};
use crate::permission::{EXECUTE, READ, WRITE};
use crate::protocol::MOST_DATA;
use crate::protocol::attributes::{Wcc, write_after};
use crate::protocol::call::Stable;
use crate::protocol::status::NfsStatus;
use crate::rpc::xdr::Writer;

impl Files {
    fn check_is_file(&self, node: &Node) -> Result<(), NfsStatus> {
        match (node.is_file(), node.is_directory()) {
            (true, _) => Ok(()),
            (false, true) => Err(NfsStatus::ISDIR),
            (false, false) => Err(NfsStatus::INVAL),
        }
    }

    /// Bytes that are written elsewhere too are not counted as changes one by one: what was before
    /// is not told.
    fn after_data(&self, node: &Node) -> Wcc {
        let after = self.client.getattr(node.ino()).ok();
        Wcc { before: None, after: after.map(|attr| node.told(&attr)) }
    }

    pub(super) fn read(
        &self,
        node: &Node,
        (offset, count): (u64, u32),
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        self.check_is_file(node)?;
        // Who may run a program has it read by the client's kernel.
        if !node.caller.owns(&node.attr) && self.check(node, EXECUTE).is_err() {
            self.check(node, READ)?;
        }
        out.number(NfsStatus::OK.0);
        write_after(Some(&node.told(&node.attr)), out);
        let at = out.len();
        out.number(0);
        out.boolean(false);
        let most = count.min(MOST_DATA) as usize;
        let ino = node.ino();
        let len = out.filled(most, |room| self.client.read_direct(ino, offset, room))?;
        // The file may have grown since, but not while it was read to its end.
        let is_end = len < most || self.attr(ino)?.size <= offset + len as u64;
        out.put(at, len as u32);
        out.put(at + 4, is_end.into());
        self.client.note_access(ino);
        Ok(())
    }

    pub(super) fn write(
        &self,
        node: &Node,
        (offset, stable, data): (u64, Stable, &[u8]),
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        node.check_writable()?;
        self.check_is_file(node)?;
        self.check_data(node, WRITE)?;
        // What comes to an end while the bytes are taken is noticed by the next one.
        let verifier = self.opened.verifier();
        let file = self.opened.open(node.ino())?;
        self.opened.writes(&file);
        let is_root = node.caller.is_root();
        let taken = if is_root { Privileges::Capabilities } else { Privileges::All };
        let place = (node.ino(), file.fh);
        let wrote = self.client.write_past(place, offset, data, taken)?;
        self.opened.writes(&file);
        match stable {
            Stable::Later => {}
            Stable::Data => self.opened.sync(&file, Sync::Data)?,
            Stable::File => self.opened.sync(&file, Sync::All)?,
        }
        out.number(NfsStatus::OK.0);
        self.after_data(node).write(out);
        out.number(wrote.len as u32);
        out.number(stable as u32);
        out.fixed(&verifier);
        Ok(())
    }

    pub(super) fn commit(&self, node: &Node, out: &mut Writer) -> Result<(), NfsStatus> {
        self.check_is_file(node)?;
        let verifier = self.opened.commit(node.ino(), Sync::All)?;
        out.number(NfsStatus::OK.0);
        self.after_data(node).write(out);
        out.fixed(&verifier);
        Ok(())
    }
}
