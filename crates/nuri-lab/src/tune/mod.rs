//! Finds by measurement the best striping for new files of a directory, and the best settings of
//! its mount, for a given kind of work. Called by `nuri lab tune`.
//!
//! However a search ends, the settings that it tried are taken back. Settings that were applied can
//! be undone.

mod halving;
mod layout;
mod overrides;
mod search;
mod settings;
mod told;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use layout::Layout;
use nuri_proto::size;
use overrides::Overrides;
use search::{Bench, Plan};
use settings::{Axis, Choice, Mount, Of};

use crate::measure::{Sample, measure};
use crate::progress::{duration, tell};
use crate::rank_group::Control;
use crate::request::{Patience, check_dirs};
use crate::run::fits;
use crate::stop::Stop;
use crate::work::WorkDir;
use crate::workload::Workload;
use crate::{LabError, Result};
pub(crate) use overrides::sweep;
use told::Outcome;

#[derive(Args, Clone, Debug)]
pub struct Tune {
    /// A directory of a mounted space
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Work that is to be fast
    #[arg(long, value_enum, default_value_t = Goal::Throughput)]
    goal: Goal,
    /// Search only these settings (default: all that can matter for the goal)
    #[arg(long, value_enum, value_name = "SETTING", value_delimiter = ',')]
    only: Vec<Axis>,
    /// Stop measuring after this time, and judge by what was measured
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
    /// Measure like programs that bypass the kernel's cache (O_DIRECT)
    #[arg(long)]
    direct: bool,
    /// Print each measurement, and when each setting drops out
    #[arg(long)]
    explain: bool,
    /// Set what is clearly better. A layout counts for new files; existing files stay as they are.
    /// Other settings count for all programs that use the mount, while it is mounted
    #[arg(long)]
    apply: bool,
    /// Restore the settings from before tuning, without measuring
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
    /// Large files that several processes write, sync and read from end to end
    Throughput,
    /// Transfers of 16 KiB at random places
    Latency,
    /// Names: files that are created, looked up and removed
    Metadata,
}

impl Goal {
    fn name(self) -> &'static str {
        match self {
            Goal::Throughput => "throughput",
            Goal::Latency => "latency",
            Goal::Metadata => "metadata",
        }
    }

    fn unit(self) -> &'static str {
        if self == Goal::Metadata { "op/s" } else { "MiB/s" }
    }

    fn of(self) -> Of {
        if self == Goal::Metadata { Of::Names } else { Of::Data }
    }

    /// Settings that can matter. No bytes are read for names, and what is written is little.
    fn axes(self) -> &'static [Axis] {
        match self {
            Goal::Metadata => &[Axis::Layout, Axis::Streams, Axis::WriteBehind],
            _ => &[
                Axis::Layout,
                Axis::Buffer,
                Axis::Streams,
                Axis::ReadAhead,
                Axis::WriteBehind,
                Axis::Threads,
            ],
        }
    }
}

impl Tune {
    /// Measures, tells and, if asked, sets.
    ///
    /// # Errors
    /// What was asked makes no sense there, a measurement failed, or the run was ended.
    pub fn run(&self, stop: Stop) -> Result<()> {
        check_dirs(std::iter::once(&self.dir))?;
        let layout = Layout::of(&self.dir)?.setting;
        if self.undo {
            return self.take_back();
        }
        let axes = self.axes()?;
        fits(&self.workload()?, &self.dir)?;
        let wants_mount = axes.iter().any(|axis| axis.is_of_mount());
        let (mut steering, left) = match wants_mount.then(|| Overrides::begin(&self.dir)) {
            None => (None, None),
            Some(begun) => match begun? {
                Ok(steering) => (Some(steering), None),
                Err(why) => (None, Some(why.to_string())),
            },
        };
        let mount = steering.as_ref().map_or(Mount::default(), |steering| steering.begun);
        let plan = Plan {
            before: Choice { layout, mount },
            axes: axes
                .into_iter()
                .filter(|axis| steering.is_some() || !axis.is_of_mount())
                .collect(),
            of: self.goal.of(),
            budget: Duration::from_secs(self.budget),
            unit: self.goal.unit(),
        };
        let found = self.search(&plan, steering.as_mut(), stop)?;
        let better = found.better.filter(|_| self.apply);
        if let Some((choice, _)) = better {
            self.set(&choice, layout, steering.as_mut())?;
        }
        drop(steering);
        let (dir, goal, unit) = (self.dir.display().to_string(), self.goal.name(), plan.unit);
        let outcome = Outcome { dir: &dir, goal, unit, is_set: better.is_some(), left };
        match self.json {
            true => println!("{}", told::as_json(&found, &outcome)),
            false => told::sentences(&found, &outcome).iter().for_each(|line| println!("{line}")),
        }
        Ok(())
    }

