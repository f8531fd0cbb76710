//! Opcodes that list directories, and the text form of layouts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use nuri_client::{Listing, ListingEntry};
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::layout::{ChunkSize, LayoutPolicy};
use nuri_proto::op::meta::{LayoutReply, WithAttrs};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::op::Dispatcher;
use crate::protocol::abi::{Dirent, EntryOut, OpenOut, ReadIn, ReleaseIn};
use crate::protocol::reply::Replier;
use crate::protocol::request::Request;

const DT_DIR: u32 = 4;
/// Positions after `.` and `..`; the server's begin above.
const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;
/// What an entry takes at least, for asking no more than fits.
const SMALLEST: u32 = 32;

impl Dispatcher {
    pub(crate) fn opendir(&self, reply: &mut Replier<'_, '_>) -> Result<(), Status> {
        reply.value(&OpenOut { fh: self.open_directories.open(), ..OpenOut::default() });
        Ok(())
    }

    pub(crate) fn releasedir(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let call: ReleaseIn = request.take()?;
        self.open_directories.close(call.fh);
        reply.ok();
        Ok(())
    }

    pub(crate) fn readdir(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        self.list(request, reply, WithAttrs::No)
    }

    /// The kernel will look up what is listed. Its names come with attributes to this mount, which
    /// answers the lookups from them, and not to the kernel: that gives names of a listing the
    /// epoch in which it takes them over (`fuse_direntplus_link`), so that no recall between could
    /// end them.
    pub(crate) fn readdirplus(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        self.list(request, reply, WithAttrs::Yes)
    }

    fn list(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
        attrs: WithAttrs,
    ) -> Result<(), Status> {
        let ino = Self::ino(request);
        let call: ReadIn = request.take()?;
        // Node 0: nothing about the inode.
        let plus = EntryOut::default();
        let plus = if attrs == WithAttrs::Yes { plus.as_bytes() } else { &[] };
        let mut page = Page::new(call.size as usize);
        let max = call.size / (SMALLEST + plus.len() as u32);
        let list = |cookie| self.client.readdir(ino, cookie, max, attrs);
        let ends = |next| self.open_directories.end(call.fh, call.offset, next);
        fill(ino, call.offset, (list, ends), |entry, off| {
            page.push(plus, entry.ino, off, u32::from(entry.kind), &entry.name)
        })?;
        self.note_access(ino, call.flags);
        reply.owned(page.bytes);
        Ok(())
    }
}

/// Where the listings of open directories end: what is new since their begin is not in them, so
/// that they have an end whatever is moved into the directory meanwhile.
#[derive(Default)]
pub(crate) struct OpenDirectories {
    last: AtomicU64,
    ends: Mutex<HashMap<u64, u64>>,
}

impl OpenDirectories {
    fn open(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn close(&self, fh: u64) {
        self.ends.lock().remove(&fh);
    }

    /// For a page from `offset` on, where the next new name of the directory comes at `next`.
    fn end(&self, fh: u64, offset: u64, next: u64) -> u64 {
        let mut ends = self.ends.lock();
        match ends.get(&fh) {
            Some(end) if offset > 0 => *end,
            _ => *ends.entry(fh).insert_entry(next).get(),
        }
    }
}

/// A reply under construction.
struct Page {
    bytes: Vec<u8>,
    limit: usize,
}

impl Page {
    fn new(limit: usize) -> Page {
        Page { bytes: Vec::with_capacity(limit), limit }
    }

