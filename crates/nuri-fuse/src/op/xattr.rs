//! Opcodes of extended attributes, and the attributes that show and set the state of the mount.

use std::sync::atomic::Ordering;

use nuri_proto::Status;
use nuri_proto::change::CAPABILITY;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{SetGroupId, XattrMode};
use nuri_volume::transfer::Forced;

use crate::op::Dispatcher;
use crate::protocol::abi;
use crate::protocol::abi::{GetxattrIn, GetxattrOut, SetxattrIn, SetxattrMore};
use crate::protocol::reply::Replier;
use crate::protocol::request::Request;
use crate::transport::TRANSPORT_ATTRIBUTE;

/// Name of the attribute that shows and sets layouts.
const LAYOUT_ATTRIBUTE: &[u8] = b"nuri.layout";
/// Setting it (to anything) writes out everything that is buffered.
const SYNC_ATTRIBUTE: &[u8] = b"nuri.sync";
/// Shows and forces the mount's settings: flow buffers, reading ahead, writing behind.
const FLOW_ATTRIBUTE: &[u8] = b"nuri.flow";
/// Keeps what a search of settings has to remember, as long as the mount.
const TUNE_ATTRIBUTE: &[u8] = b"nuri.tune";
/// Setting it (to anything) begins a look at the links to the nodes; shows what the last one found.
const LINKS_ATTRIBUTE: &[u8] = b"nuri.links";
/// Shows where a node of the space listens.
const SPACE_ATTRIBUTE: &[u8] = b"nuri.space";
/// Shows how often a file changed. Writing it, as `with=INODE change=N`, exchanges what the file
/// holds with the copy in that inode, unless it changed since N.
const SWAP_ATTRIBUTE: &[u8] = b"nuri.swap";
/// Shows how many bytes of a file cannot be read now.
const LOST_ATTRIBUTE: &[u8] = b"nuri.lost";
/// Shows files that are not written yet. The kernel looks at no attributes of the root before it
/// asks for a name of this class: that would need the first node.
const UNWRITTEN_ATTRIBUTE: &[u8] = b"system.nuri.unwritten";
/// Files that it shows, and bytes.
const MOST_UNWRITTEN: usize = 100;
const LONGEST_UNWRITTEN: usize = 60 << 10;
/// Only root is told of these.
const TRUSTED: &[u8] = b"trusted.";
const CLASSES: [&[u8]; 3] = [b"user.", TRUSTED, b"security."];
/// Access control lists.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Refuses names of classes that a file system does not keep.
fn check_class(name: &[u8]) -> Result<(), Status> {
    if CLASSES.contains(&name) {
        return Err(Status::INVAL);
    }
    let known = LISTS.contains(&name) || CLASSES.iter().any(|class| name.starts_with(class));
    if known { Ok(()) } else { Err(Status::NOTSUP) }
}

impl Dispatcher {
    fn show_transport(&self) -> Vec<u8> {
        let forgotten = self.forgotten.load(Ordering::Relaxed);
        match self.ring_entries.load(Ordering::Relaxed) {
            0 => format!("transport=classic forgotten={forgotten}"),
            n => format!("transport=uring entries={n} forgotten={forgotten}"),
        }
        .into_bytes()
    }

    /// How many files there are, then inode, bytes and path of each on a line.
    fn show_unwritten(&self) -> Vec<u8> {
        let (files, count) = self.client.unwritten(MOST_UNWRITTEN);
        let mut shown = count.to_string().into_bytes();
        for file in files {
            let path = file.path.escape_ascii();
            let line = format!("\n{} {} {path}", file.ino, file.bytes);
            if shown.len() + line.len() <= LONGEST_UNWRITTEN {
                shown.extend_from_slice(line.as_bytes());
            }
        }
        shown
    }

    fn check_rules_mount(&self, uid: u32) -> Result<(), Status> {
        let rules = uid == 0 || uid == rustix::process::geteuid().as_raw();
        if rules { Ok(()) } else { Err(Status::PERM) }
    }

    /// What concerns the whole mount, for root and whoever mounted. False for other names.
    fn steer(&self, uid: u32, name: &[u8], value: &[u8]) -> Result<bool, Status> {
        if ![FLOW_ATTRIBUTE, TUNE_ATTRIBUTE, LINKS_ATTRIBUTE].contains(&name) {
            return Ok(false);
        }
        self.check_rules_mount(uid)?;
        if name == FLOW_ATTRIBUTE {
            let text = std::str::from_utf8(value).map_err(|_| Status::INVAL)?;
            let forced: Forced = text.parse()?;
            self.tuning.read_ahead(forced.read_ahead)?;
            self.client.force_flow(forced);
        } else if name == TUNE_ATTRIBUTE {
            self.tuning.set_note(value)?;
        } else {
            self.client.look_at_links()?;
        }
        Ok(true)
    }

