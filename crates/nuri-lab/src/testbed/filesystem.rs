//! A local file system on a volume of the space, for each mount's machine: what a virtual machine
//! or a database has where it uses a volume.
//!
//! ```text
//! ext4 at fsN -> loop device -> nbdN/nbd (nbdfuse) -> nuri volume serve
//! ```
//!
//! The kernel's own NBD client is not used: it connects from the first network namespace only, and
//! would not meet the testbed's cables.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Testbed;
use super::serve::run;
use crate::server::Server;
use crate::{LabError, Result, at};

/// A file system whose servers are gone is given up after this.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
/// Few, so that little is written before anything is measured.
const INODES: &str = "4096";

impl Testbed {
    /// Where the file system of a mount's machine is.
    pub(super) fn filesystem(&self, mount: u64) -> PathBuf {
        self.settings.dir.join(format!("fs{mount}"))
    }

    fn nbdfuse(&self, mount: u64) -> PathBuf {
        self.settings.dir.join(format!("nbd{mount}"))
    }

    /// Makes an ext4 on the volume of that server.
    pub(super) fn make_filesystem(&self, mount: u64, volume: &Server) -> Result<()> {
        let (dir, point) = (self.nbdfuse(mount), self.filesystem(mount));
        for new in [&dir, &point] {
            std::fs::create_dir_all(new).map_err(at(new.display()))?;
        }
        let mut client = self.command_of(mount, "nbdfuse")?;
        client.arg(&dir).arg(volume.to_string());
        client.spawn().map_err(at("nbdfuse; install libnbd-bin"))?;
        let image = dir.join("nbd");
        self.wait(&format!("nothing is at {}", image.display()), || Ok(image.exists()))?;
        let mut format = Command::new("mkfs.ext4");
        // All that a new file system would write by and by, it writes now.
        let now = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run(format.args(["-q", "-F", "-E", now, "-N", INODES]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&point)).map(drop)
    }

    /// Takes the file systems away, while their servers run. Where one of these stands still, what
    /// the file system has not written is lost once the server is gone.
    pub(super) fn leave_filesystems(&self) {
        for point in (0..self.settings.mounts).map(|mount| self.filesystem(mount)) {
            if !point.exists() {
                continue;
            }
            let mut leave = Command::new("umount");
            // One that is not mounted is no error.
            leave.arg("-q").arg(&point).stdout(Stdio::null()).stderr(Stdio::null());
            let Ok(mut leaving) = leave.spawn() else { continue };
            let start = Instant::now();
            while matches!(leaving.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
                std::thread::sleep(POLL);
            }
        }
    }

    /// Whatever is left of them once all processes are gone.
    pub(super) fn detach_filesystem(&self, mount: u64) {
        use rustix::mount::{UnmountFlags, unmount};
        for point in [self.filesystem(mount), self.nbdfuse(mount)] {
            let _ = unmount(point, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }
}

/// The programs are there.
pub(super) fn check_tools() -> Result<()> {
    for (program, package) in [("nbdfuse", "libnbd-bin"), ("mkfs.ext4", "e2fsprogs")] {
        let mut look = Command::new(program);
        look.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
        let missing = |e| LabError(format!("{program}: {e}; install {package}"));
        look.status().map(drop).map_err(missing)?;
    }
    Ok(())
}