    /// Adds an entry; false where it does not fit.
    fn push(&mut self, plus: &[u8], ino: Ino, off: u64, kind: u32, name: &[u8]) -> bool {
        let head = Dirent { ino: ino.0, off, namelen: name.len() as u32, kind };
        let len = (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.bytes.len() + plus.len() + len > self.limit {
            return false;
        }
        let end = self.bytes.len() + plus.len() + len;
        self.bytes.extend_from_slice(plus);
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

/// Feeds one page of entries from position `from` to `push` until it refuses one.
fn fill(
    dir: Ino,
    from: u64,
    (list, ends): (impl Fn(u64) -> Result<Listing, Status>, impl Fn(u64) -> u64),
    mut push: impl FnMut(ListingEntry, u64) -> bool,
) -> Result<(), Status> {
    let listing = list(from.max(AFTER_DOTS))?;
    let end = ends(listing.next);
    let dots = [(AFTER_DOT, dir, &b"."[..]), (AFTER_DOTS, listing.parent, &b".."[..])];
    for (off, ino, name) in dots {
        let dot = || {
            let (kind, name) = (DT_DIR as u8, name.to_vec());
            ListingEntry { cookie: off, ino, kind, name }
        };
        if from < off && !push(dot(), off) {
            return Ok(());
        }
    }
    for entry in listing.entries {
        let off = entry.cookie;
        if off >= end || !push(entry, off) {
            break;
        }
    }
    Ok(())
}

/// A layout as the text that `nuri fs layout get` prints.
pub(crate) fn show_layout(layout: &LayoutReply) -> Vec<u8> {
    let text = match layout {
        LayoutReply::Directory(p) => {
            format!("shape={} chunk_size={} width={}", p.shape, p.chunk_size.bytes(), p.width)
        }
        LayoutReply::File(object, layout, _) => {
            let part = |c: &nuri_proto::layout::Component| {
                let groups: Vec<_> = c.groups.iter().map(ToString::to_string).collect();
                let (size, width) = (c.chunk_size.bytes(), c.groups.len());
                let groups = groups.join(",");
                format!("shape={} chunk_size={size} width={width} groups={groups}", c.shape)
            };
            let parts: Vec<_> = layout.components.iter().map(part).collect();
            format!("object={object} {}", parts.join(" ; "))
        }
    };
    text.into_bytes()
}

/// Reads `shape=... chunk_size=... width=...`; what is not named keeps its default.
pub(crate) fn parse_policy(text: &[u8]) -> Result<LayoutPolicy, Status> {
    let text = std::str::from_utf8(text).map_err(|_| Status::INVAL)?;
    let mut policy = LayoutPolicy::default();
    for word in text.split_whitespace() {
        let (key, value) = word.split_once('=').ok_or(Status::INVAL)?;
        match key {
            "shape" => policy.shape = value.parse().map_err(|_| Status::INVAL)?,
            "chunk_size" => {
                let bytes: u32 = value.parse().map_err(|_| Status::INVAL)?;
                policy.chunk_size = ChunkSize::try_from(bytes).map_err(|_| Status::INVAL)?;
            }
            "width" => policy.width = value.parse().map_err(|_| Status::INVAL)?,
            _ => return Err(Status::INVAL),
        }
    }
    policy.check().map_err(|_| Status::INVAL)?;
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_round_trip_as_text() {
        let policy = parse_policy(b"chunk_size=65536 width=2").unwrap();
        assert_eq!(parse_policy(&show_layout(&LayoutReply::Directory(policy))), Ok(policy));
        assert_eq!(parse_policy(b"chunk_size=1000"), Err(Status::INVAL));
        assert!(parse_policy(b"shape=mirror:2").is_ok());
        assert_eq!(parse_policy(b"shape=mirror:9"), Err(Status::INVAL));
        assert_eq!(parse_policy(b"colour=red"), Err(Status::INVAL));
    }

    #[test]
    fn a_listing_ends_where_the_directory_ended_at_its_begin() {
        let open = OpenDirectories::default();
        let (a, b) = (open.open(), open.open());
        assert_eq!(open.end(a, 0, 10), 10);
        assert_eq!((open.end(a, 5, 20), open.end(b, 0, 20)), (10, 20));
        assert_eq!(open.end(a, 0, 30), 30, "from the begin again");
        open.close(a);
        assert_eq!(open.ends.lock().len(), 1);
    }

    #[test]
    fn entries_that_do_not_fit_are_refused() {
        let mut page = Page::new(64);
        assert!(page.push(&[], Ino(1), 1, 4, b"name"));
        assert_eq!(page.bytes.len(), 32);
        assert!(!page.push(&[], Ino(1), 2, 4, &[b'x'; 40]));
    }
}
