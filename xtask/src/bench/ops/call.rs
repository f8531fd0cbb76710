//! The calls that are measured: each is done in a directory of its own, again and again.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, FileType, FlockOperation, Mode, XattrFlags, fcntl_lock, flock, mknodat, setxattr,
};

use super::TIMES;

/// What programs do in one go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    CreateRenameUnlink,
    SymlinkUnlink,
    MakeAndRemoveDirectory,
    ChangeModeAndTimes,
    Fifo,
    FifoOpened,
    LinkUnlink,
    CreateLinkUnlink,
    LockFileByLink,
    RenameDirectory,
    SetXattr,
    SetList,
    CreateListed,
    Flock,
    RecordLock,
    GrowAndCutToZero,
    WriteAndCutShort,
    CutStored,
    WriteAndSync,
    OpenTruncated,
    SmallFile(usize),
}

/// What one change of what is stored takes off, or writes.
const CUT: u64 = 4096;

impl Call {
    pub(super) const ALL: [Call; 22] = [
        Call::CreateRenameUnlink,
        Call::SymlinkUnlink,
        Call::MakeAndRemoveDirectory,
        Call::ChangeModeAndTimes,
        Call::Fifo,
        Call::FifoOpened,
        Call::LinkUnlink,
        Call::CreateLinkUnlink,
        Call::LockFileByLink,
        Call::RenameDirectory,
        Call::SetXattr,
        Call::SetList,
        Call::CreateListed,
        Call::Flock,
        Call::RecordLock,
        Call::GrowAndCutToZero,
        Call::WriteAndCutShort,
        Call::CutStored,
        Call::WriteAndSync,
        Call::OpenTruncated,
        Call::SmallFile(16 << 10),
        Call::SmallFile(64 << 10),
    ];

    pub(super) fn name(self) -> String {
        let name = match self {
            Call::CreateRenameUnlink => "create, rename, unlink",
            Call::SymlinkUnlink => "symlink, unlink",
            Call::MakeAndRemoveDirectory => "mkdir, rmdir",
            Call::ChangeModeAndTimes => "chmod, utimes",
            Call::Fifo => "mkfifo, unlink",
            Call::FifoOpened => "mkfifo, open, close, unlink",
            Call::LinkUnlink => "link, unlink",
            Call::CreateLinkUnlink => "create, link, 2 unlinks",
            Call::LockFileByLink => "lock file: create, link, rename, unlink",
            Call::RenameDirectory => "mkdir, rename, rmdir",
            Call::SetXattr => "setxattr",
            Call::SetList => "set an access list",
            Call::CreateListed => "create under a default list, unlink",
            Call::Flock => "flock, unlock",
            Call::RecordLock => "fcntl lock, unlock",
            Call::GrowAndCutToZero => "write, grow, cut to 0",
            Call::WriteAndCutShort => "write 9000, cut to 100",
            Call::CutStored => "cut 4 KiB off what is stored",
            Call::WriteAndSync => "write 4 KiB, fdatasync",
            Call::OpenTruncated => "open(O_TRUNC), write 10 kB, close",
            Call::SmallFile(len) => return format!("create, write {} KiB, close", len >> 10),
        };
        name.into()
    }

    /// Whether it sets extended attributes.
    pub(super) fn needs_xattrs(self) -> bool {
        matches!(self, Call::SetXattr | Call::SetList | Call::CreateListed)
    }

    /// Milliseconds that it may take on an idle machine.
    pub(super) fn aim(self) -> f64 {
        match self {
            Call::Flock | Call::RecordLock => 0.05,
            Call::RenameDirectory | Call::WriteAndCutShort | Call::CutStored => 0.5,
            Call::SmallFile(_) => 0.5,
            Call::OpenTruncated | Call::WriteAndSync => 1.0,
            _ => 0.2,
        }
    }

    /// What the others are counted in: the journal takes it.
    pub(super) const UNIT: Call = Call::SymlinkUnlink;

    /// Whether the disk decides what it costs, and not the processor.
    pub(super) fn waits_for_the_disk(self) -> bool {
        matches!(self, Call::CutStored | Call::WriteAndSync)
    }

    /// What it usually costs: in units of `WriteAndSync` on the disk itself where the disk decides,
    /// else of [`Call::UNIT`].
    pub(super) fn usual(self) -> f64 {
        match self {
            Call::ChangeModeAndTimes | Call::SetXattr | Call::SetList => 0.5,
            Call::Flock | Call::RecordLock => 4.0,
            Call::LockFileByLink | Call::SmallFile(_) => 3.0,
            Call::CreateLinkUnlink => 2.5,
            Call::Fifo | Call::FifoOpened | Call::MakeAndRemoveDirectory => 1.2,
            Call::OpenTruncated | Call::GrowAndCutToZero | Call::WriteAndCutShort => 1.0,
            Call::CutStored => 20.0,
            Call::WriteAndSync => 5.0,
            _ => 2.0,
        }
    }

    /// Does it so many times in a directory, with names that end in `who`.
    pub(super) fn repeat(self, dir: &Path, who: &str, times: usize) -> std::io::Result<()> {
        let place = Place::of(dir, who)?;
        if self.waits_for_the_disk() {
            place.store(times)?;
        }
        (0..times).try_for_each(|i| match self {
            Call::ChangeModeAndTimes
            | Call::SetXattr
            | Call::SetList
            | Call::Flock
            | Call::RecordLock => self.change_attributes(&place, i),
            Call::GrowAndCutToZero
            | Call::WriteAndCutShort
            | Call::CutStored
            | Call::WriteAndSync
            | Call::OpenTruncated
            | Call::SmallFile(_) => self.change_data(&place, i),
            _ => self.change_names(&place),
        })
    }

