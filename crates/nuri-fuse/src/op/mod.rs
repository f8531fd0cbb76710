//! Maps each opcode to a client call. Names and attributes are here. Opens that create their file
//! are in `create`, data is in `file`, listings are in `directory`. Extended attributes are in
//! `xattr`, and locks in `lock`.

mod create;
mod directory;
mod file;
mod kernel_cached;
mod lock;
mod xattr;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nuri_client::{Access, Caller, Client, Entry, KernelCache, Privileges};
use nuri_io::buf::BufPool;
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::meta::{
    Attr, Exclusive, Make, MakeKind, RemoveKind, RenameMode, SetAttr, SetTime, Time,
};
use nuri_rules::{broken, pause};

use crate::bypass::Bypass;
use crate::growing::Growing;
use crate::mount_tuning::MountTuning;
use crate::protocol::abi;
use crate::protocol::abi::{
    BatchForgetIn, EntryOut, ForgetIn, ForgetOne, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn,
    SetattrIn, StatfsOut,
};
use crate::protocol::limits::MAX_WRITE;
use crate::protocol::read_order::Reads;
use crate::protocol::reply::{Replier, attr_out, entry_out, statx_out};
use crate::protocol::request::Request;
use crate::transport::kernel_size::KernelSizes;
use create::CreateRaces;
use directory::OpenDirectories;
use kernel_cached::{Cached, PageDropper};
use lock::system_call;

const BLOCK: u64 = 4096;
const ENOSYS: i32 = 38;

/// A directory, as it stood before an operation on its names.
#[derive(Clone, Copy)]
struct Parent {
    ino: Ino,
    /// What `Client::names_held` said.
    names: Option<u64>,
}

/// Answers requests; called from all readers at once.
pub(crate) struct Dispatcher {
    pub(crate) client: Arc<Client>,
    pub(crate) buffers: BufPool,
    /// Entries of the rings; none where requests come the classic way.
    pub(crate) ring_entries: AtomicUsize,
    pub(crate) forgotten: AtomicU64,
    pub(crate) kernel: Kernel,
    /// None where it could not be made.
    pub(crate) bypass: Option<Arc<Bypass>>,
    pub(crate) tuning: MountTuning,
    sizes: KernelSizes,
    pub(crate) reads: Arc<Reads>,
    pub(crate) cached: Cached,
    create_races: CreateRaces,
    pub(crate) growing: Arc<Growing>,
    pub(crate) open_directories: OpenDirectories,
    dropper: PageDropper,
}

/// What belongs to the mount that is served.
pub(crate) struct Own {
    pub(crate) bypass: Option<Arc<Bypass>>,
    pub(crate) growing: Arc<Growing>,
    pub(crate) tuning: MountTuning,
    pub(crate) sizes: KernelSizes,
    pub(crate) pages: Arc<dyn KernelCache>,
}

/// What the kernel at the other end knows and how it is mounted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    /// It can drop all names at once; without that names are not cached.
    pub(crate) epochs: bool,
    /// Its SETXATTR has flags of its own.
    pub(crate) long_setxattr: bool,
    /// Nothing may be changed, access times neither.
    pub(crate) read_only: bool,
}

/// What a change takes away: the kernel says whether the caller may keep the bits.
pub(crate) fn privileges(kill_suidgid: bool, caller: Caller) -> Privileges {
    if kill_suidgid { Privileges::Of(caller) } else { Privileges::Capabilities }
}

fn is_file(attr: &Attr) -> bool {
    attr.mode & libc::S_IFMT == libc::S_IFREG
}

/// The calls that change owners, also where they are told to change none.
const CHANGE_OWNER: [i64; 4] =
    [libc::SYS_chown, libc::SYS_lchown, libc::SYS_fchown, libc::SYS_fchownat];

/// What a change of owner takes away.
fn privileges_of_owner(request: &Request<'_>) -> Privileges {
    match request.header.uid {
        0 => Privileges::All,
        _ => Privileges::Of(Dispatcher::caller(request)),
    }
}

/// What an open says that it is for.
pub(crate) fn access(flags: i32) -> Access {
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Access::Read,
        libc::O_WRONLY => Access::Write,
        _ => Access::Both,
    }
}

