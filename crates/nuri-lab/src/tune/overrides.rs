//! A mount's settings while they are searched, and the settings from before.
//!
//! Both lie in a note that the mount keeps (`nuri.tune`). So they end with the mount, as its
//! settings do. The note is written before the first setting is tried. A search may die. Then the
//! process that waits for it, or a later command, finds the note and restores the settings from
//! before.

use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::layout::attribute;
use super::settings::Mount;
use crate::progress::tell;
use crate::{LabError, Result, at};

const FLOW: &str = "nuri.flow";
const NOTE: &str = "nuri.tune";

/// What the mount keeps.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
struct Note {
    /// What was set before the first change that was meant to stay.
    before: Option<String>,
    /// A search that tries settings.
    search: Option<Running>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Running {
    /// Its process.
    pid: u32,
    /// What was set when it began.
    settings: String,
}

/// A search's hold on a mount: what it tried is taken back when it ends, however it does.
pub(crate) struct Overrides {
    dir: PathBuf,
    pub(crate) begun: Mount,
    tried: Mount,
    note: Note,
}

/// Why a mount's settings are left alone.
pub(crate) enum Left {
    /// The user may not set them.
    Rights,
    /// It does not know all of them.
    Older,
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Left::Rights => {
                "the mount's settings are left alone: only root and whoever mounted it may set them"
            }
            Left::Older => "the mount's settings are left alone: it is of an older version",
        })
    }
}

impl Note {
    fn of(dir: &Path) -> Result<Note> {
        let text = attribute(dir, NOTE)?;
        // What is not understood is of another version, and of no use.
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default())
    }

    fn keep(&self, dir: &Path) -> std::result::Result<(), Errno> {
        let is_empty = *self == Note::default();
        let text = serde_json::to_string(self).unwrap_or_default();
        let text = if is_empty { "" } else { &text };
        setxattr(dir, NOTE, text.as_bytes(), XattrFlags::empty())
    }

    /// What a search that died left is set back; says what that is.
    fn clear_up(&mut self, dir: &Path) -> Result<Option<Mount>> {
        let Some(Running { pid, settings }) = &self.search else { return Ok(None) };
        if lives(*pid) {
            return Err(LabError(format!(
                "{}: another search tries settings of this mount (process {pid}): wait for it",
                dir.display()
            )));
        }
        force(dir, settings)?;
        tell("settings that a search left when it was killed were taken back");
        let back = Mount::parse(settings);
        self.search = None;
        Ok(back)
    }
}

impl Overrides {
    /// Takes hold of the mount that a directory is on.
    ///
    /// # Errors
    /// Another search has it, or it does not answer.
    pub(crate) fn begin(dir: &Path) -> Result<std::result::Result<Overrides, Left>> {
        let mut note = Note::of(dir)?;
        note.clear_up(dir)?;
        let Some(begun) = attribute(dir, FLOW)?.as_deref().and_then(Mount::parse) else {
            return Ok(Err(Left::Older));
        };
        note.search = Some(Running { pid: std::process::id(), settings: begun.to_string() });
        match note.keep(dir) {
            Ok(()) => Ok(Ok(Overrides { dir: dir.into(), begun, tried: begun, note })),
            Err(Errno::PERM | Errno::ACCESS) => Ok(Err(Left::Rights)),
            Err(error) => Err(at(dir.display())(error)),
        }
    }

    /// Until another one is tried or the search ends.
    pub(crate) fn try_out(&mut self, mount: Mount) -> Result<()> {
        if mount != self.tried {
            force(&self.dir, &mount.to_string())?;
            self.tried = mount;
        }
        Ok(())
    }

    /// To stay, as long as the mount.
    pub(crate) fn apply(&mut self, mount: Mount) -> Result<()> {
        if mount == self.begun {
            return Ok(());
        }
        self.note.before.get_or_insert(self.begun.to_string());
        self.note.keep(&self.dir).map_err(at(self.dir.display()))?;
        self.try_out(mount)?;
        self.begun = mount;
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.try_out(self.begun)?;
        self.note.search = None;
        self.note.keep(&self.dir).map_err(at(self.dir.display()))
    }
}

impl Drop for Overrides {
    fn drop(&mut self) {
        if let Err(LabError(error)) = self.end() {
            tell(&format!("settings of the mount could not be taken back: {error}"));
        }
    }
}

/// Sets what was there before the first change; says what that is, if there was one.
pub(crate) fn undo(dir: &Path) -> Result<Option<Mount>> {
    let mut note = Note::of(dir)?;
    let left = note.clear_up(dir)?;
    let before = note.before.as_deref().and_then(Mount::parse);
    if let Some(before) = before {
        force(dir, &before.to_string())?;
    }
    let undone = before.or(left);
    if undone.is_some() {
        Note::default().keep(dir).map_err(at(dir.display()))?;
    }
    Ok(undone)
}

/// Takes back what a search of another process, which was killed, left on the mounts of `dirs`.
pub(crate) fn sweep(dirs: &[PathBuf], pid: u32) {
    for dir in dirs {
        let Ok(mut note) = Note::of(dir) else { continue };
        let Some(running) = note.search.take_if(|running| running.pid == pid) else { continue };
        let back = force(dir, &running.settings);
        let kept = back.and_then(|()| note.keep(dir).map_err(at(dir.display())));
        if let Err(LabError(error)) = kept {
            tell(&format!("settings of the mount could not be taken back: {error}"));
        }
    }
}

fn force(dir: &Path, settings: &str) -> Result<()> {
    let set = setxattr(dir, FLOW, settings.as_bytes(), XattrFlags::empty());
    set.map_err(|error| match error {
        Errno::PERM | Errno::ACCESS => LabError(format!(
            "{}: only root and whoever mounted it may set the mount's settings",
            dir.display()
        )),
        error => LabError(format!("{}: the mount refuses {settings}: {error}", dir.display())),
    })
}

/// Whether a process searches: one that ended and was not waited for has no words any more, and
/// another one with its number has others.
fn lives(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == b"tune")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_is_written() {
        let search = Some(Running { pid: 7, settings: "buffer=auto".into() });
        let note = Note { before: Some("buffer=65536".into()), search };
        let text = serde_json::to_string(&note).unwrap();
        assert_eq!(serde_json::from_str::<Note>(&text).unwrap(), note);
        assert!(text.len() < 4096);
    }

    #[test]
    fn elsewhere_nothing_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(undo(dir.path()).unwrap(), None);
        sweep(&[dir.path().to_path_buf()], 7);
        assert!(!lives(std::process::id()), "it searches nothing");
    }
}