    /// What is searched, in the order of the goal.
    fn axes(&self) -> Result<Vec<Axis>> {
        let all = self.goal.axes();
        if let Some(axis) = self.only.iter().find(|axis| !all.contains(axis)) {
            let (axis, goal) = (axis.name(), self.goal.name());
            return Err(LabError(format!("{axis} cannot matter for --goal {goal}")));
        }
        if self.direct && self.goal == Goal::Metadata {
            return Err(LabError::new("--direct moves bytes: it goes without --goal metadata"));
        }
        if self.only.contains(&Axis::Threads) && !self.direct {
            return Err(LabError::new(
                "threads read ahead only for programs that bypass the kernel's cache: say --direct",
            ));
        }
        let is_wanted = |axis: &Axis| match self.only.is_empty() {
            true => *axis != Axis::Threads || self.direct,
            false => self.only.contains(axis),
        };
        Ok(all.iter().copied().filter(is_wanted).collect())
    }

    fn workload(&self) -> Result<Workload> {
        let (np, size) = (self.np, self.size);
        let direct = if self.direct { " --direct" } else { "" };
        let (name, words) = match self.goal {
            Goal::Throughput => {
                ("ior", format!("--np {np} --total {size} -F -e -w -r -t 1m{direct}"))
            }
            Goal::Latency => {
                ("ior", format!("--np {np} --total {size} -F -e -w -r -t 16k -z{direct}"))
            }
            Goal::Metadata => ("mdtest", format!("--np {np} -F -n {NAMES}")),
        };
        let words: Vec<_> = words.split(' ').map(String::from).collect();
        Workload::parse(name, &words)
    }

    fn search(
        &self,
        plan: &Plan,
        steering: Option<&mut Overrides>,
        stop: Stop,
    ) -> Result<search::Found> {
        let ((settings, measurements), budget) = (plan.size(), duration(self.budget as f64));
        tell(&format!(
            "{settings} settings, {measurements} measurements at most, {budget} at most"
        ));
        let mut bench = Measuring {
            tune: self,
            workload: self.workload()?,
            work: WorkDir::make(std::slice::from_ref(&self.dir))?,
            control: self.patience.control(stop),
            start: Instant::now(),
            steering,
            round: 0,
        };
        search::search(plan, &mut bench)
    }

    fn set(
        &self,
        choice: &Choice,
        layout: layout::Setting,
        steering: Option<&mut Overrides>,
    ) -> Result<()> {
        if choice.layout != layout {
            layout::apply(choice.layout, &self.dir)?;
        }
        steering.map_or(Ok(()), |steering| steering.apply(choice.mount))
    }

    fn take_back(&self) -> Result<()> {
        let dir = self.dir.display();
        let (layout, mount) = (layout::undo(&self.dir)?, overrides::undo(&self.dir));
        if let Some(setting) = layout {
            println!("{dir}: new files have {setting} again");
        }
        match (mount, layout) {
            (Ok(Some(mount)), _) => println!("the mount of {dir} has {mount} again"),
            (Ok(None), Some(_)) => {}
            (Ok(None), None) => return Err(LabError(format!("{dir}: nothing was tuned there"))),
            (Err(error), _) => return Err(error),
        }
        Ok(())
    }
}

/// Files of each process for names.
const NAMES: u32 = 2000;

/// On the real directory.
struct Measuring<'a> {
    tune: &'a Tune,
    workload: Workload,
    work: WorkDir,
    control: Control,
    start: Instant,
    steering: Option<&'a mut Overrides>,
    round: u64,
}

impl Bench for Measuring<'_> {
    fn measure(&mut self, choice: &Choice) -> Result<f64> {
        layout::try_out(choice.layout, &self.work.views()[0])?;
        if let Some(steering) = &mut self.steering {
            steering.try_out(choice.mount)?;
        }
        let mut samples = Vec::new();
        let views = self.work.views();
        measure(&self.workload, views, self.round, &self.control, &mut samples)?;
        self.round += 1;
        Ok(score(&samples))
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn tell(&self, line: &str) {
        if self.tune.explain {
            tell(line);
        }
    }
}

/// All phases count alike.
fn score(samples: &[Sample]) -> f64 {
    let logs: f64 = samples.iter().map(|sample| sample.value.ln()).sum();
    (logs / samples.len().max(1) as f64).exp()
}
