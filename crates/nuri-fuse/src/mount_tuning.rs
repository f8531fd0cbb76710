//! Settings of a running mount that root and the user who mounted it may change, beyond those of
//! the client: the kernel's read-ahead, and a note. Called by `xattr.rs`.
//!
//! The note is for the program that searches settings (`nuri lab tune`). So the earlier settings
//! lie beside the present ones, and end with them. The mount does not read the note.

use std::path::{Path, PathBuf};

use nuri_proto::Status;
use nuri_volume::transfer::READ_AHEAD;
use parking_lot::Mutex;

use crate::mount::read_ahead_knob;

/// Bytes of the note, at most.
const LONGEST_NOTE: usize = 4096;

/// See the module's text.
pub(crate) struct MountTuning {
    /// None where the mount is not found in the kernel's table.
    knob: Option<PathBuf>,
    /// Bytes that are forced.
    ahead: Mutex<Option<u32>>,
    note: Mutex<Vec<u8>>,
}

impl MountTuning {
    pub(crate) fn of(point: &Path) -> MountTuning {
        MountTuning {
            knob: read_ahead_knob(point),
            ahead: Mutex::default(),
            note: Mutex::default(),
        }
    }

    /// Files that are opened from now on are read so far ahead by the kernel.
    ///
    /// # Errors
    /// `NOTSUP` where the kernel cannot be told: nothing is changed then.
    pub(crate) fn read_ahead(&self, bytes: Option<u32>) -> Result<(), Status> {
        let mut ahead = self.ahead.lock();
        if *ahead == bytes {
            return Ok(());
        }
        let knob = self.knob.as_ref().ok_or(Status::NOTSUP)?;
        let kib = bytes.unwrap_or(READ_AHEAD) >> 10;
        std::fs::write(knob, kib.to_string()).map_err(|_| Status::NOTSUP)?;
        *ahead = bytes;
        Ok(())
    }

    /// # Errors
    /// `NODATA` where there is none.
    pub(crate) fn note(&self) -> Result<Vec<u8>, Status> {
        let note = self.note.lock();
        if note.is_empty() { Err(Status::NODATA) } else { Ok(note.clone()) }
    }

    /// An empty one is none.
    ///
    /// # Errors
    /// `RANGE` where it is too long.
    pub(crate) fn set_note(&self, note: &[u8]) -> Result<(), Status> {
        if note.len() > LONGEST_NOTE {
            return Err(Status::RANGE);
        }
        *self.note.lock() = note.to_vec();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told_in_kib() {
        let file = std::env::temp_dir().join(format!("nuri-steer-{}", std::process::id()));
        let (ahead, note) = Default::default();
        let tuning = MountTuning { knob: Some(file.clone()), ahead, note };
        let told = || std::fs::read_to_string(&file).unwrap();
        tuning.read_ahead(Some(512 << 10)).unwrap();
        assert_eq!(told(), "512");
        tuning.read_ahead(None).unwrap();
        assert_eq!(told(), "2048");
        std::fs::write(&file, "128").unwrap();
        tuning.read_ahead(None).unwrap();
        assert_eq!(told(), "128", "what nobody changed is left alone");
        std::fs::remove_file(&file).unwrap();
        let nowhere = MountTuning::of(Path::new("/nowhere"));
        assert_eq!(nowhere.read_ahead(Some(0)), Err(Status::NOTSUP));
        assert_eq!(nowhere.read_ahead(None), Ok(()));
    }

    #[test]
    fn a_note_is_kept_as_it_is() {
        let tuning = MountTuning::of(Path::new("/nowhere"));
        assert_eq!(tuning.note(), Err(Status::NODATA));
        tuning.set_note(b"x").unwrap();
        assert_eq!(tuning.note().as_deref(), Ok(&b"x"[..]));
        assert_eq!(tuning.set_note(&[0; LONGEST_NOTE + 1]), Err(Status::RANGE));
        tuning.set_note(b"").unwrap();
        assert_eq!(tuning.note(), Err(Status::NODATA));
    }
}
