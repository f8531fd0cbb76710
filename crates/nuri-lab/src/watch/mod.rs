//! Measures directories again and again, learns what is normal for each, and reports what became
//! slow and since when. Called by `nuri lab watch`.

mod links;
pub mod probe;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use nuri_proto::size;
use nuri_watch::calendar;
use nuri_watch::history::{History, LONGER, SLOWER, Standing};
use nuri_watch::normal::{LEARNING, Verdict};
use probe::Probe;
use serde_json::json;

use crate::request::check_dirs;
use crate::stop::Stop;
use crate::{LabError, Result};

/// How often a pause looks whether the run is to end.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Args, Clone, Debug)]
pub struct Watch {
    /// Directories to measure: mounts of a space, and local disks for comparison
    #[arg(required = true, value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Seconds from one measurement to the next
    #[arg(long, value_name = "SECONDS", default_value_t = 600,
        value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// Measure once; the exit status is 1 if something is slow or could not be measured
    #[arg(long)]
    once: bool,
    /// Judge the history without measuring; the exit status is as with --once
    #[arg(long, conflicts_with = "once")]
    last: bool,
    /// Bytes that a measurement writes and reads in each directory
    #[arg(long, value_name = "SIZE", default_value = "16m", value_parser = size::parse)]
    size: u64,
    /// Directory of the space; the history is kept in its watch.jsonl, where `nuri status` reads it
    #[arg(long, value_name = "DIR", default_value = "/var/lib/nuri")]
    space: PathBuf,
    /// File for the history, instead of the one in the space's directory
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Print a JSON line for each measurement
    #[arg(long)]
    json: bool,
}

impl Watch {
    fn path(&self) -> Result<PathBuf> {
        let path = self.history.clone().unwrap_or_else(|| self.space.join(nuri_watch::FILE));
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        match dir {
            Some(dir) if !dir.is_dir() => Err(LabError(format!(
                "{} is no directory for the history: give --space DIR or --history FILE",
                dir.display()
            ))),
            _ => Ok(path),
        }
    }

    /// Looks, once or until the run is to end.
    pub fn run(&self, stop: &Stop) -> Result<ExitCode> {
        check_dirs(self.dirs.iter())?;
        let path = self.path()?;
        let mut history = History::open(&path)?.trim(calendar::unix_now())?;
        if self.last {
            if history.is_empty() {
                return Err(LabError(format!("{} holds no looks yet", path.display())));
            }
            return Ok(self.tell(&history, &[], &[]));
        }
        let mut slow = Vec::new();
        loop {
            let start = Instant::now();
            let failed = self.look(&mut history, stop)?;
            if self.once {
                let code = self.tell(&history, &[], &failed);
                return Ok(if failed.is_empty() { code } else { ExitCode::FAILURE });
            }
            self.tell(&history, &slow, &failed);
            slow = sentences(&history);
            while start.elapsed() < Duration::from_secs(self.every) {
                if stop.is_asked() {
                    return Ok(ExitCode::SUCCESS);
                }
                std::thread::sleep(LOOK);
            }
        }
    }

    /// One look at all directories; what failed is told and tried again the next time.
    fn look(&self, history: &mut History, stop: &Stop) -> Result<Vec<LabError>> {
        let mut failed = Vec::new();
        for dir in &self.dirs {
            let dir = std::path::absolute(dir).unwrap_or(dir.clone());
            // First: a group may be waited for whose node is gone.
            match links::look(&dir, calendar::unix_now(), stop) {
                Ok((looks, untold)) => {
                    history.add(looks)?;
                    failed.extend(untold);
                }
                Err(error) => failed.push(error),
            }
            let probe = Probe { dir: &dir, bytes: self.size, stop };
            match probe.run(calendar::unix_now()) {
                Ok(looks) => history.add(looks)?,
                Err(error) => failed.push(error),
            }
        }
        Ok(failed)
    }

    /// Tells what is slow: all of it after one look, else what changed.
    fn tell(&self, history: &History, before: &[String], failed: &[LabError]) -> ExitCode {
        let standings = history.standings(calendar::unix_now());
        let slow = sentences(history);
        if self.json {
            println!("{}", as_json(&standings, &slow, failed));
        } else {
            failed.iter().for_each(|error| eprintln!("{error}"));
            let is_new = |s: &&String| !before.iter().any(|b| subject(b) == subject(s));
            slow.iter().filter(is_new).for_each(|sentence| println!("{sentence}"));
            let is_over = |b: &&String| !slow.iter().any(|s| subject(b) == subject(s));
            for over in before.iter().filter(is_over) {
                println!("{} is as usual again", subject(over));
            }
            if self.once || self.last {
                println!("{}", summary(&standings));
            }
        }
        if slow.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn sentences(history: &History) -> Vec<String> {
    history.standings(calendar::unix_now()).iter().filter_map(Standing::sentence).collect()
}

/// What a sentence is about: its words before the number.
fn subject(sentence: &str) -> &str {
    let words = [SLOWER, LONGER].into_iter().filter_map(|than| sentence.find(than));
    let end = words.min().unwrap_or(sentence.len());
    sentence[..end].rsplit_once(' ').map_or(sentence, |(subject, _)| subject)
}

fn summary(standings: &[Standing]) -> String {
    let count = |of: fn(&Verdict) -> bool| standings.iter().filter(|s| of(&s.verdict)).count();
    let slow = count(|v| matches!(v, Verdict::Slow { .. }));
    let normal = count(|v| matches!(v, Verdict::Normal { .. }));
    let learning = count(|v| matches!(v, Verdict::Learning(_)));
    let more = match learning {
        0 => String::new(),
        n => format!(", {n} not known for long enough ({LEARNING} looks)"),
    };
    format!("figures: {slow} slow, {normal} as usual{more}")
}

fn as_json(standings: &[Standing], slow: &[String], failed: &[LabError]) -> serde_json::Value {
    let figure = |standing: &Standing| {
        let Standing { of, unit, last, verdict } = standing;
        let (state, normal, since) = match *verdict {
            Verdict::Learning(_) => ("learning", None, None),
            Verdict::Normal { median, .. } => ("normal", Some(median), None),
            Verdict::Slow { since, median, .. } => {
                ("slow", Some(median), Some(calendar::utc(since)))
            }
        };
        json!({
            "dir": of.dir, "part": of.part, "what": of.what, "unit": unit, "last": last,
            "state": state, "normal": normal, "since": since,
        })
    };
    let failed: Vec<_> = failed.iter().map(ToString::to_string).collect();
    json!({
        "at": calendar::utc(calendar::unix_now()),
        "figures": standings.iter().map(figure).collect::<Vec<_>>(),
        "slow": slow,
        "failed": failed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_about_their_subject() {
        let old = "/m, group 1: writing 41 % slower than its 14-day normal since Tue";
        let new = "/m, group 1: writing 52 % slower than its 14-day normal since Tue";
        assert_eq!((subject(old), subject(new)), ("/m, group 1: writing", "/m, group 1: writing"));
        let time = "/m, link to node 2: round trip 130 % longer than its 14-day normal since Tue";
        assert_eq!(subject(time), "/m, link to node 2: round trip");
    }
}
