//! The history of measurements: a JSON line for each figure.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::calendar::{day_and_minute, utc};
use crate::normal::{Verdict, WINDOW, judge};
use crate::unit::Unit;
use crate::{Result, at};

/// Older looks go, once there are as many of them as others.
const KEPT: u64 = 3 * WINDOW;

/// A time that is longer by less is not slow, in microseconds: how fast a sleeping processor wakes
/// up changes by as much with whatever else it does.
const WAKING: f64 = 100.0;

/// Words of a sentence after its number: of a rate, and of a time.
pub const SLOWER: &str = " % slower than";
pub const LONGER: &str = " % longer than";

/// What a figure is of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Subject {
    pub dir: String,
    /// Of a space: where the files lie, such as `group 3`, or `link to node 3`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// Such as `write`.
    pub what: String,
}

/// One figure at one time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Look {
    /// Seconds since 1970, and the same for people.
    pub time: u64,
    #[serde(default)]
    pub at: String,
    #[serde(flatten)]
    pub of: Subject,
    pub unit: Unit,
    pub value: f64,
}

impl Look {
    pub fn new(time: u64, of: Subject, unit: Unit, value: f64) -> Look {
        Look { time, at: utc(time), of, unit, value }
    }
}

/// How a subject stands.
#[derive(Clone, PartialEq, Debug)]
pub struct Standing {
    pub of: Subject,
    pub unit: Unit,
    pub last: f64,
    pub verdict: Verdict,
}

impl Standing {
    /// In one sentence, if it is slow.
    pub fn sentence(&self) -> Option<String> {
        let Verdict::Slow { since, median, now } = self.verdict else { return None };
        let Subject { dir, part, what } = &self.of;
        let part = if part.is_empty() { String::new() } else { format!(", {part}") };
        let (than, ratio) = match self.unit.is_rate() {
            true => (SLOWER, 1.0 - now / median),
            false => (LONGER, now / median - 1.0),
        };
        let percent = 100.0 * ratio;
        let (days, unit, since) = (WINDOW / 86_400, self.unit.name(), day_and_minute(since));
        Some(format!(
            "{dir}{part}: {what} {percent:.0}{than} its {days}-day normal since {since} \
             ({now:.1} for {median:.1} {unit})"
        ))
    }
}

/// The file.
pub struct History {
    path: PathBuf,
    looks: Vec<Look>,
}

impl History {
    /// Reads it, if it is there. A torn last line is left out.
    pub fn open(path: &Path) -> Result<History> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(at(path.display())(error)),
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let line = |(i, line): (usize, &str)| {
            serde_json::from_str(line).map_err(at(format!("{}: line {}", path.display(), i + 1)))
        };
        let looks = whole.lines().enumerate().map(line).collect::<Result<Vec<Look>>>()?;
        let torn = text.len() > whole.len() + usize::from(!whole.is_empty());
        let history = History { path: path.into(), looks };
        if torn { history.rewritten() } else { Ok(history) }
    }

    /// Adds what was measured now, durably.
    pub fn add(&mut self, looks: Vec<Look>) -> Result<()> {
        let mut text = String::new();
        for look in &looks {
            text += &serde_json::to_string(look).map_err(at("a look"))?;
            text.push('\n');
        }
        let name = self.path.display().to_string();
        let file = OpenOptions::new().append(true).create(true).open(&self.path);
        let mut file = file.map_err(at(&name))?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_data()).map_err(at(&name))?;
        self.looks.extend(looks);
        Ok(())
    }

    /// Forgets what is too old for any verdict.
    pub fn trim(self, now: u64) -> Result<History> {
        let is_old = |look: &&Look| look.time + KEPT < now;
        let old = self.looks.iter().filter(is_old).count();
        if 2 * old < self.looks.len() || old == 0 {
            return Ok(self);
        }
        let looks = self.looks.iter().filter(|look| !is_old(look)).cloned().collect();
        History { looks, path: self.path }.rewritten()
    }

    /// Writes the file anew, beside it first.
    fn rewritten(self) -> Result<History> {
        let fresh = self.path.with_extension("new");
        let _ = std::fs::remove_file(&fresh);
        let mut copy = History { path: fresh.clone(), looks: Vec::new() };
        copy.add(self.looks)?;
        std::fs::rename(&fresh, &self.path).map_err(at(self.path.display()))?;
        Ok(History { path: self.path, looks: copy.looks })
    }

    pub fn is_empty(&self) -> bool {
        self.looks.is_empty()
    }

    /// Of each subject that was looked at in the last days.
    pub fn standings(&self, now: u64) -> Vec<Standing> {
        let recent = self.looks.iter().filter(|look| look.time + WINDOW >= now);
        let mut subjects: Vec<&Subject> = recent.map(|look| &look.of).collect();
        subjects.sort();
        subjects.dedup();
        subjects.into_iter().filter_map(|subject| self.standing(subject)).collect()
    }

    fn standing(&self, subject: &Subject) -> Option<Standing> {
        let own: Vec<&Look> = self.looks.iter().filter(|look| look.of == *subject).collect();
        let last = own.last()?;
        // Times are judged as the rates that they make.
        let rate = |value: f64| if last.unit.is_rate() { value } else { 1.0 / value };
        let points: Vec<_> = own.iter().map(|look| (look.time, rate(look.value))).collect();
        let verdict = match judge(&points).map(rate) {
            Verdict::Slow { median, now, .. } if is_noise(last.unit, now - median) => {
                Verdict::Normal { median, low: median + WAKING }
            }
            verdict => verdict,
        };
        Some(Standing { of: subject.clone(), unit: last.unit, last: last.value, verdict })
    }
}

