//! The directory in which a run works. The run makes it, removes it at its end, and touches no
//! other place.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::{LabError, Result, at};

/// How long another mount may take to show what was made through the first.
const SHOWING: Duration = Duration::from_secs(2);
/// How long a process that was killed may go on making files.
const ENDING: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);

/// Ends the name of a directory for what must not lie in the working directory.
const PRIVATE: &str = "-private";

/// One directory, seen through one mount or several.
#[derive(Debug)]
pub struct WorkDir {
    views: Vec<PathBuf>,
}

impl WorkDir {
    /// Makes it in the first of `dirs`; the others must be mounts of the same file system.
    pub fn make(dirs: &[PathBuf]) -> Result<WorkDir> {
        let name = name(std::process::id());
        let views: Vec<_> = dirs.iter().map(|dir| dir.join(&name)).collect();
        let first = views.first().ok_or(LabError::new("no directory is given"))?;
        std::fs::create_dir(first).map_err(at(first.display()))?;
        let work = WorkDir { views };
        for view in &work.views[1..] {
            if !shows(view) {
                let (dir, first) = (view.display(), work.views[0].display());
                return Err(LabError(format!(
                    "{first} is not seen as {dir}: give mounts of one file system"
                )));
            }
        }
        Ok(work)
    }

    pub fn views(&self) -> &[PathBuf] {
        &self.views
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        remove(&self.views[0]);
    }
}

/// Removes what the run of another process, which was killed, left in `dirs`.
pub fn sweep(dirs: &[PathBuf], pid: u32) {
    for dir in dirs {
        remove(&dir.join(name(pid)));
        remove(&dir.join(name(pid) + PRIVATE));
    }
}

/// A place for what does not lie among the files, as sockets: named after the working directory, so
/// that it goes with it however a run ends.
pub(crate) fn private(dirs: &[PathBuf]) -> PathBuf {
    let mut name = dirs[0].file_name().unwrap_or_default().to_os_string();
    name.push(PRIVATE);
    std::env::temp_dir().join(name)
}

/// Of a process; other machines may work in the same directory.
fn name(pid: u32) -> String {
    let system = rustix::system::uname();
    format!(".nuri-lab-{pid}-{}", system.nodename().to_string_lossy())
}

fn shows(view: &Path) -> bool {
    let start = Instant::now();
    while !view.is_dir() {
        if start.elapsed() > SHOWING {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// With all that is in it, and that a process makes meanwhile which was killed.
pub(crate) fn remove(path: &Path) {
    let start = Instant::now();
    while path.exists() && std::fs::remove_dir_all(path).is_err() && start.elapsed() < ENDING {
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_all_that_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().to_path_buf();
        let work = WorkDir::make(&[own.clone(), own.clone()]).unwrap();
        std::fs::write(work.views()[1].join("x"), "x").unwrap();
        assert!(WorkDir::make(&[own]).is_err(), "one that is there is not ours");
        drop(work);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn directories_of_two_file_systems_are_refused() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let error = WorkDir::make(&[a.path().into(), b.path().into()]).unwrap_err().to_string();
        assert!(error.contains("mounts of one file system"), "{error}");
        assert_eq!(std::fs::read_dir(a.path()).unwrap().count(), 0);
    }
}
