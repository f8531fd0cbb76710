//! How operations change attributes. The server uses the same code as a client that answers from
//! its journal before the server knows.

use nuri_rules::broken;

use crate::clock::CLOCKS_APART;
use crate::op::meta::{Attr, SetAttr, SetTime, Time};

/// Type bits of the mode.
pub const S_IFMT: u32 = 0o170_000;
pub const S_IFDIR: u32 = 0o040_000;
pub const S_IFREG: u32 = 0o100_000;
pub const S_IFCHR: u32 = 0o020_000;
pub const S_IFBLK: u32 = 0o060_000;
pub const S_IFIFO: u32 = 0o010_000;
pub const S_IFSOCK: u32 = 0o140_000;
pub const S_IFLNK: u32 = 0o120_000;
pub const S_ISGID: u32 = 0o2000;

impl SetTime {
    /// The time that is meant, if the present time is `now`.
    pub fn at(self, now: Time) -> Time {
        match self {
            SetTime::Now => now,
            SetTime::At(time) => time,
        }
    }
}

const SECOND: i64 = 1_000_000_000;

impl Time {
    /// Nanoseconds since 1970, as far as they can be counted (1677 to 2262).
    pub fn nanos(self) -> i64 {
        self.sec.saturating_mul(SECOND).saturating_add(i64::from(self.nsec))
    }

    pub fn of_nanos(nanos: i64) -> Time {
        Time { sec: nanos.div_euclid(SECOND), nsec: nanos.rem_euclid(SECOND) as u32 }
    }

    /// The stamp after `self`, where a clock says `clock`. It is later than `self`, whatever the
    /// clock does. The exception: the clock went back by more than the error of a synchronised
    /// clock. Then the clock was wrong before.
    #[must_use]
    pub fn next(self, clock: Time) -> Time {
        if clock > self || self.is_beyond(clock) { clock } else { Time::of_nanos(self.nanos() + 1) }
    }

    /// Whether no synchronised clock could show this time when another one shows `clock`.
    pub fn is_beyond(self, clock: Time) -> bool {
        let apart = self.nanos().saturating_sub(clock.nanos());
        apart > CLOCKS_APART.as_nanos() as i64 && !broken!("wrong_clock_stays")
    }
}

/// The attribute that holds capabilities of a program's file.
pub const CAPABILITY: &[u8] = b"security.capability";

impl Attr {
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    /// Notes that attributes changed.
    pub fn changed(&mut self, now: Time) {
        self.ctime = now;
        self.change += 1;
    }

    /// Notes that data is durable that its writer already stamped. That changes no time, because a
    /// program that looked at the file meanwhile saw these times.
    pub fn published(&mut self, mtime: Option<Time>) {
        self.change += 1;
        if let Some(mtime) = mtime {
            (self.mtime, self.ctime) = (mtime, self.ctime.max(mtime));
        }
    }

    /// Notes that data (or entries) and attributes changed.
    pub fn touched(&mut self, now: Time) {
        self.mtime = now;
        self.changed(now);
    }

    /// Notes that a directory got a name, of a directory or of another inode.
    pub fn name_added(&mut self, is_dir: bool, now: Time) {
        self.size += 1;
        self.nlink += u32::from(is_dir);
        self.touched(now);
    }

    /// Notes that a directory lost a name.
    pub fn name_removed(&mut self, is_dir: bool, now: Time) {
        self.size = self.size.saturating_sub(1);
        self.nlink = self.nlink.saturating_sub(u32::from(is_dir));
        self.touched(now);
    }

    /// Notes that the inode got a further name.
    pub fn link_added(&mut self, now: Time) {
        self.nlink += 1;
        self.changed(now);
    }

    /// Notes that the inode lost a name. A directory has only one.
    pub fn link_dropped(&mut self, now: Time) {
        self.nlink = if self.is_dir() { 0 } else { self.nlink.saturating_sub(1) };
        self.changed(now);
    }

    /// Sets mode, owner and times, as far as `set` has them.
    pub fn set(&mut self, set: &SetAttr, now: Time) {
        if let Some(mode) = set.mode {
            self.mode = self.mode & S_IFMT | mode & 0o7777;
        }
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        self.atime = set.atime.map_or(self.atime, |time| time.at(now));
        self.changed(now);
        self.mtime = set.mtime.map_or(self.mtime, |time| time.at(now));
    }

