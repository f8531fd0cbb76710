//! The user's request: which study to run, and where.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use nuri_watch::calendar;

use crate::bed::Bed;
use crate::hosts::Hosts;
use crate::output::Output;
use crate::plan::{Axis, Plan};
use crate::rank_group::Control;
use crate::stop::Stop;
use crate::workload::Workload;
use crate::{LabError, Result, at, testbed};

/// A study and its places.
#[derive(Args, Clone, Debug)]
pub struct Request {
    /// A study as in `nuri lab list`, or the file of a plan
    study: String,
    /// A directory to measure; repeat for other mounts of the same directory, which processes use
    /// in turn. Studies of messages between processes need none
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Vec<PathBuf>,
    /// Make the clusters that the study describes, one after the other, from network namespaces of
    /// this machine. Their files lie in this new directory. Needs root
    #[arg(long, value_name = "DIR", conflicts_with = "dir")]
    pub(crate) testbed: Option<PathBuf>,
    /// Measure only the points with this value, which may be one that the study does not list;
    /// repeat for other names
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pin)]
    at: Vec<(String, String)>,
    /// A directory on a local disk, as the reference; without it the points of the local disk are
    /// left out
    #[arg(long, value_name = "DIR")]
    pub(crate) local: Option<PathBuf>,
    /// A directory on the disk whose limits are measured (default: that of --local)
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Run the study's short form
    #[arg(long)]
    quick: bool,
    /// How often each point is measured (default: as the study says)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    repeat: Option<u16>,
    /// The file of results (default: one with the study's name and the time in runs/)
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Continue an interrupted run; points whose results are in its file are not measured again
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    resume: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) hosts: Hosts,
}

fn parse_pin(text: &str) -> Result<(String, String)> {
    let (name, value) =
        text.split_once('=').ok_or(LabError::new("write NAME=VALUE, as link=100mbit"))?;
    Ok((name.to_string(), value.to_string()))
}

#[derive(Args, Clone, Debug)]
pub struct Patience {
    /// Longest time of a phase; a phase that takes longer counts as hung and ends the run
    #[arg(long, value_name = "SECONDS", default_value_t = 3600,
        value_parser = clap::value_parser!(u64).range(1..))]
    patience: u64,
}

impl Patience {
    pub(crate) fn control(&self, stop: Stop) -> Control {
        let (patience, hosts) = (Duration::from_secs(self.patience), Hosts::default());
        Control { stop, patience, network: None, served: Vec::new(), hosts }
    }
}

impl Request {
    /// Where working directories may be made.
    pub fn dirs(&self) -> Vec<PathBuf> {
        let given = self.dir.iter().chain(&self.local).chain(self.scratch()).cloned();
        given.chain([std::env::temp_dir()]).collect()
    }

    /// With the directories that the plan works in.
    pub(crate) fn placed(&self, plan: &Plan) -> Result<Request> {
        let mut request = self.clone();
        if !Workload::is_placed(&plan.workload.name) {
            request.dir = vec![std::env::temp_dir()];
            (request.local, request.scratch, request.testbed) = (None, None, None);
        }
        if let Some(dir) = &mut request.testbed {
            *dir = resolved(dir)?;
        }
        let (local, scratch) = (request.local.iter(), request.scratch());
        check_dirs(request.dir.iter().chain(local).chain(scratch))?;
        if request.local.as_ref().is_some_and(|local| request.dir.contains(local)) {
            return Err(LabError::new("--local and --dir are to be different directories"));
        }
        if request.hosts.are_others() && request.testbed.is_some() {
            return Err(LabError::new("--node goes without --testbed"));
        }
        request.check_cluster(plan)?;
        Ok(request)
    }

    /// There is one, and it is as the plan's points want it.
    fn check_cluster(&self, plan: &Plan) -> Result<()> {
        let study = &plan.study;
        if let Some(dir) = &self.testbed {
            return testbed::check_place(dir);
        }
        if self.dir.is_empty() {
            let text = match plan.testbed {
                Some(_) => format!(
                    "say where: --testbed DIR makes the clusters of {study} on this machine (as \
                     root), --dir DIR takes one that is there"
                ),
                None => "say what is to be measured: --dir DIR".into(),
            };
            return Err(LabError(text));
        }
        match plan.varied_by_clusters()[..] {
            [] => Ok(()),
            [Axis { name, values }, ..] => Err(LabError(format!(
                "{study} varies the cluster itself ({name}: {}): say what yours has with --at \
                 {name}=VALUE, or let clusters be made with --testbed DIR",
                values.join(", ")
            ))),
        }
    }

    /// The cluster that points want, where clusters are made.
    pub(crate) fn bed(&self, plan: &Plan) -> Option<Bed> {
        self.testbed.as_ref().map(|_| plan.testbed.clone().unwrap_or_default())
    }

    pub(crate) fn scratch(&self) -> Option<&PathBuf> {
        self.scratch.as_ref().or(self.local.as_ref())
    }

    pub(crate) fn plan(&self) -> Result<Plan> {
        let mut plan = Plan::open(&self.study)?;
        if self.quick {
            plan = plan.quickened();
        }
        plan.repeat = self.repeat.map_or(plan.repeat, usize::from);
        plan.pinned(&self.at)
    }

    pub(crate) fn open(&self, plan: &Plan) -> Result<Output> {
        if let Some(path) = &self.resume {
            return Output::resume(path, &plan.study);
        }
        let time = calendar::utc(calendar::unix_now()).replace(['-', ':'], "");
        let name = || Path::new("runs").join(format!("{}-{time}.jsonl", plan.study));
        Output::create(&self.output.clone().unwrap_or_else(name))
    }
}

/// The whole path of a directory that is to be made, as the kernel shows it.
fn resolved(dir: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(dir).map_err(LabError::new)?;
    let (parent, name) = (whole.parent(), whole.file_name());
    let (Some(parent), Some(name)) = (parent, name) else {
        return Err(LabError(format!("--testbed {}: name a new directory", dir.display())));
    };
    Ok(parent.canonicalize().map_err(at(parent.display()))?.join(name))
}

/// Directories are there; refused otherwise.
pub(crate) fn check_dirs<'a>(mut dirs: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    match dirs.find(|dir| !dir.is_dir()) {
        Some(dir) => Err(LabError(format!("{} is no directory", dir.display()))),
        None => Ok(()),
    }
}
