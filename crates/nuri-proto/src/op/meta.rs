//! Calls to the metadata server. Payload: inline data of a small file, where named.

use serde::{Deserialize, Serialize};

use super::call;
use super::lock::{HeldLock, LockEnd, LockRecall};
use crate::id::{GroupId, Ino, ObjectId, SessionId};
use crate::layout::{Layout, LayoutPolicy};
use crate::range_map::Span;

/// Seconds and nanoseconds since 1970.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(try_from = "SentTime")]
pub struct Time {
    pub sec: i64,
    pub nsec: u32,
}

/// A time as it comes.
#[derive(Deserialize)]
struct SentTime {
    sec: i64,
    nsec: u32,
}

impl TryFrom<SentTime> for Time {
    type Error = &'static str;

    fn try_from(SentTime { sec, nsec }: SentTime) -> Result<Time, Self::Error> {
        let is_time = nsec < 1_000_000_000;
        if is_time { Ok(Time { sec, nsec }) } else { Err("nanoseconds of more than a second") }
    }
}

/// Attributes as `stat` shows them. `mode` holds type and permission bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Attr {
    pub ino: Ino,
    pub generation: u32,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size: u64,
    /// Bytes that hold data.
    pub allocated: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub btime: Time,
    /// Rises with every change of data or attributes.
    pub change: u64,
}

/// What a lease allows its holder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LeaseMode {
    /// Cache what was read: attributes, entries, data.
    Read,
    /// Also write behind: the holder is the authority on data, size and times.
    Write,
}

/// A granted lease. `number` orders grants and recalls of one inode: a grant overtaken by its
/// recall must not be cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    pub mode: LeaseMode,
    pub number: u64,
}

impl Grant {
    /// The upper bits of a number are the epoch of the server that granted it.
    pub const EPOCH_SHIFT: u32 = 40;

    /// Whether the grant comes from the server with this boot id. A stored reply that is repeated
    /// after a restart carries a grant of the earlier server, and is void.
    pub fn is_of(self, server_boot: u64) -> bool {
        Grant::is_number_of(self.number, server_boot)
    }

    /// As `is_of`, for the number alone.
    pub fn is_number_of(number: u64, server_boot: u64) -> bool {
        number >> Self::EPOCH_SHIFT == server_boot
    }
}

/// An inode as a reply names it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InodeReply {
    pub attr: Attr,
    /// Lease on the inode's attributes and data, if one was granted.
    pub lease: Option<Grant>,
}

/// An entry as a reply names it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EntryReply {
    pub inode: InodeReply,
    /// Lease on the directory's entries, if one was granted.
    pub dir_lease: Option<Grant>,
}

/// Opens a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionOpen {
    /// For logs and status: host and mount point.
    pub client: String,
}
call!(SessionOpen => SessionReply);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionReply {
    pub session: SessionId,
    /// Random per start of the server: another one means that leases must be reclaimed.
    pub server_boot: u64,
    /// The server's wall clock: clients stamp by it.
    pub server_time: Time,
    /// Grants up to this number belong to earlier sessions: a delayed reply must not revive one.
    pub granted: u64,
}

/// Waits for events, at most `clock::SESSION_RENEW`, and renews the session. Events come again
/// until a later call acknowledges them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Events {
    /// `upto` of the last reply that was handled, 0 at first.
    pub acknowledged: u64,
    /// The server's boot as the session knows it: another one is told at once.
    pub server_boot: u64,
}
call!(Events => EventsReply);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventsReply {
    pub server_boot: u64,
    /// As in [`SessionReply`].
    pub server_time: Time,
    pub upto: u64,
    pub events: Vec<Event>,
}

/// What the server tells a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    Recall(Recall),
    /// The inode lost its last name: say `OrphanRelease` once it is not open.
    Unlinked(Ino),
    /// A lock that was queued is held now, or never will be.
    Lock(LockEnd),
    /// The locks of a file are asked for by another client.
    LockRecall(LockRecall),
    /// The table of leases is nearly full: so many inodes that no program uses are to be given
    /// back.
    Crowded {
        inodes: u32,
    },
}

