//! A node's targets: which ones the node knows, which of them are present, and how large new ones
//! become.
//!
//! `node.json` records which target lies at which path. A recorded target must be present when the
//! node starts. New targets are made only with the option `--create`.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nuri_proto::id::{ClusterId, TargetId};
use nuri_proto::op::cluster::JoinReply;
use nuri_target::target::{Lost, Making, Target, is_made};

use crate::directory::NodeSettings;
use crate::failure::{Failure, at};

/// Share of a file system's free space that targets may take when nobody said how much, percent.
const SHARE: u64 = 90;

/// A node's targets as they are when it starts.
pub struct Opened {
    pub served: Vec<Target>,
    pub lost: Vec<Lost>,
}

/// Opens a node's targets. With the word, makes those that are not there.
pub fn open(
    settings: &NodeSettings,
    cluster: ClusterId,
    (may_create, sizes): (bool, &[u64]),
) -> Result<Opened, Failure> {
    let sizes = match (settings.target_size, sizes) {
        _ if !may_create => vec![0; settings.targets.len()],
        (_, [_, ..]) if sizes.len() == settings.targets.len() => sizes.to_vec(),
        (said, _) => sizes_of(&settings.targets, said)?,
    };
    let mut opened = Opened { served: Vec::new(), lost: Vec::new() };
    for (path, size) in settings.targets.iter().zip(sizes) {
        let known = settings.target_ids.get(path).copied().map(TargetId);
        let is_new = may_create && !is_made(path);
        let making = if is_new { Making::Allowed(size) } else { Making::Refused };
        let expected = known.filter(|_| !is_new);
        match (Target::open(path, cluster, expected, making), expected) {
            (Ok(target), _) => opened.served.push(target),
            (Err(error), Some(id)) if error.is_elsewhere() => {
                tracing::error!("target {id} is not served: {error}");
                opened.lost.push(Lost { id, why: error.to_string() });
            }
            (Err(error), _) => return Err(Failure::new(error)),
        }
    }
    Ok(opened)
}

/// Targets that the authority accepted carry its ids from then on, and the node knows them.
pub fn adopt(
    settings: &mut NodeSettings,
    targets: &[Target],
    cluster: ClusterId,
    reply: &JoinReply,
) -> Result<(), Failure> {
    for (target, id) in targets.iter().zip(&reply.targets) {
        target.assign(cluster, *id).map_err(at(format!("target {id}")))?;
        settings.target_ids.insert(target.path().to_owned(), id.0);
    }
    Ok(())
}

/// What a start would make, where it was not told to. A node that `has_begun` to join has made its
/// targets, and may have a number that it does not know.
pub fn needs_word(dir: &Path, settings: &NodeSettings, has_begun: bool) -> Option<String> {
    let is_new = |path: &&PathBuf| !settings.target_ids.contains_key(*path) && !is_made(path);
    let new: Vec<_> = settings.targets.iter().filter(is_new).map(|p| p.display()).collect();
    let new: Vec<_> = new.iter().map(ToString::to_string).collect();
    let (dir, targets) = (dir.display(), new.join(", "));
    let what = match (&settings.join, settings.id.is_some() || has_begun) {
        (_, true) if new.is_empty() => return None,
        (_, true) => format!("there is no target yet at {targets}: this would make it there"),
        (join, false) => {
            let of = match join {
                Some(first) => format!("a new node of the space at {first}"),
                None => "a new space with its first node".to_string(),
            };
            let with = if new.is_empty() { String::new() } else { format!(", targets {targets}") };
            format!("there is no node yet in {dir}: this would make {of}{with}")
        }
    };
    Some(format!("{what}. If a disk should be mounted there, mount it; {}", say_it()))
}

/// The command that was run, with the word that lets it make things.
pub fn say_it() -> String {
    let mut words: Vec<String> =
        std::env::args_os().map(|word| quoted(&word.to_string_lossy())).collect();
    if let Some(program) = words.first_mut() {
        *program = "nuri".into();
    }
    words.push("--create".into());
    format!("to make it: {}", words.join(" "))
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/.,:=+-_@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// How large targets at these paths become: each file system is shared by those that lie on it.
pub fn sizes_of(paths: &[PathBuf], said: Option<u64>) -> Result<Vec<u64>, Failure> {
    if let Some(size) = said {
        return Ok(vec![size; paths.len()]);
    }
    let disk_of = |path: &PathBuf| {
        let there = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
        let found = std::fs::metadata(there).map_err(at(there.display()))?;
        Ok((found.dev(), there.to_owned()))
    };
    let disks = paths.iter().map(disk_of).collect::<Result<Vec<_>, Failure>>()?;
    let mut sharing: HashMap<u64, u64> = HashMap::new();
    disks.iter().for_each(|(disk, _)| *sharing.entry(*disk).or_default() += 1);
    let share =
        |(disk, there): &(u64, PathBuf)| Ok(free_space(there)? / sharing[disk] * SHARE / 100);
    disks.iter().map(share).collect()
}

/// Bytes that an unprivileged program could still write where `path` lies.
fn free_space(path: &Path) -> Result<u64, Failure> {
    let stat = rustix::fs::statvfs(path);
    let stat = stat.map_err(at(format!("cannot read the free space of {}", path.display())))?;
    Ok(stat.f_bavail * stat.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_where_a_shell_would_read_more() {
        assert_eq!(quoted("/srv/nuri-1"), "/srv/nuri-1");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn targets_on_one_file_system_share_it() {
        let dir = tempfile::tempdir().unwrap();
        let paths = [dir.path().join("a/b"), dir.path().join("c")];
        let [one, two] = sizes_of(&paths, None).unwrap()[..] else { panic!("two") };
        let all = sizes_of(&paths[..1], None).unwrap()[0];
        let near = |a: u64, b: u64| a.abs_diff(b) < b / 10;
        assert!(near(one, two) && near(all, 2 * one), "{one} {two} {all}");
        assert_eq!(sizes_of(&paths, Some(7)).unwrap(), [7, 7]);
    }
}
