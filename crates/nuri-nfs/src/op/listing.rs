//! READDIR and READDIRPLUS. Cookies are positions that stay valid while names come and go.

use nuri_client::ListingEntry;
use nuri_proto::op::meta::WithAttrs;

use super::{Files, Node};
use crate::permission::READ;
use crate::protocol::MOST_ENTRIES;
use crate::protocol::attributes::write_after;
use crate::protocol::call::Listing;
use crate::protocol::status::NfsStatus;
use crate::rpc::xdr::Writer;

/// Positions of the two names that every directory has. Those of others are larger.
const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;
/// Around the entries of an answer: status, attributes, verifier, the end.
const AROUND: usize = 4 + 88 + 8 + 8;
/// An entry with the shortest name, without attributes.
const SHORTEST: u32 = 32;
/// Names asked for at once.
const MOST_NAMES: u32 = 4096;

/// What one answer has room for.
struct Room {
    whole: usize,
    names: usize,
}

impl Room {
    fn of(listing: &Listing<'_>) -> Result<Room, NfsStatus> {
        let whole = (listing.most.min(MOST_ENTRIES) as usize).saturating_sub(AROUND);
        let names = listing.names.max(512).min(listing.most) as usize;
        if whole == 0 { Err(NfsStatus::TOOSMALL) } else { Ok(Room { whole, names }) }
    }
}

/// Whether entries come with what READDIRPLUS adds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plus {
    No,
    Yes,
}

impl Files {
    pub(super) fn list(
        &self,
        dir: &Node,
        listing: Listing<'_>,
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        self.list_entries(dir, listing, Plus::No, out)
    }

    pub(super) fn list_with_attributes(
        &self,
        dir: &Node,
        listing: Listing<'_>,
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        self.list_entries(dir, listing, Plus::Yes, out)
    }

    fn list_entries(
        &self,
        dir: &Node,
        listing: Listing<'_>,
        plus: Plus,
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        dir.check_directory()?;
        self.check(dir, READ)?;
        let room = Room::of(&listing)?;
        let (entries, is_end) = self.entries(dir, &listing, plus)?;
        out.number(NfsStatus::OK.0);
        write_after(Some(&dir.told(&dir.attr)), out);
        out.long(0);
        let (start, mut names, mut count) = (out.len(), 0, 0);
        for entry in &entries {
            let at = out.len();
            out.boolean(true);
            self.write_entry(dir, entry, plus, out);
            names += 24 + entry.name.len();
            let fits = out.len() - start <= room.whole && (names <= room.names || count == 0);
            if !fits {
                out.truncate(at);
                break;
            }
            count += 1;
        }
        if count == 0 && !entries.is_empty() {
            return Err(NfsStatus::TOOSMALL);
        }
        out.boolean(false);
        out.boolean(is_end && count == entries.len());
        Ok(())
    }

    /// What comes behind the cookie, and whether that is all.
    fn entries(
        &self,
        dir: &Node,
        listing: &Listing<'_>,
        plus: Plus,
    ) -> Result<(Vec<ListingEntry>, bool), NfsStatus> {
        let most = (listing.most / SHORTEST).clamp(1, MOST_NAMES);
        let attrs = if plus == Plus::Yes { WithAttrs::Yes } else { WithAttrs::No };
        let page = self.client.readdir(dir.ino(), listing.cookie.max(AFTER_DOTS), most, attrs)?;
        let above = if Some(dir.ino()) == dir.root { dir.ino() } else { page.parent };
        let dots = [(AFTER_DOT, dir.ino(), &b"."[..]), (AFTER_DOTS, above, b"..")];
        let dots = dots.into_iter().filter(|(cookie, ..)| listing.cookie < *cookie);
        let dot = |(cookie, ino, name): (u64, _, &[u8])| ListingEntry {
            cookie,
            ino,
            kind: 4,
            name: name.to_vec(),
        };
        Ok((dots.map(dot).chain(page.entries).collect(), page.end))
    }

    fn write_entry(&self, dir: &Node, entry: &ListingEntry, plus: Plus, out: &mut Writer) {
        out.long(entry.ino.0);
        out.bytes_of(&entry.name);
        out.long(entry.cookie);
        if plus == Plus::No {
            return;
        }
        // Of what is above the export's directory nothing is told but its number.
        let is_above = entry.name == b".." && Some(entry.ino) != dir.root;
        let attr = if is_above { None } else { self.attr(entry.ino).ok() };
        write_after(attr.map(|attr| dir.told(&attr)).as_ref(), out);
        out.boolean(attr.is_some());
        if attr.is_some() {
            out.bytes_of(&self.handle(dir, entry.ino));
        }
    }
}
