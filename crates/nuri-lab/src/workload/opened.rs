//! An open file of a transfer: opened by the kernel, or by a library.

use std::fs::File;
use std::io::{self, Read, Write};
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

/// The same from its beginning on, one piece after the other.
pub(super) struct InARow {
    pub(super) file: Box<dyn Opened>,
    at: u64,
}

impl InARow {
    pub(super) fn of(file: Box<dyn Opened>) -> InARow {
        InARow { file, at: 0 }
    }
}

impl Read for InARow {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(buf, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Write for InARow {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let len = self.file.write_at(buf, self.at)?;
        self.at += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
