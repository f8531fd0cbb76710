//! The links from a mount's machine to the nodes of its space, as the mount itself measures them:
//! its attribute `nuri.links`.

use std::path::Path;
use std::time::{Duration, Instant};

use nuri_watch::history::{Look, Subject};
use nuri_watch::unit::Unit;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::stop::Stop;
use crate::{LabError, Result, at};

const LINKS: &str = "nuri.links";
/// The mount gives up a look before.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// Of what the mount tells; it knows 64 nodes at most.
const LONGEST: usize = 64 << 10;
/// The path of a link between machines.
const NETWORK: &str = "tcp";
const MIB: f64 = (1 << 20) as f64;

/// Figures of all links, and what cannot be told.
pub(super) type Found = (Vec<Look>, Vec<LabError>);

/// Looks at them. Nothing where there are none: not on a mount of a space, one of an older version,
/// or somebody who may not ask (only root and whoever mounted).
///
/// # Errors
/// The mount does not answer, or the run is to end.
pub(super) fn look(dir: &Path, now: u64, stop: &Stop) -> Result<Found> {
    match setxattr(dir, LINKS, b"look", XattrFlags::empty()) {
        Ok(()) => {}
        Err(Errno::NOTSUP | Errno::PERM | Errno::ACCESS | Errno::ROFS) => {
            return Ok(Found::default());
        }
        Err(error) => return Err(at(dir.display())(error)),
    }
    let begun = Instant::now();
    loop {
        let mut text = vec![0; LONGEST];
        let len = getxattr(dir, LINKS, &mut text[..]).map_err(at(dir.display()))?;
        let text = String::from_utf8_lossy(&text[..len]);
        if let Some(lines) = done(&text) {
            return Ok(figures(dir, now, lines));
        }
        if stop.is_asked() {
            return Err(LabError::new("interrupted"));
        }
        if begun.elapsed() > LIMIT {
            let (dir, limit) = (dir.display(), LIMIT.as_secs());
            return Err(LabError(format!(
                "{dir}: the mount did not look at its links in {limit} s"
            )));
        }
        std::thread::sleep(POLL);
    }
}

/// What a look found, once it ended.
fn done(text: &str) -> Option<&str> {
    let (state, lines) = text.split_once('\n').unwrap_or((text, ""));
    state.starts_with("state=done").then_some(lines)
}

fn figures(dir: &Path, now: u64, lines: &str) -> Found {
    let (mut looks, mut failed) = Found::default();
    for line in lines.lines() {
        let field = |key: &str| {
            let words = line.split(' ').filter_map(|word| word.split_once('='));
            words.into_iter().find(|(name, _)| *name == key).map(|(_, value)| value)
        };
        let (node, address) = (field("node").unwrap_or("?"), field("address").unwrap_or("?"));
        if let Some(why) = field("untold") {
            let why = match why {
                "older" => "is of a version that cannot be asked",
                "unasked" => "was not asked, the others took too long",
                _ => "does not answer",
            };
            let dir = dir.display();
            failed.push(LabError(format!("{dir}, link to node {node}: {address} {why}")));
            continue;
        }
        let mut add = |what: &str, key, unit, per: f64| {
            let Some(value) = field(key).and_then(|value| value.parse::<f64>().ok()) else {
                return;
            };
            let (dir, part) = (dir.display().to_string(), format!("link to node {node}"));
            let of = Subject { dir, part, what: what.into() };
            looks.push(Look::new(now, of, unit, (value / per).max(f64::MIN_POSITIVE)));
        };
        add("round trip", "round_trip", Unit::Microseconds, 1.0);
        // To the mount's own machine bytes pass through memory: how fast depends on what the
        // processors do beside that, and no cable can be mended.
        if field("path").is_none_or(|path| path == NETWORK) {
            add("sending", "sending", Unit::MibPerSecond, MIB);
            add("receiving", "receiving", Unit::MibPerSecond, MIB);
        }
    }
    (looks, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_three_figures_or_a_sentence() {
        assert_eq!(done("state=running at=3\nnode=1"), None);
        assert_eq!(done("state=none"), None);
        let text = "state=done at=7\n\
                    node=1 address=10.0.0.1:7400 path=tcp round_trip=150.5 sending=2097152 \
                    receiving=1048576\n\
                    node=2 address=10.0.0.2:7400 untold=silent\n\
                    node=3 address=10.0.0.3:7400 path=unix round_trip=20 sending=9 receiving=9";
        let (mut looks, failed) = figures(Path::new("/mnt"), 7, done(text).unwrap());
        let within = looks.pop().unwrap();
        assert_eq!(
            (within.of.part.as_str(), within.of.what.as_str()),
            ("link to node 3", "round trip")
        );
        let told: Vec<_> = looks
            .iter()
            .map(|look| (look.of.what.as_str(), look.value, look.unit.name()))
            .collect();
        let wanted =
            [("round trip", 150.5, "us"), ("sending", 2.0, "MiB/s"), ("receiving", 1.0, "MiB/s")];
        assert_eq!(told, wanted);
        assert!(looks.iter().all(|look| look.of.part == "link to node 1" && look.time == 7));
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].0, "/mnt, link to node 2: 10.0.0.2:7400 does not answer");
    }

    #[test]
    fn other_file_systems_have_no_links() {
        let dir = tempfile::tempdir().unwrap();
        let (looks, failed) = look(dir.path(), 7, &Stop::default()).unwrap();
        assert!(looks.is_empty() && failed.is_empty());
    }
}