impl Dispatcher {
    pub(crate) fn new(client: Arc<Client>, kernel: Kernel, own: Own) -> Dispatcher {
        let Own { bypass, growing, tuning, sizes, pages } = own;
        let buffers = BufPool::new(MAX_WRITE as usize, 8);
        let (ring_entries, forgotten) = Default::default();
        let (reads, cached) = (Arc::new(Reads::new()), Cached::new());
        Dispatcher {
            client,
            buffers,
            ring_entries,
            forgotten,
            kernel,
            bypass,
            tuning,
            sizes,
            reads,
            cached,
            create_races: CreateRaces::default(),
            growing,
            open_directories: OpenDirectories::default(),
            dropper: PageDropper::new(pages),
        }
    }

    /// Answers one request, or none where the protocol wants none.
    pub(crate) fn answer<'g>(&'g self, mut request: Request<'_>, reply: &mut Replier<'g, '_>) {
        if let Err(status) = self.run(&mut request, reply) {
            reply.error(status.errno());
        }
    }

    fn run<'g>(
        &'g self,
        request: &mut Request<'_>,
        reply: &mut Replier<'g, '_>,
    ) -> Result<(), Status> {
        // Who opens a file by its number may name any.
        if Self::ino(request).is_hidden() && !broken!("volumes_by_number") {
            return Err(Status::STALE);
        }
        match request.header.opcode {
            abi::LOOKUP => self.lookup(request, reply),
            abi::FORGET => self.forget(request),
            abi::BATCH_FORGET => self.batch_forget(request),
            abi::GETATTR => self.getattr(request, reply),
            abi::STATX => self.statx(request, reply),
            abi::SETATTR => self.setattr(request, reply),
            abi::READLINK => self.readlink(request, reply),
            abi::SYMLINK => self.symlink(request, reply),
            abi::MKNOD => self.mknod(request, reply),
            abi::MKDIR => self.mkdir(request, reply),
            abi::UNLINK => self.remove(request, reply, RemoveKind::File),
            abi::RMDIR => self.remove(request, reply, RemoveKind::Directory),
            abi::RENAME => self.rename(request, reply),
            abi::RENAME2 => self.rename2(request, reply),
            abi::LINK => self.link(request, reply),
            abi::CREATE => self.create(request, reply),
            abi::TMPFILE => self.tmpfile(request, reply),
            abi::STATFS => self.statfs(reply),
            abi::SETXATTR => self.setxattr(request, reply),
            abi::GETXATTR => self.getxattr(request, reply),
            abi::LISTXATTR => self.listxattr(request, reply),
            abi::REMOVEXATTR => self.removexattr(request, reply),
            abi::OPENDIR => self.opendir(reply),
            abi::READDIR => self.readdir(request, reply),
            abi::READDIRPLUS => self.readdirplus(request, reply),
            // Names are durable when their call returned.
            abi::FSYNCDIR => {
                self.client.sync_directory(Self::ino(request))?;
                reply.ok();
                Ok(())
            }
            abi::SYNCFS => {
                self.client.sync_all()?;
                reply.ok();
                Ok(())
            }
            abi::RELEASEDIR => self.releasedir(request, reply),
            abi::DESTROY => {
                reply.ok();
                Ok(())
            }
            abi::GETLK => self.getlk(request, reply),
            abi::SETLK => self.setlk(request, reply),
            abi::SETLKW => self.setlkw(request, reply),
            // Other requests than waits for locks are bounded in time and answered as usual.
            abi::INTERRUPT => self.interrupt(request),
            _ => self.run_file(request, reply),
        }
    }

    pub(crate) fn ino(request: &Request<'_>) -> Ino {
        Ino(request.header.nodeid)
    }

    /// How long the kernel may cache what was found out of a name in the directory.
    fn name_time(&self, parent: Parent) -> Duration {
        let time = || self.client.names_time(parent.ino, parent.names);
        if self.kernel.epochs { time() } else { Duration::ZERO }
    }

    /// Before an operation on names in the directory that the request is for.
    fn parent(&self, request: &Request<'_>) -> Parent {
        let ino = Self::ino(request);
        Parent { ino, names: self.client.names_held(ino) }
    }

    /// Replies with an entry. The gate is held until the kernel has it, so that a recall that
    /// comes now invalidates after this reply and not before.
    fn reply_entry<'g>(&'g self, parent: Parent, entry: &Entry, reply: &mut Replier<'g, '_>) {
        self.growing.wait(entry.ino, entry.attr.size);
        reply.hold(self.client.reply_gate());
        reply.value(&self.entry_out(parent, entry));
    }

    /// Attributes for a reply, and how long the kernel may cache them. Within the gate. They are
    /// those of `told` where the pages of a newer size are still to be dropped.
    fn attr_now(&self, ino: Ino, told: &Attr) -> (Attr, Duration) {
        let is_ready = |attr: &Attr| !self.growing.has_reached(ino, attr.size);
        let now = self.client.cacheable(ino).filter(|(attr, _)| is_ready(attr));
        now.unwrap_or_else(|| {
            if is_file(told) {
                self.sizes.unsure.doubt(ino);
            }
            (*told, Duration::ZERO)
        })
    }

    fn entry_out(&self, parent: Parent, entry: &Entry) -> EntryOut {
        let (attr, valid) = self.attr_now(entry.ino, &entry.attr);
        entry_out(&Entry { ino: entry.ino, attr }, self.name_time(parent), valid)
    }

    fn lookup<'g>(
        &'g self,
        request: &mut Request<'_>,
        reply: &mut Replier<'g, '_>,
    ) -> Result<(), Status> {
        let parent = self.parent(request);
        let name = request.name()?;
        // Of an inode that the kernel does not know any more, for who kept a handle of it.
        let by_handle = match name {
            b"." => Some(self.client.lookup_number(parent.ino)?),
            b".." => Some(self.client.lookup_above(parent.ino)?),
            _ => None,
        };
        if let Some(entry) = by_handle {
            self.reply_entry(Parent { names: None, ..parent }, &entry, reply);
            return Ok(());
        }
        match self.client.lookup(parent.ino, name)? {
            Some(entry) => self.reply_entry(parent, &entry, reply),
            None => {
                reply.hold(self.client.reply_gate());
                let valid = self.name_time(parent);
                if valid.is_zero() {
                    return Err(Status::NOENT);
                }
                // Node 0 with a time: the kernel may remember that the name is not there.
                let (secs, nanos) = (valid.as_secs(), valid.subsec_nanos());
                reply.value(&EntryOut {
                    entry_valid: secs,
                    entry_valid_nsec: nanos,
                    ..EntryOut::default()
                });
            }
        }
        Ok(())
    }

    fn forget(&self, request: &mut Request<'_>) -> Result<(), Status> {
        if let Ok(forget) = request.take::<ForgetIn>() {
            self.give_back(Self::ino(request), forget.nlookup);
        }
        Ok(())
    }

    fn batch_forget(&self, request: &mut Request<'_>) -> Result<(), Status> {
        let Ok(batch) = request.take::<BatchForgetIn>() else {
            return Ok(());
        };
        for _ in 0..batch.count {
            let Ok(one) = request.take::<ForgetOne>() else {
                return Ok(());
            };
            self.give_back(Ino(one.nodeid), one.nlookup);
        }
        Ok(())
    }

    fn give_back(&self, ino: Ino, count: u64) {
        self.forgotten.fetch_add(count, Ordering::Relaxed);
        let doubts = self.sizes.unsure.doubts(ino);
        if let (true, Some(doubts)) = (self.client.forget(ino, count), doubts) {
            self.sizes.unsure.settle(ino, doubts);
        }
    }

    fn getattr<'g>(
        &'g self,
        request: &Request<'_>,
        reply: &mut Replier<'g, '_>,
    ) -> Result<(), Status> {
        let ino = Self::ino(request);
        let attr = self.look(request)?;
        pause!("answer");
        reply.hold(self.client.reply_gate());
        let (attr, valid) = self.attr_now(ino, &attr);
        reply.value(&attr_out(&attr, valid));
        Ok(())
    }

    /// Attributes of the inode that the request is for. By then the kernel has the size, whether it
    /// takes these over or not.
    fn look(&self, request: &Request<'_>) -> Result<Attr, Status> {
        let ino = Self::ino(request);
        pause!("look");
        let attr = self.client.getattr(ino)?;
        self.growing.wait(ino, attr.size);
        if !is_file(&attr) || !self.sizes.must_see(request.header.pid, ino) {
            return Ok(attr);
        }
        self.sizes.see(ino, || {
            let attr = self.client.getattr(ino)?;
            self.growing.wait(ino, attr.size);
            let leased = self.client.cacheable(ino).filter(|(now, _)| now.size == attr.size);
            Ok((attr, leased.is_some()))
        })
    }

    fn statx<'g>(
        &'g self,
        request: &Request<'_>,
        reply: &mut Replier<'g, '_>,
    ) -> Result<(), Status> {
        let ino = Self::ino(request);
        let attr = self.look(request)?;
        pause!("answer");
        reply.hold(self.client.reply_gate());
        let (attr, valid) = self.attr_now(ino, &attr);
        reply.value(&statx_out(&attr, valid));
        Ok(())
    }

    pub(crate) fn caller(request: &Request<'_>) -> Caller {
        Caller { thread: request.header.pid, gid: request.header.gid }
    }

    /// A change of owner that leaves both as they are says nothing at all; the kernel takes it for
    /// allowed, and leaves what it takes away to us. So does a write to a file with a capability.
    fn change_nothing(&self, request: &Request<'_>) -> Result<(), Status> {
        let ino = Self::ino(request);
        if !Self::changes_owner(request) {
            return self.client.drop_privileges(ino, Privileges::Capabilities);
        }
        self.may_change_nothing(request)?;
        self.client.drop_privileges(ino, privileges_of_owner(request))
    }

    /// Whether the caller is in a call that changes owners.
    pub(crate) fn changes_owner(request: &Request<'_>) -> bool {
        system_call(request.header.pid).is_some_and(|(number, _)| CHANGE_OWNER.contains(&number))
    }

    /// Whether the caller may take away what goes with a change of owner.
    pub(crate) fn may_change_nothing(&self, request: &Request<'_>) -> Result<(), Status> {
        let (ino, uid) = (Self::ino(request), request.header.uid);
        self.client.may_drop_privileges(ino, uid, Self::caller(request))
    }

    fn setattr<'g>(
        &'g self,
        request: &mut Request<'_>,
        reply: &mut Replier<'g, '_>,
    ) -> Result<(), Status> {
        let ino = Self::ino(request);
        let call: SetattrIn = request.take()?;
        let has = |bit| call.valid & bit != 0;
        let time = |now, at, sec: u64, nsec| match (has(now), has(at)) {
            (true, _) => Some(SetTime::Now),
            (_, true) => Some(SetTime::At(Time { sec: sec as i64, nsec })),
            _ => None,
        };
        let change = SetAttr {
            ino,
            mode: has(abi::FATTR_MODE).then_some(call.mode),
            uid: has(abi::FATTR_UID).then_some(call.uid),
            gid: has(abi::FATTR_GID).then_some(call.gid),
            size: has(abi::FATTR_SIZE).then_some(call.size),
            atime: time(abi::FATTR_ATIME_NOW, abi::FATTR_ATIME, call.atime, call.atimensec),
            mtime: time(abi::FATTR_MTIME_NOW, abi::FATTR_MTIME, call.mtime, call.mtimensec),
        };
        let caller = Self::caller(request);
        if has(abi::FATTR_UID) || has(abi::FATTR_GID) {
            self.client.drop_privileges(ino, privileges_of_owner(request))?;
        } else if has(abi::FATTR_SIZE) {
            self.client.drop_privileges(ino, privileges(has(abi::FATTR_KILL_SUIDGID), caller))?;
        } else if change == (SetAttr { ino, ..SetAttr::default() }) {
            self.change_nothing(request)?;
        }
        let attr = self.client.setattr(&change)?;
        if change.size.is_none() {
            // Else a page may wait for this answer.
            self.growing.wait(ino, attr.size);
        }
        reply.hold(self.client.reply_gate());
        let (attr, valid) = self.attr_now(ino, &attr);
        reply.value(&attr_out(&attr, valid));
        Ok(())
    }

    fn readlink(&self, request: &Request<'_>, reply: &mut Replier<'_, '_>) -> Result<(), Status> {
        let ino = Self::ino(request);
        reply.bytes(&self.client.readlink(ino)?);
        self.note_access(ino, 0);
        Ok(())
    }

    fn make<'g>(
        &'g self,
        request: &Request<'_>,
        reply: &mut Replier<'g, '_>,
        name: &[u8],
        (kind, mode, umask): (MakeKind, u32, u32),
    ) -> Result<(), Status> {
        let parent = self.parent(request);
        let (uid, gid) = (request.header.uid, request.header.gid);
        let (name, exclusive) = (name.to_vec(), Exclusive::Yes);
        let call = Make { parent: parent.ino, name, kind, mode, umask, uid, gid, exclusive };
        let entry = self.client.make(&call)?;
        self.reply_entry(parent, &entry, reply);
        Ok(())
    }

    fn symlink<'g>(
        &'g self,
        request: &mut Request<'_>,
        reply: &mut Replier<'g, '_>,
    ) -> Result<(), Status> {
        let (name, to) = (request.name()?, request.name()?);
        self.make(request, reply, name, (MakeKind::Symlink(to.to_vec()), 0o777, 0))
    }

    fn mknod<'g>(
        &'g self,
        request: &mut Request<'_>,
        reply: &mut Replier<'g, '_>,
    ) -> Result<(), Status> {
        let call: MknodIn = request.take()?;
        let name = request.name()?;
        let kind = match call.mode & libc::S_IFMT {
            libc::S_IFREG => MakeKind::File,
            _ => MakeKind::Special { rdev: call.rdev },
        };
        self.make(request, reply, name, (kind, call.mode, call.umask))
    }

    fn mkdir<'g>(
        &'g self,
        request: &mut Request<'_>,
        reply: &mut Replier<'g, '_>,
    ) -> Result<(), Status> {
        let call: MkdirIn = request.take()?;
        let name = request.name()?;
        self.make(request, reply, name, (MakeKind::Directory, call.mode, call.umask))
    }

    fn remove(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
        kind: RemoveKind,
    ) -> Result<(), Status> {
        let name = request.name()?;
        self.client.remove(Self::ino(request), name, kind)?;
        reply.ok();
        Ok(())
    }

    fn rename(&self, request: &mut Request<'_>, reply: &mut Replier<'_, '_>) -> Result<(), Status> {
        let call: RenameIn = request.take()?;
        self.rename_names(request, reply, Ino(call.newdir), RenameMode::Replace)
    }

    fn rename2(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        const FREE_WHITEOUT: u32 = libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT;
        let call: Rename2In = request.take()?;
        let mode = match call.flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            libc::RENAME_WHITEOUT => RenameMode::Whiteout,
            FREE_WHITEOUT => RenameMode::WhiteoutNoReplace,
            _ => return Err(Status::INVAL),
        };
        self.rename_names(request, reply, Ino(call.newdir), mode)
    }

    fn rename_names(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
        to: Ino,
        mode: RenameMode,
    ) -> Result<(), Status> {
        let (old, new) = (request.name()?, request.name()?);
        self.client.rename((Self::ino(request), old), (to, new), mode)?;
        reply.ok();
        Ok(())
    }

    fn link<'g>(
        &'g self,
        request: &mut Request<'_>,
        reply: &mut Replier<'g, '_>,
    ) -> Result<(), Status> {
        let call: LinkIn = request.take()?;
        let parent = self.parent(request);
        let entry = self.client.link(Ino(call.oldnodeid), parent.ino, request.name()?)?;
        self.growing.wait(entry.ino, entry.attr.size);
        reply.hold(self.client.reply_gate());
        // The kernel takes these attributes over also where it was told to forget them meanwhile.
        self.sizes.unsure.doubt(entry.ino);
        reply.value(&entry_out(&entry, self.name_time(parent), Duration::ZERO));
        Ok(())
    }

    /// A program read the inode, through a descriptor with these flags.
    pub(crate) fn note_access(&self, ino: Ino, flags: u32) {
        if !self.kernel.read_only && flags as i32 & libc::O_NOATIME == 0 {
            self.client.note_access(ino);
        }
    }

    fn statfs(&self, reply: &mut Replier<'_, '_>) -> Result<(), Status> {
        let (size, used, inodes) = self.client.statfs()?;
        let free = size.saturating_sub(used) / BLOCK;
        // Inodes are bounded by space alone; at least a name and a record each.
        let ffree = free.saturating_mul(4);
        reply.value(&StatfsOut {
            blocks: size / BLOCK,
            bfree: free,
            bavail: free,
            files: inodes + ffree,
            ffree,
            bsize: BLOCK as u32,
            namelen: 255,
            frsize: BLOCK as u32,
            ..StatfsOut::default()
        });
        Ok(())
    }
}

pub(crate) fn not_implemented(reply: &mut Replier<'_, '_>) {
    reply.error(ENOSYS);
}