/// Give back every grant on `ino` up to `number`, after flushing; keep at most `keep`. With `part`
/// only those bytes, of what [`super::part::AcquirePart`]
/// granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Recall {
    pub ino: Ino,
    pub number: u64,
    pub keep: Option<LeaseMode>,
    pub part: Option<Span>,
}

/// Says that a recall was obeyed. `number` and `part` repeat those of the recall.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecallDone {
    pub ino: Ino,
    pub number: u64,
    pub kept: Option<LeaseMode>,
    pub part: Option<Span>,
    /// The writer left no bytes beyond the size that it published.
    pub settled: bool,
}
call!(RecallDone => ());

/// Turns write leases into read leases, without a recall; grants up to the number count. Each one
/// says whether it is `settled`, as in [`RecallDone`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Downgrade {
    pub leases: Vec<(Ino, u64, bool)>,
}
call!(Downgrade => ());

/// Reclaims what this session still holds, after a restart of the server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reclaim {
    /// The start of the server that is told: what an earlier one heard counts no more.
    pub server_boot: u64,
    pub leases: Vec<(Ino, LeaseMode)>,
    /// Parts of files.
    pub parts: Vec<(Ino, Vec<Span>)>,
    /// Inodes that are open here, so that unlinked ones are not reaped.
    pub open: Vec<Ino>,
    pub locks: Vec<HeldLock>,
    /// More calls follow: the server keeps waiting for this session.
    pub more: bool,
}
call!(Reclaim => ReclaimReply);

/// The outcomes, in the order of the call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReclaimReply {
    /// `None` where another holder came first.
    pub leases: Vec<Option<Grant>>,
    /// False where another holder came first.
    pub parts: Vec<bool>,
    /// Whether the lock is held again.
    pub locks: Vec<bool>,
}

/// Ends the session; its leases and opens are void.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionClose {}
call!(SessionClose => ());

/// Finds a name. `NOENT` replies may be cached under the lease in the reply to `GetAttr` of the
/// directory; a missing name is answered with `None` and the directory's lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lookup {
    pub parent: Ino,
    pub name: Vec<u8>,
}
call!(Lookup => LookupReply);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LookupReply {
    pub inode: Option<InodeReply>,
    pub dir_lease: Option<Grant>,
}

/// Reads attributes; a writer elsewhere is recalled first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GetAttr {
    pub ino: Ino,
}
call!(GetAttr => InodeReply);

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetTime {
    /// The server's clock.
    Now,
    At(Time),
}

/// Changes the attributes that are `Some`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttr {
    pub ino: Ino,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
}
call!(SetAttr => SetAttrReply);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetAttrReply {
    pub inode: InodeReply,
    /// The file's new object, where truncation to zero took one.
    pub object: ObjectId,
    /// The data beyond this size must be punched before the file may grow again: the caller does
    /// it and tells so with `Publish` or `Extend`; if it dies the server has it done.
    pub punch_from: Option<u64>,
}

/// Says that a writer is about to put data on the targets beyond the size that the server knows. If
/// the writer dies before it publishes, the next writer punches from that size first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Extend {
    pub ino: Ino,
    /// The data beyond the last truncation is gone from the targets.
    pub is_cut_done: bool,
}
call!(Extend => ());

/// Says that the data beyond the last truncation is gone from the targets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TruncateDone {
    pub ino: Ino,
}
call!(TruncateDone => ());

/// What to make.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MakeKind {
    File,
    Directory,
    Symlink(Vec<u8>),
    /// Fifo, socket or device; the type is in the mode.
    Special {
        rdev: u32,
    },
}

/// Makes a directory entry and its inode. The file comes with a write lease where possible.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Make {
    pub parent: Ino,
    pub name: Vec<u8>,
    pub kind: MakeKind,
    /// As the program asked; what the directory hands down or the mask narrows it.
    pub mode: u32,
    /// File mode creation mask; counts where the directory has no default access control list.
    pub umask: u32,
    pub uid: u32,
    pub gid: u32,
    pub exclusive: Exclusive,
}
call!(Make => MakeReply);