    /// Notes that the file was truncated to 0, and sets what else `set` has.
    pub fn emptied(&mut self, set: &SetAttr, now: Time) {
        (self.size, self.allocated) = (0, 0);
        self.touched(now);
        self.set(set, now);
    }

    /// The attributes of a new inode in the directory; `mode` includes the type. The group and, for
    /// directories, set-group-id come from a directory that hands them down.
    pub fn made(&self, mode: u32, (uid, gid): (u32, u32), now: Time) -> Attr {
        let hands_down = self.mode & S_ISGID != 0;
        let is_dir = mode & S_IFMT == S_IFDIR;
        Attr {
            generation: 1,
            mode: mode | if hands_down && is_dir { S_ISGID } else { 0 },
            nlink: if is_dir { 2 } else { 1 },
            uid,
            gid: if hands_down { self.gid } else { gid },
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            change: 1,
            ..Attr::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_advance_and_follow_a_clock_that_was_wrong() {
        let at = |sec, nsec| Time { sec, nsec };
        assert_eq!(at(5, 7).next(at(6, 0)), at(6, 0));
        assert_eq!(at(5, 7).next(at(5, 7)), at(5, 8), "the clock stands");
        assert_eq!(at(5, 999_999_999).next(at(4, 0)), at(6, 0), "it went back a little");
        assert_eq!(at(900_000, 0).next(at(5, 0)), at(5, 0), "it was ten days ahead");
        assert_eq!(at(-1, 999_999_999).next(at(-5, 0)), at(0, 0));
        assert_eq!(Time::of_nanos(-1), at(-1, 999_999_999));
    }

    #[test]
    fn what_is_published_keeps_the_times_of_its_writer() {
        let (then, now) = (Time { sec: 5, nsec: 0 }, Time { sec: 6, nsec: 0 });
        let mut attr = Attr { ctime: now, mtime: now, ..Attr::default() };
        attr.published(None);
        assert_eq!((attr.mtime, attr.ctime, attr.change), (now, now, 1));
        attr.published(Some(then));
        assert_eq!((attr.mtime, attr.ctime, attr.change), (then, now, 2), "its mode was set later");
    }

    #[test]
    fn a_directory_hands_down_its_group() {
        let now = Time { sec: 5, nsec: 0 };
        let dir = Attr { mode: S_IFDIR | S_ISGID | 0o755, gid: 7, nlink: 2, ..Attr::default() };
        let below = dir.made(S_IFDIR | 0o700, (1, 2), now);
        assert_eq!((below.mode, below.gid, below.nlink), (S_IFDIR | S_ISGID | 0o700, 7, 2));
        let file = Attr { gid: 7, ..Attr::default() }.made(S_IFREG | 0o600, (1, 2), now);
        assert_eq!((file.mode, file.uid, file.gid), (S_IFREG | 0o600, 1, 2));
    }

    #[test]
    fn names_change_a_directory_and_back() {
        let (then, now) = (Time { sec: 5, nsec: 0 }, Time { sec: 6, nsec: 0 });
        let mut dir = Attr { mode: S_IFDIR, nlink: 2, ..Attr::default() };
        dir.name_added(true, then);
        assert_eq!((dir.size, dir.nlink, dir.mtime, dir.change), (1, 3, then, 1));
        dir.name_removed(true, now);
        assert_eq!((dir.size, dir.nlink, dir.ctime, dir.change), (0, 2, now, 2));
    }

    #[test]
    fn times_are_set_after_the_change_is_stamped() {
        let (then, now) = (Time { sec: 5, nsec: 0 }, Time { sec: 6, nsec: 0 });
        let mut attr = Attr { mode: S_IFREG | 0o777, ..Attr::default() };
        let set =
            SetAttr { mode: Some(0o600), mtime: Some(SetTime::At(then)), ..SetAttr::default() };
        attr.set(&set, now);
        assert_eq!((attr.mode, attr.mtime, attr.ctime), (S_IFREG | 0o600, then, now));
    }
}
