//! Opens that create their file.
//!
//! The kernel asks to create a name where it knows of none, and takes the file in the answer for
//! new. It checks no rights, truncates nothing for `O_TRUNC`, and refuses what is no file (Linux
//! 6.18, `fuse_create_open`). But another mount may have made the name a moment before. Then the
//! mount answers that the kernel's knowledge is stale (`ESTALE`). The kernel looks the name up
//! again, and opens what it finds as any other file. It does so once for an open. Where the name
//! went and came back meanwhile, the mount itself does what the kernel would have done.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nuri_client::Made;
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{Attr, Exclusive, Make, MakeKind, MakeUnnamed, SetAttr};
use nuri_proto::xattr::ACL_ACCESS;
use nuri_rules::{broken, pause};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use crate::op::{Dispatcher, access, is_file, privileges};
use crate::protocol::abi::{CreateIn, EntryOut, OpenOut};
use crate::protocol::reply::{Replier, entry_out};
use crate::protocol::request::Request;

/// Opens that were answered so and are remembered; what a kernel has under way is much less.
const MOST: usize = 1024;

/// Much longer than the kernel takes to look again.
const FORGOTTEN: Duration = Duration::from_secs(1);

/// A thread that opens, the directory and the name.
type Opening = (u32, Ino, Vec<u8>);

/// Opens that were told to look again, and when.
#[derive(Default)]
pub(super) struct CreateRaces(Mutex<VecDeque<(Instant, Opening)>>);

impl CreateRaces {
    /// Whether this open is told to look again: not the second time.
    fn looks_again(&self, opening: Opening) -> bool {
        let mut told = self.0.lock();
        while told.front().is_some_and(|(at, _)| at.elapsed() > FORGOTTEN) {
            told.pop_front();
        }
        if let Some(at) = told.iter().position(|(_, other)| *other == opening) {
            told.remove(at);
            return false;
        }
        if told.len() == MOST {
            told.pop_front();
        }
        told.push_back((Instant::now(), opening));
        true
    }
}

/// Whether the mode of a file without an access control list allows the caller to open it. In doubt
/// about the groups of the caller it does not.
fn may_open(attr: &Attr, (uid, gid): (u32, u32), flags: i32) -> bool {
    let reads = flags & libc::O_ACCMODE != libc::O_WRONLY;
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
    let wanted = if reads { 4 } else { 0 } | if writes { 2 } else { 0 };
    let [owner, group, others] = [6, 3, 0].map(|shift| (attr.mode >> shift) & wanted == wanted);
    match uid {
        0 => true,
        uid if uid == attr.uid => owner,
        _ if gid == attr.gid => group,
        _ => group && others,
    }
}

impl Dispatcher {
    pub(super) fn create<'g>(
        &'g self,
        request: &mut Request<'_>,
        reply: &mut Replier<'g, '_>,
    ) -> Result<(), Status> {
        let call: CreateIn = request.take()?;
        let name = request.name()?;
        let parent = self.parent(request);
        let flags = call.flags as i32;
        let exclusive = if flags & libc::O_EXCL != 0 { Exclusive::Yes } else { Exclusive::No };
        let (uid, gid) = (request.header.uid, request.header.gid);
        let (mode, umask) = (call.mode, call.umask);
        let (name, kind) = (name.to_vec(), MakeKind::File);
        let opening = (request.header.pid, parent.ino, name.clone());
        let make = Make { parent: parent.ino, name, kind, mode, umask, uid, gid, exclusive };
        pause!("create");
        let made = self.client.make_or_find(&make)?;
        if made.was_there && !broken!("found_as_new") {
            let found = || self.open_found(&made, opening, request, flags);
            found().inspect_err(|_| _ = self.client.forget(made.entry.ino, 1))?;
        }
        let fh = self.client.open_made(made.entry.ino, access(flags))?;
        self.growing.wait(made.entry.ino, made.entry.attr.size);
        reply.hold(self.client.reply_gate());
        let mut out = self.entry_out(parent, &made.entry);
        if made.was_there {
            // As for a link: others may change it.
            (out.attr_valid, out.attr_valid_nsec) = (0, 0);
        }
        self.reply_opened(&out, (fh, flags), reply);
        Ok(())
    }

    /// Before a file that was there is opened as if it were new.
    fn open_found(
        &self,
        made: &Made,
        opening: Opening,
        request: &Request<'_>,
        flags: i32,
    ) -> Result<(), Status> {
        let (ino, attr) = (made.entry.ino, &made.entry.attr);
        if self.create_races.looks_again(opening) {
            return Err(Status::STALE);
        }
        let (uid, gid) = (request.header.uid, request.header.gid);
        let has_list = || self.client.xattr_get(ino, ACL_ACCESS) != Err(Status::NODATA);
        let may_open = is_file(attr) && may_open(attr, (uid, gid), flags);
        if !may_open || uid != 0 && has_list() {
            return Err(Status::STALE);
        }
        if flags & libc::O_TRUNC != 0 {
            self.client.drop_privileges(ino, privileges(uid != 0, Self::caller(request)))?;
            self.client.setattr(&SetAttr { ino, size: Some(0), ..SetAttr::default() })?;
        }
        Ok(())
    }

    pub(super) fn tmpfile(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let call: CreateIn = request.take()?;
        let parent = Self::ino(request);
        let (uid, gid) = (request.header.uid, request.header.gid);
        let make = MakeUnnamed { parent, mode: call.mode, umask: call.umask, uid, gid };
        let flags = call.flags as i32;
        let (entry, fh) = self.client.make_unnamed(&make, access(flags))?;
        // There is no name that the kernel could cache.
        let out = entry_out(&entry, Duration::ZERO, Duration::ZERO);
        self.reply_opened(&out, (fh, flags), reply);
        Ok(())
    }

    fn reply_opened(&self, entry: &EntryOut, (fh, flags): (u64, i32), reply: &mut Replier<'_, '_>) {
        let open_flags = self.note_open(Ino(entry.nodeid), fh, flags);
        let open = OpenOut { fh, open_flags, backing_id: 0 };
        let mut body = entry.as_bytes().to_vec();
        body.extend_from_slice(open.as_bytes());
        reply.owned(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_is_told_once_to_look_again() {
        let (races, opening) = (CreateRaces::default(), |thread| (thread, Ino(1), b"f".to_vec()));
        assert!(races.looks_again(opening(7)) && races.looks_again(opening(8)));
        assert!(!races.looks_again(opening(7)));
        assert!(races.looks_again(opening(7)), "another open");
        (0..2 * MOST as u32).for_each(|thread| _ = races.looks_again(opening(100 + thread)));
        assert_eq!(races.0.lock().len(), MOST);
    }

    #[test]
    fn the_mode_is_looked_at_as_the_kernel_does() {
        let attr = |mode| Attr { mode, uid: 5, gid: 6, ..Attr::default() };
        let may = |mode, caller, flags| may_open(&attr(mode), caller, flags);
        assert!(may(0, (0, 0), libc::O_RDWR));
        assert!(may(0o600, (5, 9), libc::O_RDWR) && !may(0o066, (5, 6), libc::O_RDONLY));
        assert!(may(0o040, (9, 6), libc::O_RDONLY) && !may(0o040, (9, 6), libc::O_RDWR));
        assert!(may(0o666, (9, 9), libc::O_WRONLY) && !may(0o606, (9, 9), libc::O_WRONLY));
        assert!(!may(0o444, (9, 9), libc::O_RDONLY | libc::O_TRUNC));
    }
}
