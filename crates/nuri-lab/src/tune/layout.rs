//! The striping of a directory's new files: what a search tries, sets and takes back. An attribute
//! of the directory keeps the striping from before.

use std::path::Path;

use nuri_proto::size::human;
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;

use crate::{LabError, Result, at};

/// Shows and sets the layout of a directory of a Nuri space.
const LAYOUT: &str = "nuri.layout";
/// Keeps what was set before the first change.
const BEFORE: &str = "user.nuri.tuned_from";
const LONGEST: usize = 4096;

const CHUNKS: [u64; 4] = [256 << 10, 1 << 20, 4 << 20, 16 << 20];
const WIDTHS: [u16; 3] = [0, 1, 2];

/// What `nuri fs layout set` takes, the shape left as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Setting {
    pub(crate) chunk: u64,
    /// Groups that a file goes over; 0: all.
    pub(crate) width: u16,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let chunk = human(self.chunk);
        match self.width {
            0 => write!(f, "chunks of {chunk}, over all groups"),
            1 => write!(f, "chunks of {chunk}, over 1 group"),
            width => write!(f, "chunks of {chunk}, over {width} groups"),
        }
    }
}

/// A directory's layout, as the space writes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    text: String,
    pub(crate) setting: Setting,
}

impl Layout {
    fn parse(text: &str) -> Option<Layout> {
        let field = |key: &str| {
            let words = text.split_whitespace().filter_map(|word| word.split_once('='));
            words.into_iter().find(|(name, _)| *name == key).map(|(_, value)| value)
        };
        let (chunk, width) = (field("chunk_size")?.parse().ok()?, field("width")?.parse().ok()?);
        Some(Layout { text: text.into(), setting: Setting { chunk, width } })
    }

    /// The same shape with another setting.
    pub(crate) fn with(&self, setting: Setting) -> Layout {
        let own = ["chunk_size=", "width="];
        let mut words: Vec<_> = self.text.split_whitespace().map(String::from).collect();
        words.retain(|word| !own.iter().any(|key| word.starts_with(key)));
        words.extend([format!("chunk_size={}", setting.chunk), format!("width={}", setting.width)]);
        Layout { text: words.join(" "), setting }
    }

    /// Of a directory.
    pub(crate) fn of(dir: &Path) -> Result<Layout> {
        let text = attribute(dir, LAYOUT)?;
        let no_space = || LabError(format!("{} is not on a mounted Nuri space", dir.display()));
        text.as_deref().and_then(Layout::parse).ok_or_else(no_space)
    }
}

/// Sets it; the first time what was there before is kept for [`undo`].
pub(crate) fn apply(setting: Setting, dir: &Path) -> Result<()> {
    let before = Layout::of(dir)?;
    if attribute(dir, BEFORE)?.is_none() {
        set(dir, BEFORE, &before.text)?;
    }
    set(dir, LAYOUT, &before.with(setting).text)
}

/// Sets it for the files of a directory that is removed anyway.
pub(crate) fn try_out(setting: Setting, dir: &Path) -> Result<()> {
    set(dir, LAYOUT, &Layout::of(dir)?.with(setting).text)
}

/// Sets what was there before the first change; says what that is, if there was one.
pub(crate) fn undo(dir: &Path) -> Result<Option<Setting>> {
    let Some(before) = attribute(dir, BEFORE)?.as_deref().and_then(Layout::parse) else {
        return Ok(None);
    };
    // The shape is not ours: whoever changed it since meant it.
    set(dir, LAYOUT, &Layout::of(dir)?.with(before.setting).text)?;
    removexattr(dir, BEFORE).map_err(at(dir.display()))?;
    Ok(Some(before.setting))
}

pub(super) fn set(dir: &Path, name: &str, text: &str) -> Result<()> {
    setxattr(dir, name, text.as_bytes(), XattrFlags::empty()).map_err(at(dir.display()))
}

pub(super) fn attribute(dir: &Path, name: &str) -> Result<Option<String>> {
    let mut text = [0; LONGEST];
    match getxattr(dir, name, &mut text[..]) {
        Ok(len) => Ok(Some(String::from_utf8_lossy(&text[..len]).into_owned())),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(at(dir.display())(error)),
    }
}

/// Other chunk sizes and widths than those that are set now.
pub(crate) fn others(now: Setting) -> Vec<Setting> {
    let all = CHUNKS.iter().flat_map(|chunk| WIDTHS.map(|width| Setting { chunk: *chunk, width }));
    all.filter(|setting| *setting != now).collect()
}

/// Other widths.
pub(crate) fn other_widths(now: Setting) -> Vec<Setting> {
    WIDTHS.map(|width| Setting { width, ..now }).into_iter().filter(|s| *s != now).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_changed_in_its_setting_only() {
        let layout = Layout::parse("shape=parity:3+1 chunk_size=1048576 width=0").unwrap();
        assert_eq!(layout.setting.to_string(), "chunks of 1.0 MiB, over all groups");
        let other = layout.with(Setting { chunk: 65536, width: 2 });
        assert_eq!(other.text, "shape=parity:3+1 chunk_size=65536 width=2");
        assert_eq!(Layout::parse("shape=stripe width=0"), None);
        assert_eq!(Layout::parse("chunk_size=x width=0"), None);
    }

    #[test]
    fn what_is_set_now_is_no_other() {
        let now = Setting { chunk: 4 << 20, width: 1 };
        assert_eq!(others(now).len(), 11);
        assert_eq!(others(Setting { chunk: 64 << 10, width: 1 }).len(), 12);
        let widths: Vec<u16> = other_widths(now).iter().map(|other| other.width).collect();
        assert_eq!(widths, [0, 2]);
    }

    #[test]
    fn other_file_systems_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let told = Layout::of(dir.path()).unwrap_err().to_string();
        assert!(told.contains("is not on a mounted Nuri space"), "{told}");
    }
}
