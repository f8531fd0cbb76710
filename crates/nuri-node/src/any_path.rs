//! Paths in JSON files. A path that is valid text is written as text. Any other path is written as
//! `bytes:` and its bytes in hexadecimal.
//!
//! Paths in these files are absolute, so no text begins with that word by itself.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const BYTES: &str = "bytes:";

fn to_text(path: &Path) -> String {
    match path.to_str() {
        Some(text) => text.into(),
        None => format!("{BYTES}{}", hex::encode(path.as_os_str().as_bytes())),
    }
}

fn from_text(text: &str) -> PathBuf {
    match text.strip_prefix(BYTES).and_then(|digits| hex::decode(digits).ok()) {
        Some(bytes) => PathBuf::from(OsString::from_vec(bytes)),
        None => PathBuf::from(text),
    }
}

/// One path, in the form above. Older files have those that are no text as lists of bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct AnyPath(PathBuf);

impl Serialize for AnyPath {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&to_text(&self.0))
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes(Vec<u8>),
}

impl<'de> Deserialize<'de> for AnyPath {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<AnyPath, D::Error> {
        Ok(AnyPath(match Form::deserialize(from)? {
            Form::Text(text) => from_text(&text),
            Form::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes)),
        }))
    }
}

/// For a path that may be missing.
pub mod option {
    use super::{AnyPath, Deserialize, Deserializer, PathBuf, Serialize, Serializer};

    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        path.clone().map(AnyPath).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<AnyPath>::deserialize(from)?.map(|path| path.0))
    }
}

/// For a list of paths.
pub mod list {
    use super::{AnyPath, Deserialize, Deserializer, PathBuf, Serializer};

    pub fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().cloned().map(AnyPath))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<AnyPath>::deserialize(from)?.into_iter().map(|path| path.0).collect())
    }
}

/// For lists of paths.
pub mod lists {
    use super::{AnyPath, Deserialize, Deserializer, PathBuf, Serializer};

    pub fn serialize<S: Serializer>(all: &[Vec<PathBuf>], to: S) -> Result<S::Ok, S::Error> {
        let list = |paths: &Vec<PathBuf>| paths.iter().cloned().map(AnyPath).collect::<Vec<_>>();
        to.collect_seq(all.iter().map(list))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<PathBuf>>, D::Error> {
        let all = Vec::<Vec<AnyPath>>::deserialize(from)?;
        let list = |paths: Vec<AnyPath>| paths.into_iter().map(|path| path.0).collect();
        Ok(all.into_iter().map(list).collect())
    }
}

/// For numbers by path.
pub mod keys {
    use std::collections::BTreeMap;

    use super::{Deserialize, Deserializer, PathBuf, Serializer, from_text, to_text};

    pub fn serialize<S: Serializer>(
        numbers: &BTreeMap<PathBuf, u32>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(numbers.iter().map(|(path, number)| (to_text(path), number)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<PathBuf, u32>, D::Error> {
        let numbers = BTreeMap::<String, u32>::deserialize(from)?;
        Ok(numbers.into_iter().map(|(path, number)| (from_text(&path), number)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_comes_back_as_it_was() {
        for bytes in [&b"/srv/nuri"[..], b"/srv/\xff x\n", b"/bytes:00", "/ä\"".as_bytes()] {
            let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            let text = serde_json::to_string(&AnyPath(path.clone())).unwrap();
            assert_eq!(serde_json::from_str::<AnyPath>(&text).unwrap().0, path, "{text}");
        }
        assert_eq!(to_text(Path::new("/srv")), "/srv");
        let old: AnyPath = serde_json::from_str("[47,255]").unwrap();
        assert_eq!(old.0.as_os_str().as_bytes(), b"/\xff");
    }
}
