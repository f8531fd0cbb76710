//! Finds by measurement how new files of a directory are best striped for what is done there.

mod halving;
mod layout;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::guard::Stop;
use crate::measure::{Sample, measure};
use crate::progress::{duration, tell};
use crate::request::{Patience, check_dirs};
use crate::run::fits;
use crate::size;
use crate::work::WorkDir;
use crate::workload::Workload;
use crate::{LabError, Result};
use halving::{Outcome, Race};
use layout::{Layout, Setting};

#[derive(Args, Clone, Debug)]
pub struct Tune {
    /// A directory of a mounted space, whose new files are to be striped well
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// What is to be fast
    #[arg(long, value_enum, default_value_t = Goal::Throughput)]
    goal: Goal,
    /// Stop measuring after so long, and judge by what was measured
    #[arg(long, value_name = "SECONDS", default_value_t = 180,
        value_parser = clap::value_parser!(u64).range(10..))]
    budget: u64,
    /// Bytes that each measurement writes and reads
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = size::parse)]
    size: u64,
    /// Processes at once
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    np: u16,
    /// Print each measurement, and who goes when
    #[arg(long)]
    explain: bool,
    /// Set the best for new files, if it is clearly better; files that are there stay as they are
    #[arg(long)]
    apply: bool,
    /// Set what was there before tuning, without measuring
    #[arg(long, conflicts_with_all = ["apply", "explain"])]
    undo: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    patience: Patience,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// Large files, written, synced and read from end to end by several processes
    Throughput,
    /// Parts of 16 KiB at random places
    Latency,
    /// Names: no setting changes how fast they are
    Metadata,
}

/// What was found.
struct Found {
    before: Layout,
    settings: Vec<Setting>,
    race: Race,
    /// Time was up before the race was over.
    is_cut: bool,
}

impl Tune {
    /// Measures, tells and, if asked, sets.
    pub fn run(&self, stop: Stop) -> Result<()> {
        if self.goal == Goal::Metadata {
            return Err(LabError::new(
                "nothing can be set that makes names faster: mounts tune that by themselves; \
                 measure it with nuri lab mdtest",
            ));
        }
        check_dirs(std::iter::once(&self.dir))?;
        let before = Layout::of(&self.dir)?;
        if self.undo {
            let setting = layout::undo(&self.dir)?;
            println!("{}: new files have {setting} again", self.dir.display());
            return Ok(());
        }
        let found = self.search(before, stop)?;
        let best = found.best();
        if let (true, Some((setting, _))) = (self.apply, best) {
            layout::apply(setting, &self.dir)?;
        }
        match self.json {
            true => println!("{}", self.as_json(&found)),
            false => self.sentences(&found).iter().for_each(|line| println!("{line}")),
        }
        Ok(())
    }

    fn workload(&self, setting: Setting) -> Result<Workload> {
        let Setting { chunk, width } = setting;
        let how = match self.goal {
            Goal::Latency => "-t 16k -z",
            _ => "-t 1m",
        };
        let (np, size) = (self.np, self.size);
        let words = format!(
            "--np {np} --total {size} -F -e -w -r {how} --stripe-count {width} \
             --stripe-size {chunk}"
        );
        let words: Vec<_> = words.split(' ').map(String::from).collect();
        Workload::parse("ior", &words)
    }

    fn search(&self, before: Layout, stop: Stop) -> Result<Found> {
        let settings = layout::settings(before.setting);
        fits(&self.workload(settings[0])?, &self.dir)?;
        let work = WorkDir::make(std::slice::from_ref(&self.dir))?;
        let control = self.patience.control(stop);
        let race = Race::new(settings.len());
        let mut found = Found { before, settings, race, is_cut: false };
        let (start, budget) = (Instant::now(), Duration::from_secs(self.budget));
        tell(&format!(
            "{} settings, {} measurements at most, {} at most",
            found.settings.len(),
            found.race.ahead(),
            duration(self.budget as f64)
        ));
        let (mut longest, mut round) = (Duration::ZERO, 0);
        while let Some(i) = found.race.next() {
            if start.elapsed() + longest > budget {
                found.is_cut = true;
                break;
            }
            let (setting, begun) = (found.settings[i], Instant::now());
            let mut samples = Vec::new();
            measure(&self.workload(setting)?, work.views(), round, &control, &mut samples)?;
            longest = longest.max(begun.elapsed());
            found.race.note(i, score(&samples));
            round += 1;
            if self.explain {
                let (rate, left) = (score(&samples), found.race.ahead());
                tell(&format!("{setting}: {rate:.0} MiB/s; {left} measurements left"));
            }
        }
        Ok(found)
    }

    fn sentences(&self, found: &Found) -> Vec<String> {
        let mut lines = Vec::new();
        for (i, setting) in found.settings.iter().enumerate() {
            let (count, median) = (found.race.scores(i).len(), found.race.median(i));
            let now = if i == 0 { "  (now)" } else { "" };
            lines.push(format!("{median:>8.0} MiB/s  {count} times  {setting}{now}"));
        }
        if found.is_cut {
            lines.push("time was up before all was measured: see --budget".into());
        }
        let dir = self.dir.display();
        match found.best() {
            None => lines.push(format!("nothing is clearly better than {}", found.before.setting)),
            Some((setting, times)) => {
                let was = found.before.setting;
                lines.push(format!("{setting}: {times:.2} times as fast as {was}"));
                lines.push(match self.apply {
                    true => format!("set for new files of {dir}; undo: nuri lab tune --undo {dir}"),
                    false => format!("to set it: {}", command(setting, &self.dir)),
                });
            }
        }
        lines
    }

    fn as_json(&self, found: &Found) -> serde_json::Value {
        let one = |(i, Setting { chunk, width }): (usize, &Setting)| {
            let samples = found.race.scores(i);
            json!({ "chunk_size": chunk, "width": width, "samples": samples })
        };
        let measured: Vec<_> = found.settings.iter().enumerate().map(one).collect();
        let best = found.best().map(|(Setting { chunk, width }, times)| {
            json!({ "chunk_size": chunk, "width": width, "times": times })
        });
        let is_set = self.apply && best.is_some();
        json!({
            "dir": self.dir, "measured": measured, "best": best, "applied": is_set,
            "complete": !found.is_cut,
        })
    }
}

/// As a user would type it.
fn command(Setting { chunk, width }: Setting, dir: &std::path::Path) -> String {
    format!("nuri fs layout set --chunk-size {chunk} --width {width} {}", dir.display())
}

/// Reading and writing count alike.
fn score(samples: &[Sample]) -> f64 {
    let logs: f64 = samples.iter().map(|sample| sample.value.ln()).sum();
    (logs / samples.len().max(1) as f64).exp()
}

impl Found {
    fn best(&self) -> Option<(Setting, f64)> {
        match self.race.outcome() {
            Outcome::Better(i, times) => Some((self.settings[i], times)),
            Outcome::Stay => None,
        }
    }
}