    /// What the mount says of itself.
    fn shown(&self, name: &[u8]) -> Option<Result<Vec<u8>, Status>> {
        let told = |text: String| Ok(text.into_bytes());
        Some(match name {
            FLOW_ATTRIBUTE => told(self.client.flow().to_string()),
            TUNE_ATTRIBUTE => self.tuning.note(),
            LINKS_ATTRIBUTE => told(self.client.links().to_string()),
            SPACE_ATTRIBUTE => told(self.client.authority()),
            TRANSPORT_ATTRIBUTE => Ok(self.show_transport()),
            UNWRITTEN_ATTRIBUTE => Ok(self.show_unwritten()),
            _ => return None,
        })
    }

    pub(crate) fn setxattr(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let call: SetxattrIn = request.take()?;
        let long = self.kernel.long_setxattr;
        let more: SetxattrMore = if long { request.take()? } else { SetxattrMore::default() };
        let drop = more.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
        let group_id = if drop { SetGroupId::Drop } else { SetGroupId::Keep };
        let name = request.name()?;
        let value = request.bytes(call.size as usize)?;
        let ino = Self::ino(request);
        if name == SYNC_ATTRIBUTE {
            self.client.sync_all()?;
        } else if self.steer(request.header.uid, name, value)? {
            // Done.
        } else if name == SWAP_ATTRIBUTE {
            self.check_rules_mount(request.header.uid)?;
            let swap = parse_swap(value).filter(|(with, _)| !with.is_hidden());
            let (with, change) = swap.ok_or(Status::INVAL)?;
            self.client.swap_data(ino, with, change)?;
        } else if name == LAYOUT_ATTRIBUTE {
            let policy = crate::op::directory::parse_policy(value)?;
            self.client.set_layout(ino, policy)?;
        } else {
            check_class(name)?;
            let mode = match call.flags as i32 {
                libc::XATTR_CREATE => XattrMode::Create,
                libc::XATTR_REPLACE => XattrMode::Replace,
                _ => XattrMode::Any,
            };
            self.client.xattr_set(ino, name, value, (mode, group_id))?;
        }
        reply.ok();
        Ok(())
    }

    pub(crate) fn getxattr(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let call: GetxattrIn = request.take()?;
        let name = request.name()?;
        let ino = Self::ino(request);
        let value = if let Some(shown) = self.shown(name) {
            shown?
        } else if name == LAYOUT_ATTRIBUTE {
            crate::op::directory::show_layout(&self.client.layout(ino)?)
        } else if name == SWAP_ATTRIBUTE {
            self.client.getattr(ino)?.change.to_string().into_bytes()
        } else if name == LOST_ATTRIBUTE {
            self.client.out_of_reach(ino)?.to_string().into_bytes()
        } else {
            check_class(name)?;
            self.client.xattr_get(ino, name)?
        };
        sized_reply(call.size, &value, reply)
    }

    pub(crate) fn listxattr(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let call: GetxattrIn = request.take()?;
        let names = self.client.xattr_list(Self::ino(request))?;
        let mut list = Vec::new();
        let may_see = |name: &&Vec<u8>| request.header.uid == 0 || !name.starts_with(TRUSTED);
        for name in names.iter().filter(may_see) {
            list.extend_from_slice(name);
            list.push(0);
        }
        sized_reply(call.size, &list, reply)
    }

    pub(crate) fn removexattr(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let name = request.name()?;
        check_class(name)?;
        if name == CAPABILITY && Self::changes_owner(request) {
            // Before it asks for the change itself, whoever the caller is.
            self.may_change_nothing(request)?;
        }
        match self.client.xattr_remove(Self::ino(request), name) {
            // A list that is not there says what the mode says.
            Err(Status::NODATA) if LISTS.contains(&name) => {}
            outcome => outcome?,
        }
        reply.ok();
        Ok(())
    }
}

/// The inode, and the change counter.
fn parse_swap(text: &[u8]) -> Option<(Ino, u64)> {
    let mut words = std::str::from_utf8(text).ok()?.split(' ');
    let with = words.next()?.strip_prefix("with=")?.parse().ok()?;
    let change = words.next()?.strip_prefix("change=")?.parse().ok()?;
    words.next().is_none().then_some((Ino(with), change))
}

/// Replies with the length alone (size 0), or the value where it fits.
fn sized_reply(size: u32, value: &[u8], reply: &mut Replier<'_, '_>) -> Result<(), Status> {
    if size == 0 {
        reply.value(&GetxattrOut { size: value.len() as u32, padding: 0 });
    } else if value.len() > size as usize {
        return Err(Status::RANGE);
    } else {
        reply.bytes(value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_names_inode_and_change() {
        assert_eq!(parse_swap(b"with=12 change=3"), Some((Ino(12), 3)));
        let wrong = ["", "with=12", "with=12 change=", "with=-1 change=3", "with=1 change=3 x"];
        assert!(wrong.iter().all(|text| parse_swap(text.as_bytes()).is_none()));
    }

    #[test]
    fn classes_are_those_of_linux() {
        for name in ["user.a", "trusted.a", "security.capability", "system.posix_acl_default"] {
            assert_eq!(check_class(name.as_bytes()), Ok(()));
        }
        for name in ["colour", "other.a", "system.a", "usera"] {
            assert_eq!(check_class(name.as_bytes()), Err(Status::NOTSUP));
        }
        assert_eq!(check_class(b"user."), Err(Status::INVAL));
    }
}
