//! GETATTR, SETATTR, ACCESS, and attributes in the protocol's form.

use nuri_client::Privileges;
use nuri_proto::op::meta::{Attr, SetAttr, SetTime, Time};

use super::{Files, Node};
use crate::permission::{EXECUTE, READ, WRITE};
use crate::protocol::attributes::{
    Attributes, FileKind, NewAttributes, NewTime, NfsTime, write_after,
};
use crate::protocol::status::NfsStatus;
use crate::rpc::xdr::Writer;

const MODE_BITS: u32 = 0o7777;
const S_ISGID: u32 = 0o2000;

/// Of ACCESS (RFC 1813, 3.3.4).
const MAY_READ: u32 = 1;
const MAY_LOOK_UP: u32 = 2;
const MAY_MODIFY: u32 = 4;
const MAY_EXTEND: u32 = 8;
const MAY_DELETE: u32 = 16;
const MAY_EXECUTE: u32 = 32;

fn kind(mode: u32) -> FileKind {
    match mode & 0o170_000 {
        0o040_000 => FileKind::Directory,
        0o060_000 => FileKind::Block,
        0o020_000 => FileKind::Character,
        0o120_000 => FileKind::Link,
        0o140_000 => FileKind::Socket,
        0o010_000 => FileKind::Fifo,
        _ => FileKind::Regular,
    }
}

/// Times that the protocol cannot say become the nearest that it can.
fn nfs_time(time: Time) -> NfsTime {
    let (seconds, nanoseconds) = (time.sec.clamp(0, u32::MAX.into()) as u32, time.nsec);
    NfsTime { seconds, nanoseconds }
}

/// Major and minor number, of the kernel's number of a device.
fn device(number: u32) -> (u32, u32) {
    (number >> 8 & 0xfff, number & 0xff | number >> 12 & 0xfff00)
}

/// The kernel's number of a device, if it has one.
pub(super) fn device_number(major: u32, minor: u32) -> Option<u32> {
    let fits = major < 1 << 12 && minor < 1 << 20;
    fits.then_some(minor & 0xff | major << 8 | (minor & !0xff) << 12)
}

/// Attributes in the protocol's form.
pub(super) fn told(attr: &Attr, file_system: u64) -> Attributes {
    Attributes {
        kind: kind(attr.mode),
        mode: attr.mode & MODE_BITS,
        links: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.allocated,
        device: device(attr.rdev),
        file_system,
        number: attr.ino.0,
        accessed: nfs_time(attr.atime),
        modified: nfs_time(attr.mtime),
        changed: nfs_time(attr.ctime),
    }
}

fn set_time(new: NewTime) -> SetTime {
    match new {
        NewTime::Now => SetTime::Now,
        NewTime::At(NfsTime { seconds, nanoseconds }) => {
            SetTime::At(Time { sec: seconds.into(), nsec: nanoseconds })
        }
    }
}

impl Files {
    pub(super) fn get_attributes(&self, node: Node, out: &mut Writer) -> Result<(), NfsStatus> {
        out.number(NfsStatus::OK.0);
        node.told(&node.attr).write(out);
        Ok(())
    }

    pub(super) fn access(
        &self,
        node: &Node,
        wanted: u32,
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        let allowed = self.allowed(&node.attr, &node.caller)?;
        let has = |bit, gives: u32| if allowed & bit != 0 { gives } else { 0 };
        let changes = if node.check_writable().is_err() {
            0
        } else if node.is_directory() {
            has(WRITE, MAY_MODIFY | MAY_EXTEND | MAY_DELETE)
        } else {
            has(WRITE, MAY_MODIFY | MAY_EXTEND)
        };
        let runs = if node.is_directory() { MAY_LOOK_UP } else { MAY_EXECUTE };
        out.number(NfsStatus::OK.0);
        write_after(Some(&node.told(&node.attr)), out);
        out.number(wanted & (has(READ, MAY_READ) | changes | has(EXECUTE, runs)));
        Ok(())
    }

    pub(super) fn set_attributes(
        &self,
        node: &Node,
        (new, guard): (&NewAttributes, Option<NfsTime>),
        out: &mut Writer,
    ) -> Result<(), NfsStatus> {
        node.check_writable()?;
        if guard.is_some_and(|guard| guard != nfs_time(node.attr.ctime)) {
            return Err(NfsStatus::NOT_SYNC);
        }
        self.check_change(node, new)?;
        self.change(node, new)?;
        self.make_durable(node.ino())?;
        out.number(NfsStatus::OK.0);
        self.wcc(node, 1).write(out);
        Ok(())
    }

    /// As the kernel decides who may change what.
    fn check_change(&self, node: &Node, new: &NewAttributes) -> Result<(), NfsStatus> {
        let (attr, caller) = (&node.attr, &node.caller);
        let gives_away = new.uid.is_some_and(|uid| uid != attr.uid);
        let to_strangers = new.gid.is_some_and(|gid| gid != attr.gid && !caller.is_in(gid));
        if (gives_away || to_strangers) && !caller.is_root() {
            return Err(NfsStatus::PERM);
        }
        let is_owners = new.mode.is_some() || new.uid.is_some() || new.gid.is_some();
        let sets = |time: Option<NewTime>| matches!(time, Some(NewTime::At(_)));
        if (is_owners || sets(new.accessed) || sets(new.modified)) && !caller.owns(attr) {
            return Err(NfsStatus::PERM);
        }
        let touches = new.accessed.is_some() || new.modified.is_some();
        if touches && !caller.owns(attr) {
            self.check(node, WRITE)?;
        }
        match new.size {
            None => Ok(()),
            Some(_) if node.is_directory() => Err(NfsStatus::ISDIR),
            Some(_) if !node.is_file() => Err(NfsStatus::INVAL),
            Some(_) => self.check_data(node, WRITE),
        }
    }

    /// Changes attributes; nobody is asked whether that may be.
    pub(super) fn change(&self, node: &Node, new: &NewAttributes) -> Result<(), NfsStatus> {
        let ino = node.ino();
        let owner = new.uid.is_some() || new.gid.is_some();
        if owner || new.size.is_some() {
            let keeps = node.caller.is_root() && !owner;
            let taken = if keeps { Privileges::Capabilities } else { Privileges::All };
            self.client.drop_privileges(ino, taken)?;
        }
        let group = new.gid.unwrap_or(node.attr.gid);
        let keeps_group = node.caller.is_root() || node.caller.is_in(group);
        let bits = if keeps_group { MODE_BITS } else { MODE_BITS & !S_ISGID };
        let change = SetAttr {
            ino,
            mode: new.mode.map(|mode| mode & bits),
            uid: new.uid,
            gid: new.gid,
            size: new.size,
            atime: new.accessed.map(set_time),
            mtime: new.modified.map(set_time),
        };
        if change != (SetAttr { ino, ..SetAttr::default() }) {
            match new.size {
                Some(_) => self.client.setattr_durably(&change)?,
                None => self.client.setattr(&change)?,
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_times_are_told_as_they_are() {
        for (major, minor) in [(8, 1), (259, 70_000), (4095, (1 << 20) - 1)] {
            let number = device_number(major, minor).unwrap();
            assert_eq!(device(number), (major, minor));
        }
        assert_eq!((device_number(4096, 0), device_number(0, 1 << 20)), (None, None));
        let seconds = |sec| nfs_time(Time { sec, nsec: 7 }).seconds;
        assert_eq!((seconds(-1), seconds(1 << 31), seconds(1 << 33)), (0, 1 << 31, u32::MAX));
    }
}
