//! FSSTAT, FSINFO and PATHCONF: the properties of the space.

use nuri_proto::limit::{MAX_FILE, MAX_LINKS};

use super::{Files, Node};
use crate::protocol::attributes::write_after;
use crate::protocol::status::NfsStatus;
use crate::protocol::{MOST_DATA, MOST_ENTRIES};
use crate::rpc::xdr::Writer;

const BLOCK: u64 = 4096;
/// Hard links, symbolic links, the same everywhere, times can be set.
const PROPERTIES: u32 = 1 | 2 | 8 | 16;
const LONGEST_NAME: u32 = 255;

impl Files {
    pub(super) fn statistics(&self, node: &Node, out: &mut Writer) -> Result<(), NfsStatus> {
        let (size, used, inodes) = self.client.statfs()?;
        let free = size.saturating_sub(used);
        // Inodes are bounded by space alone; at least a name and a record each.
        let more = (free / BLOCK).saturating_mul(4);
        out.number(NfsStatus::OK.0);
        write_after(Some(&node.told(&node.attr)), out);
        [size, free, free, inodes + more, more, more].into_iter().for_each(|value| out.long(value));
        // It may change at any time.
        out.number(0);
        Ok(())
    }

    pub(super) fn information(&self, node: &Node, out: &mut Writer) -> Result<(), NfsStatus> {
        out.number(NfsStatus::OK.0);
        write_after(Some(&node.told(&node.attr)), out);
        // Most and preferred bytes of a READ, in multiples of so many; the same of a WRITE.
        for _ in 0..2 {
            [MOST_DATA, MOST_DATA, BLOCK as u32].into_iter().for_each(|value| out.number(value));
        }
        out.number(MOST_ENTRIES.min(64 << 10));
        out.long(MAX_FILE);
        // Times are kept to the nanosecond.
        out.number(0);
        out.number(1);
        out.number(PROPERTIES);
        Ok(())
    }

    pub(super) fn path_limits(&self, node: &Node, out: &mut Writer) -> Result<(), NfsStatus> {
        out.number(NfsStatus::OK.0);
        write_after(Some(&node.told(&node.attr)), out);
        out.number(MAX_LINKS);
        out.number(LONGEST_NAME);
        // Too long names are refused, owners given away by root alone, letters kept as they are.
        [true, true, false, true].into_iter().for_each(|value| out.boolean(value));
        Ok(())
    }
}