/// Makes a file without a name, open for this session: it lives until `OrphanRelease`, or until
/// it lost the names that `Link` gave it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MakeUnnamed {
    /// What the file inherits from.
    pub parent: Ino,
    pub mode: u32,
    pub umask: u32,
    pub uid: u32,
    pub gid: u32,
}
call!(MakeUnnamed => UnnamedReply);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnnamedReply {
    pub inode: InodeReply,
    pub file: Option<FileRecord>,
}

/// Sets when inodes were read last: no change, without a lease. Only newer times count.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Accessed {
    pub at: Vec<(Ino, Time)>,
}
call!(Accessed => ());

/// What to do when the name is there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Exclusive {
    /// Fail with `EXIST`.
    Yes,
    /// Open the file that is there.
    No,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MakeReply {
    pub entry: EntryReply,
    /// The directory after it, where it changed.
    pub parent: Option<Attr>,
    /// Data of the file, for a file.
    pub file: Option<FileRecord>,
    /// The name was there already.
    pub existed: bool,
}

/// Where a file's data is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileRecord {
    pub object: ObjectId,
    pub layout: Layout,
    pub truncate_version: u32,
    /// The data itself, for files up to `MAX_INLINE` that were never on the targets.
    pub inline: Option<Vec<u8>>,
    /// A truncation is not finished on the targets: whoever holds the write lease punches from
    /// here and says `TruncateDone` before the file grows.
    pub punch_from: Option<u64>,
}

/// Gives a file a further name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Link {
    pub ino: Ino,
    pub parent: Ino,
    pub name: Vec<u8>,
}
call!(Link => EntryReply);

/// Whether a name that goes away must be a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RemoveKind {
    File,
    Directory,
}

/// Removes a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unlink {
    pub parent: Ino,
    pub name: Vec<u8>,
    pub kind: RemoveKind,
}
call!(Unlink => UnlinkReply);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnlinkReply {
    pub removed: RemoveReply,
    /// The directory after it.
    pub parent: Attr,
}

/// The inode that lost a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RemoveReply {
    pub ino: Ino,
    /// It was the last name: the inode lives until every session released it.
    pub orphan: bool,
}

/// `renameat2`'s modes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
    /// As `Replace`; a device with the number 0 takes the old name's place.
    Whiteout,
    /// As `Whiteout`, only where the new name is free.
    WhiteoutNoReplace,
}

impl RenameMode {
    pub fn may_replace(self) -> bool {
        !matches!(self, RenameMode::NoReplace | RenameMode::WhiteoutNoReplace)
    }

    pub fn leaves_whiteout(self) -> bool {
        matches!(self, RenameMode::Whiteout | RenameMode::WhiteoutNoReplace)
    }
}

/// Moves a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rename {
    pub parent: Ino,
    pub name: Vec<u8>,
    pub new_parent: Ino,
    pub new_name: Vec<u8>,
    pub mode: RenameMode,
}
call!(Rename => RenameReply);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RenameReply {
    pub moved: Ino,
    /// What the new name pointed to before.
    pub replaced: Option<RemoveReply>,
}

/// Lists a directory after `cookie` (0: from the start), at most `max` entries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadDir {
    pub ino: Ino,
    pub cookie: u64,
    pub max: u32,
    pub attrs: WithAttrs,
}
call!(ReadDir => ReadDirReply);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum WithAttrs {
    No,
    Yes,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReadDirReply {
    pub entries: Vec<DirEntry>,
    pub dir_lease: Option<Grant>,
    /// Parent of the directory, for `..`.
    pub parent: Ino,
    /// Nothing follows.
    pub end: bool,
    /// The position of the next new name.
    pub next: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirEntry {
    /// Position after this entry: stable, never reused.
    pub cookie: u64,
    pub ino: Ino,
    /// Type bits of the mode, shifted down by 12 as `d_type` is.
    pub kind: u8,
    pub name: Vec<u8>,
    /// Absent where the inode is being written elsewhere.
    pub inode: Option<InodeReply>,
}

/// Asks for a lease and the inode as it is now. Waits until other holders gave theirs back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Acquire {
    pub ino: Ino,
    pub mode: LeaseMode,
}
call!(Acquire => AcquireReply);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AcquireReply {
    pub inode: InodeReply,
    /// For regular files.
    pub file: Option<FileRecord>,
    /// For symbolic links.
    pub symlink: Option<Vec<u8>>,
}

/// Gives leases back without being asked: (inode, grant number).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Release {
    pub leases: Vec<(Ino, u64)>,
}
call!(Release => ());

