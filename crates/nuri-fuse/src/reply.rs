//! Building replies.

use std::io::IoSlice;
use std::time::Duration;

use nuri_client::Entry;
use nuri_proto::op::meta;
use zerocopy::{Immutable, IntoBytes};

use crate::abi::{Attr, AttrOut, EntryOut, OutHeader};
use crate::device::Device;

/// Where the reply to one request goes.
pub(crate) struct Replier<'a> {
    pub(crate) device: &'a Device,
    pub(crate) unique: u64,
}

impl Replier<'_> {
    /// Success, with raw bytes.
    pub(crate) fn bytes(&self, body: &[u8]) {
        self.send(0, body);
    }

    /// Success, with a structure.
    pub(crate) fn value<T: IntoBytes + Immutable>(&self, value: &T) {
        self.send(0, value.as_bytes());
    }

    /// Success, with nothing.
    pub(crate) fn ok(&self) {
        self.send(0, &[]);
    }

    pub(crate) fn error(&self, errno: i32) {
        self.send(-errno, &[]);
    }

    fn send(&self, error: i32, body: &[u8]) {
        let len = (size_of::<OutHeader>() + body.len()) as u32;
        let header = OutHeader { len, error, unique: self.unique };
        // A request that was aborted meanwhile wants no reply.
        let _ = self.device.write(&[IoSlice::new(header.as_bytes()), IoSlice::new(body)]);
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
