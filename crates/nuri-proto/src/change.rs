//! What operations do to attributes: the same where a server runs them and where a client answers
//! from its log before.

use crate::op::meta::{Attr, SetAttr, SetTime, Time};

/// Type bits of the mode.
pub const S_IFMT: u32 = 0o170_000;
pub const S_IFDIR: u32 = 0o040_000;
pub const S_IFREG: u32 = 0o100_000;
pub const S_IFLNK: u32 = 0o120_000;
pub const S_ISGID: u32 = 0o2000;

impl SetTime {
    /// The time meant, at `now`.
    pub fn at(self, now: Time) -> Time {
        match self {
            SetTime::Now => now,
            SetTime::At(time) => time,
        }
    }
}

/// The attribute that holds capabilities of a program's file.
pub const CAPABILITY: &[u8] = b"security.capability";

impl Attr {
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    /// Attributes changed.
    pub fn changed(&mut self, now: Time) {
        self.ctime = now;
        self.change += 1;
    }

    /// Data (or entries) and attributes changed.
    pub fn touched(&mut self, now: Time) {
        self.mtime = now;
        self.changed(now);
    }

    /// A directory got a name, of a directory or something else.
    pub fn name_added(&mut self, is_dir: bool, now: Time) {
        self.size += 1;
        self.nlink += u32::from(is_dir);
        self.touched(now);
    }

    /// A directory lost a name.
    pub fn name_removed(&mut self, is_dir: bool, now: Time) {
        self.size = self.size.saturating_sub(1);
        self.nlink = self.nlink.saturating_sub(u32::from(is_dir));
        self.touched(now);
    }

    /// The inode lost a name; directories have one only.
    pub fn link_dropped(&mut self, now: Time) {
        self.nlink = if self.is_dir() { 0 } else { self.nlink.saturating_sub(1) };
        self.changed(now);
    }

    /// What is set of mode, owner and times.
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

    /// An inode made in the directory: `mode` with its type. Group and, for directories,
    /// set-group-id come from a directory that hands them down.
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