/// A writer's publication under its write lease: what others see of the file, also after a crash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publish {
    pub ino: Ino,
    pub size: u64,
    pub allocated: u64,
    pub mtime: Option<SetTime>,
    pub data: PublishData,
}
call!(Publish => InodeReply);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PublishData {
    /// The data is on the targets, durably, up to `size`.
    OnTargets,
    /// As `OnTargets`, and the data beyond the last truncation is gone from the targets.
    CutDone,
    /// What was written of parts of the file is on the targets, durably: it has at least `size`
    /// bytes, and occupies `allocated` more.
    Part,
    /// The payload is the whole file.
    Inline,
}

/// Reads an extended attribute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct XattrGet {
    pub ino: Ino,
    pub name: Vec<u8>,
}
call!(XattrGet => Vec<u8>);

/// `setxattr`'s modes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum XattrMode {
    Any,
    Create,
    Replace,
}

/// What happens to set-group-id when an access control list is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SetGroupId {
    Keep,
    /// The caller is not in the file's group.
    Drop,
}

/// Sets an extended attribute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct XattrSet {
    pub ino: Ino,
    pub name: Vec<u8>,
    pub value: Vec<u8>,
    pub mode: XattrMode,
    pub group_id: SetGroupId,
}
call!(XattrSet => ());

/// Lists the names of extended attributes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct XattrList {
    pub ino: Ino,
}
call!(XattrList => Vec<Vec<u8>>);

/// Reads all extended attributes, where they fit into an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct XattrAll {
    pub ino: Ino,
}
call!(XattrAll => Vec<(Vec<u8>, Vec<u8>)>);

/// Removes an extended attribute.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct XattrRemove {
    pub ino: Ino,
    pub name: Vec<u8>,
}
call!(XattrRemove => ());

/// Sets the layout that a directory's new files inherit, or the layout of a file without data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayoutSet {
    pub ino: Ino,
    pub policy: LayoutPolicy,
}
call!(LayoutSet => ());

/// Exchanges the content of two files, with their layouts. Both have the same bytes: one is a copy
/// with another layout.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SwapData {
    pub ino: Ino,
    /// Of the same size, and durable.
    pub with: Ino,
    /// The first one's when the copy was begun.
    pub change: u64,
}
call!(SwapData => ());

/// Reads a file's layout, or the layout that a directory's new files inherit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayoutGet {
    pub ino: Ino,
}
call!(LayoutGet => LayoutReply);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LayoutReply {
    /// Whose data lie so, and how many bytes do: none of a file that lies with the metadata.
    File(ObjectId, Layout, u64),
    Directory(LayoutPolicy),
}

/// Asks for counts of the whole space.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatFs {}
call!(StatFs => StatFsReply);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StatFsReply {
    pub inodes: u64,
    /// Bytes held by files, as published.
    pub allocated: u64,
}

/// Asks how much of all files lies on some groups. The server looks at every file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupUse {
    pub groups: Vec<GroupId>,
}
call!(GroupUse => GroupUseReply);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GroupUseReply {
    /// Files with bytes there.
    pub files: u64,
    pub bytes: u64,
    /// There were too many files to look at all: there may be more.
    pub is_cut_short: bool,
}

/// Names unlinked inodes that this session no longer has open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OrphanRelease {
    pub inos: Vec<Ino>,
}
call!(OrphanRelease => ());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    #[test]
    fn a_time_has_less_than_a_second_beside_its_seconds() {
        let time = |nsec| Time { sec: -7, nsec };
        let encoded = |nsec| codec::encode(&time(nsec)).unwrap();
        assert_eq!(codec::decode::<Time>(&encoded(999_999_999)), Ok(time(999_999_999)));
        assert!(codec::decode::<Time>(&encoded(1_000_000_000)).is_err());
        assert!(codec::decode::<Time>(&encoded(u32::MAX)).is_err());
    }
}
