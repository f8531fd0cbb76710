//! An open file of a transfer: of the kernel, or of a library.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A file, however it is reached.
pub(super) trait Opened: FileExt {
    fn sync(&self) -> io::Result<()>;
    fn close(self: Box<Self>) -> io::Result<()>;
}

impl Opened for File {
    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}
