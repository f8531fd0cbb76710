//! Rotation of logs: when `node0.log` has grown long, it becomes `node0.log.1`, that becomes
//! `node0.log.2`, and so on. The oldest file is removed. Output that does not come by this writer
//! (a panic) goes to the same file.

use std::fs::rename;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes of a log; beyond that it makes room.
const LONGEST: u64 = 10 << 20;
/// Older ones that are kept.
const KEPT: usize = 4;

/// Where lines go: this process's standard error, which may be a file that makes room.
#[derive(Clone)]
pub(super) struct Rotation(Arc<Mutex<File>>);

struct File {
    /// None where somebody else takes care of the output, as systemd does.
    path: Option<PathBuf>,
    longest: u64,
    length: u64,
}

impl Rotation {
    pub(super) fn of(path: Option<PathBuf>) -> Rotation {
        let length = path.as_ref().and_then(|path| path.metadata().ok());
        let length = length.map_or(0, |meta| meta.len());
        Rotation(Arc::new(Mutex::new(File { path, longest: LONGEST, length })))
    }
}

impl Write for Rotation {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut file = self.0.lock();
        if let Some(path) = &file.path
            && file.length >= file.longest
        {
            // Without room it grows on.
            let _ = begin_anew(path);
            file.length = 0;
        }
        io::stderr().write_all(line)?;
        file.length += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// This process's output goes to a new file of that name.
fn begin_anew(path: &Path) -> io::Result<()> {
    make_room(path)?;
    let new = super::open(path).map_err(|e| io::Error::other(e.0))?;
    rustix::stdio::dup2_stdout(&new)?;
    Ok(rustix::stdio::dup2_stderr(&new)?)
}

fn make_room(path: &Path) -> io::Result<()> {
    let older = |number: usize| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    for number in (1..KEPT).rev() {
        // It may not be there yet.
        let _ = rename(older(number), older(number + 1));
    }
    rename(path, older(1))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("node0.log");
        for i in 0..8 {
            fs::write(&log, i.to_string()).unwrap();
            make_room(&log).unwrap();
        }
        let names = ["node0.log.1", "node0.log.2", "node0.log.3", "node0.log.4"];
        let kept = names.map(|name| fs::read_to_string(dir.path().join(name)).unwrap());
        assert_eq!(kept, ["7", "6", "5", "4"]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), KEPT);
    }
}