    /// What changes names.
    fn change_names(self, place: &Place) -> std::io::Result<()> {
        let Place { a, b, kept, .. } = place;
        match self {
            Call::CreateRenameUnlink => {
                File::create(a)?;
                fs::rename(a, b)?;
                fs::remove_file(b)
            }
            Call::SymlinkUnlink => {
                symlink("kept", a)?;
                fs::remove_file(a)
            }
            Call::MakeAndRemoveDirectory => {
                fs::create_dir(a)?;
                fs::remove_dir(a)
            }
            Call::Fifo => {
                make_fifo(a)?;
                fs::remove_file(a)
            }
            Call::FifoOpened => {
                make_fifo(a)?;
                OpenOptions::new().read(true).write(true).open(a)?;
                fs::remove_file(a)
            }
            Call::LinkUnlink => {
                fs::hard_link(kept, a)?;
                fs::remove_file(a)
            }
            Call::CreateLinkUnlink => {
                File::create(a)?;
                fs::hard_link(a, b)?;
                fs::remove_file(a)?;
                fs::remove_file(b)
            }
            Call::LockFileByLink => {
                let locked = a.with_extension("locked");
                File::create(a)?;
                fs::hard_link(a, b)?;
                fs::rename(b, &locked)?;
                fs::remove_file(a)?;
                fs::remove_file(&locked)
            }
            Call::CreateListed => {
                let made = place.listed()?.join(kept.file_name().unwrap_or_default());
                File::create(&made)?;
                fs::remove_file(&made)
            }
            _ => {
                fs::create_dir(a)?;
                fs::rename(a, b)?;
                fs::remove_dir(b)
            }
        }
    }

    /// What changes attributes and locks of a file.
    fn change_attributes(self, Place { kept, file, .. }: &Place, i: usize) -> std::io::Result<()> {
        match self {
            Call::ChangeModeAndTimes => {
                fs::set_permissions(kept, Permissions::from_mode(0o600 + (i as u32 & 7)))?;
                file.set_modified(std::time::SystemTime::now())
            }
            Call::SetXattr => Ok(setxattr(kept, "user.n", &i.to_le_bytes(), XattrFlags::empty())?),
            Call::SetList => {
                let name = "system.posix_acl_access";
                Ok(setxattr(kept, name, &access_list(i as u8 & 7), XattrFlags::empty())?)
            }
            Call::Flock => {
                flock(file, FlockOperation::LockExclusive)?;
                Ok(flock(file, FlockOperation::Unlock)?)
            }
            _ => {
                fcntl_lock(file, FlockOperation::LockExclusive)?;
                Ok(fcntl_lock(file, FlockOperation::Unlock)?)
            }
        }
    }

    /// What changes data and sizes.
    fn change_data(self, Place { a, kept, file, .. }: &Place, i: usize) -> std::io::Result<()> {
        match self {
            Call::GrowAndCutToZero => {
                file.write_all_at(b"x", 20_000)?;
                file.set_len(50_000)?;
                file.set_len(0)
            }
            Call::WriteAndCutShort => {
                file.write_all_at(&[7; 9000], 0)?;
                file.set_len(100)
            }
            Call::CutStored => file.set_len(file.metadata()?.len() - CUT),
            Call::WriteAndSync => {
                file.write_all_at(&[i as u8; CUT as usize], i as u64 * CUT)?;
                file.sync_data()
            }
            Call::SmallFile(len) => {
                File::create(a.with_extension(i.to_string()))?.write_all(&vec![7; len])
            }
            _ => fs::write(kept, [7; 10_000]),
        }
    }
}

/// Where calls are done.
struct Place {
    dir: PathBuf,
    a: PathBuf,
    b: PathBuf,
    /// A file that stays.
    kept: PathBuf,
    file: File,
}

impl Place {
    fn of(dir: &Path, who: &str) -> std::io::Result<Place> {
        let [a, b, kept] = ["a", "b", "kept"].map(|name| dir.join(format!("{name}{who}")));
        let file = open(&kept)?;
        Ok(Place { dir: dir.into(), a, b, kept, file })
    }

    /// Bytes for so many changes, durable; who asks for none gets some for later.
    fn store(&self, times: usize) -> std::io::Result<()> {
        let (len, wanted) = (self.file.metadata()?.len(), times as u64 * CUT);
        if len == 0 || len < wanted {
            self.file.write_all_at(&vec![7; wanted.max(TIMES as u64 * CUT) as usize], 0)?;
            self.file.sync_all()?;
        }
        Ok(())
    }

    /// A directory with a default list.
    fn listed(&self) -> std::io::Result<PathBuf> {
        let listed = self.dir.join("listed");
        if !listed.exists() {
            // Another mount may make it too.
            let _ = fs::create_dir(&listed);
            let name = "system.posix_acl_default";
            setxattr(&listed, name, &access_list(7), XattrFlags::empty())?;
        }
        Ok(listed)
    }
}

/// An access control list: owner, user 12, group, this mask, others.
fn access_list(mask: u8) -> Vec<u8> {
    let entry = |(tag, rights, id): (u8, u8, u8)| [tag, 0, rights, 0, id, id, id, id];
    let entries = [(1, 7, 255), (2, 7, 12), (4, 5, 255), (16, mask, 255), (32, 0, 255)];
    [&[2, 0, 0, 0][..], entries.map(entry).as_flattened()].concat()
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o644).open(path)
}

fn make_fifo(path: &Path) -> std::io::Result<()> {
    Ok(mknodat(CWD, path, FileType::Fifo, Mode::from(0o644), 0)?)
}
