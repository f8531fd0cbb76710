//! Builds replies. A handler says what to answer, and the transport sends it when the handler has
//! returned. The reason: the request's bytes may lie in memory that the kernel takes back with the
//! reply.

use std::time::Duration;

use nuri_client::Entry;
use nuri_io::buf::{BufPool, PooledBuf};
use nuri_proto::op::meta;
use parking_lot::RwLockReadGuard;
use zerocopy::{Immutable, IntoBytes};

use crate::protocol::abi::{Attr, AttrOut, EntryOut, StatxOut, StatxTime};
use crate::protocol::read_order::ReadUnderWay;

/// Held from before a reply is built until the kernel has it.
pub(crate) type Gate<'g> = RwLockReadGuard<'g, ()>;

/// Where the reply to one request is built. `'g` is the gate's life, `'t` the transport's memory.
pub(crate) struct Replier<'g, 't> {
    pool: &'t BufPool,
    /// The transport's own memory for a large reply; may be empty.
    room: &'t mut [u8],
    scratch: &'t mut Vec<u8>,
    pooled: Option<PooledBuf>,
    parking: &'t dyn Parking,
    reply: Reply<'g>,
}

/// Where a request can be left until it is answered.
pub(crate) trait Parking {
    /// `None` where there is no room for one more.
    fn later(&self) -> Option<Later>;
}

/// Answers a parked request with an error number, or 0.
pub(crate) struct Later(Box<dyn FnOnce(i32) + Send>);

impl Later {
    pub(crate) fn new(send: impl FnOnce(i32) + Send + 'static) -> Later {
        Later(Box::new(send))
    }

    pub(crate) fn send(self, error: i32) {
        (self.0)(error);
    }
}

/// What a handler answered.
#[derive(Default)]
pub(crate) struct Reply<'g> {
    pub(crate) error: i32,
    pub(crate) body: Body,
    pub(crate) gate: Option<Gate<'g>>,
    /// Ends when the kernel has the reply.
    pub(crate) read: Option<ReadUnderWay>,
}

/// Where the bytes of a reply are.
#[derive(Default)]
pub(crate) enum Body {
    /// The protocol wants no reply, or the handler gave none.
    #[default]
    Silent,
    /// The reply comes by [`Later`], or has come.
    Parked,
    Empty,
    Scratch,
    /// So many bytes of the transport's memory.
    Room(usize),
    Pooled(PooledBuf),
}

impl<'g, 't> Replier<'g, 't> {
    pub(crate) fn new(
        pool: &'t BufPool,
        room: &'t mut [u8],
        scratch: &'t mut Vec<u8>,
        parking: &'t dyn Parking,
    ) -> Replier<'g, 't> {
        Replier { pool, room, scratch, pooled: None, parking, reply: Reply::default() }
    }

    /// The means to answer when the handler has returned.
    pub(crate) fn later(&self) -> Option<Later> {
        self.parking.later()
    }

    /// [`Later`] answers.
    pub(crate) fn parked(&mut self) {
        self.reply.body = Body::Parked;
    }

    /// Success, with raw bytes.
    pub(crate) fn bytes(&mut self, body: &[u8]) {
        self.scratch.clear();
        self.scratch.extend_from_slice(body);
        self.reply.body = Body::Scratch;
    }

    /// Success, with bytes that were built for it.
    pub(crate) fn owned(&mut self, body: Vec<u8>) {
        *self.scratch = body;
        self.reply.body = Body::Scratch;
    }

    /// Success, with a structure.
    pub(crate) fn value<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.bytes(value.as_bytes());
    }

    /// Success, with nothing.
    pub(crate) fn ok(&mut self) {
        self.reply.body = Body::Empty;
    }

    pub(crate) fn error(&mut self, errno: i32) {
        self.reply.error = -errno;
        self.reply.body = Body::Empty;
    }

    /// Memory for a reply of up to `len` bytes, the transport's own where it has any.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        if len <= self.room.len() {
            return &mut self.room[..len];
        }
        let buf = self.pooled.insert(self.pool.take());
        buf.set_len(len);
        buf
    }

    /// Success, with the first `len` bytes of what `room` gave.
    pub(crate) fn filled(&mut self, len: usize) {
        self.reply.body = match self.pooled.take() {
            Some(mut buf) => {
                buf.set_len(len);
                Body::Pooled(buf)
            }
            None => Body::Room(len),
        };
    }

    /// Keeps the gate until the kernel has the reply.
    pub(crate) fn hold(&mut self, gate: Gate<'g>) {
        self.reply.gate = Some(gate);
    }

    /// Keeps the read under way until the kernel has the reply.
    pub(crate) fn keep(&mut self, read: ReadUnderWay) {
        self.reply.read = Some(read);
    }

    /// What is to be sent.
    pub(crate) fn finish(self) -> Reply<'g> {
        self.reply
    }
}

pub(crate) fn attr(a: &meta::Attr) -> Attr {
    Attr {
        ino: a.ino.0,
        size: a.size,
        blocks: a.allocated.div_ceil(512),
        atime: a.atime.sec as u64,
        mtime: a.mtime.sec as u64,
        ctime: a.ctime.sec as u64,
        atimensec: a.atime.nsec,
        mtimensec: a.mtime.nsec,
        ctimensec: a.ctime.nsec,
        mode: a.mode,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: 4096,
        flags: 0,
    }
}

pub(crate) fn attr_out(a: &meta::Attr, valid: Duration) -> AttrOut {
    AttrOut {
        attr_valid: valid.as_secs(),
        attr_valid_nsec: valid.subsec_nanos(),
        dummy: 0,
        attr: attr(a),
    }
}

/// All that `stat` shows, and the birth time.
const STATX_ALL: u32 = 0x0fff;

pub(crate) fn statx_out(a: &meta::Attr, valid: Duration) -> StatxOut {
    let time = |t: meta::Time| StatxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
    let flat = attr(a);
    let device = u64::from(a.rdev);
    StatxOut {
        attr_valid: valid.as_secs(),
        attr_valid_nsec: valid.subsec_nanos(),
        mask: STATX_ALL,
        blksize: flat.blksize,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        mode: a.mode as u16,
        ino: a.ino.0,
        size: a.size,
        blocks: flat.blocks,
        atime: time(a.atime),
        btime: time(a.btime),
        ctime: time(a.ctime),
        mtime: time(a.mtime),
        rdev_major: rustix::fs::major(device),
        rdev_minor: rustix::fs::minor(device),
        ..StatxOut::default()
    }
}

pub(crate) fn entry_out(entry: &Entry, name_valid: Duration, attr_valid: Duration) -> EntryOut {
    EntryOut {
        nodeid: entry.ino.0,
        generation: u64::from(entry.attr.generation),
        entry_valid: name_valid.as_secs(),
        attr_valid: attr_valid.as_secs(),
        entry_valid_nsec: name_valid.subsec_nanos(),
        attr_valid_nsec: attr_valid.subsec_nanos(),
        attr: attr(&entry.attr),
    }
}