fn is_noise(unit: Unit, longer: f64) -> bool {
    unit == Unit::Microseconds && longer < WAKING
}

/// What is slow by the history in a file, in sentences; nothing where there is none.
pub fn alerts(path: &Path, now: u64) -> Vec<String> {
    let standings = History::open(path).map(|history| history.standings(now));
    standings.unwrap_or_default().iter().filter_map(Standing::sentence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(time: u64, value: f64) -> Look {
        let (dir, part, what) = ("/mnt".into(), "group 3".into(), "write".into());
        Look::new(time, Subject { dir, part, what }, Unit::MibPerSecond, value)
    }

    #[test]
    fn slowness_is_one_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("watch.jsonl");
        let begin = 1_795_000_000;
        let mut history = History::open(&path).unwrap();
        assert!(history.is_empty());
        history.add((0..10).map(|i| look(begin + i * 600, 210.0)).collect()).unwrap();
        assert_eq!(alerts(&path, begin + 6000), Vec::<String>::new());
        history.add((10..13).map(|i| look(begin + i * 600, 123.9)).collect()).unwrap();
        let told = "/mnt, group 3: write 41 % slower than its 14-day normal since \
                    Wed 2026-11-18 12:46 UTC (123.9 for 210.0 MiB/s)";
        assert_eq!(alerts(&path, begin + 9000), [told]);
        assert_eq!(
            alerts(&path, begin + 2 * WINDOW),
            Vec::<String>::new(),
            "nobody looks any more"
        );
    }

    #[test]
    fn times_are_slow_where_they_are_longer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("watch.jsonl");
        let (begin, link) = (1_795_000_000, "link to node 3");
        let trip = |(i, value): (usize, f64)| {
            let of = Subject { part: link.into(), what: "round trip".into(), ..look(0, 0.0).of };
            Look::new(begin + 600 * i as u64, of, Unit::Microseconds, value)
        };
        let mut history = History::open(&path).unwrap();
        let values = [200.0; 10].into_iter().chain([100.0; 3]).enumerate();
        history.add(values.map(trip).collect()).unwrap();
        assert_eq!(alerts(&path, begin + 7800), Vec::<String>::new(), "shorter is better");
        history.add((13..16).map(|i| trip((i, 460.0))).collect()).unwrap();
        let told = "/mnt, link to node 3: round trip 130 % longer than its 14-day normal since \
                    Wed 2026-11-18 13:16 UTC (460.0 for 200.0 us)";
        assert_eq!(alerts(&path, begin + 9600), [told]);
    }

    /// The fastest of a look's calls took 20 us, and 45 on the same machine when it was busier.
    #[test]
    fn what_a_processor_takes_to_wake_up_is_no_slowness() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("watch.jsonl");
        let trip = |i: u64, value| Look { unit: Unit::Microseconds, ..look(600 * i, value) };
        let mut history = History::open(&path).unwrap();
        history.add((0..10).map(|i| trip(i, 20.0)).collect()).unwrap();
        history.add((10..13).map(|i| trip(i, 119.0)).collect()).unwrap();
        assert_eq!(alerts(&path, 7800), Vec::<String>::new());
        history.add((13..16).map(|i| trip(i, 150.0)).collect()).unwrap();
        assert_eq!(alerts(&path, 9600).len(), 1);
    }

    #[test]
    fn a_torn_end_goes_and_nonsense_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.jsonl");
        let mut history = History::open(&path).unwrap();
        history.add(vec![look(1, 1.0), look(2, 2.0)]).unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"time\":3").unwrap();
        let mut history = History::open(&path).unwrap();
        history.add(vec![look(3, 3.0)]).unwrap();
        let again = History::open(&path).unwrap();
        assert_eq!(again.looks, [look(1, 1.0), look(2, 2.0), look(3, 3.0)]);
        let later = again.trim(2 + KEPT).unwrap();
        assert_eq!(later.looks.len(), 3, "one of three is old");
        assert_eq!(later.trim(3 + KEPT).unwrap().looks, [look(3, 3.0)]);
        assert_eq!(History::open(&path).unwrap().looks, [look(3, 3.0)]);
        std::fs::write(&path, "no\n").unwrap();
        let error = History::open(&path).err().unwrap().to_string();
        assert!(error.contains("h.jsonl: line 1"), "{error}");
        assert_eq!(alerts(&path, 3), Vec::<String>::new());
    }
}
