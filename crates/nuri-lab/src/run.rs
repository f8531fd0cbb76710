//! A study, point by point: rounds go over all points, so that what changes on the machine
//! meanwhile touches all of them alike.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::crew::Control;
use crate::guard::Stop;
use crate::limit::{DISK_READ, DISK_WRITE, Limits, MEMORY, STREAM, free};
use crate::measure::{Sample, measure};
use crate::output::Output;
use crate::plan::{Plan, Point};
use crate::progress::{MIB_PER_SECOND, Progress, duration, guess, tell};
use crate::record::{Host, Limit, Record, Unit};
use crate::results::{Origin, Subject, recalled, records};
use crate::size::human;
use crate::work::WorkDir;
use crate::workload::{Phase, Workload};
use crate::{LabError, Result, clock, host};

/// What is run and where.
#[derive(Args, Clone, Debug)]
pub struct Request {
    /// A study of `nuri lab list`, or the file of a plan
    study: String,
    /// A directory of what is measured; repeat for other mounts of the same, which processes use
    /// in turn. Studies of messages between processes need none
    #[arg(long, value_name = "DIR")]
    dir: Vec<PathBuf>,
    /// A directory on a local disk, as the reference; without it those points are left out
    #[arg(long, value_name = "DIR")]
    local: Option<PathBuf>,
    /// A directory on the disk whose limits are measured (default: that of --local)
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// The study's short form
    #[arg(long)]
    quick: bool,
    /// How often each point is measured (default: as the study says)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    repeat: Option<u16>,
    /// The file of results (default: one with the study's name and the time in runs/)
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Go on with a run that was interrupted: what its file has is not measured again
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    resume: Option<PathBuf>,
    #[command(flatten)]
    patience: Patience,
}

#[derive(Args, Clone, Debug)]
pub struct Patience {
    /// A phase that takes longer has hung, and ends the run
    #[arg(long, value_name = "SECONDS", default_value_t = 3600,
        value_parser = clap::value_parser!(u64).range(1..))]
    patience: u64,
}

impl Patience {
    pub(crate) fn control(&self, stop: Stop) -> Control {
        Control { stop, patience: Duration::from_secs(self.patience) }
    }
}

impl Request {
    /// Where working directories may be made.
    pub fn dirs(&self) -> Vec<PathBuf> {
        let given = self.dir.iter().chain(&self.local).chain(self.scratch()).cloned();
        given.chain([std::env::temp_dir()]).collect()
    }

    /// With the directories that the plan works in.
    fn placed(&self, plan: &Plan) -> Result<Request> {
        let mut request = self.clone();
        if !Workload::is_placed(&plan.workload.name) {
            request.dir = vec![std::env::temp_dir()];
            (request.local, request.scratch) = (None, None);
        }
        if request.dir.is_empty() {
            return Err(LabError::new("say what is to be measured: --dir DIR"));
        }
        let (local, scratch) = (request.local.iter(), request.scratch());
        check_dirs(request.dir.iter().chain(local).chain(scratch))?;
        if request.local.as_ref().is_some_and(|local| request.dir.contains(local)) {
            return Err(LabError::new("--local and --dir are to be different directories"));
        }
        Ok(request)
    }

    fn scratch(&self) -> Option<&PathBuf> {
        self.scratch.as_ref().or(self.local.as_ref())
    }

    /// Where points with `place=local` run.
    fn local_dir(&self) -> &Path {
        self.local.as_ref().unwrap_or(&self.dir[0])
    }

    fn plan(&self) -> Result<Plan> {
        let mut plan = Plan::open(&self.study)?;
        if self.quick {
            plan = plan.quickened();
        }
        plan.repeat = self.repeat.map_or(plan.repeat, usize::from);
        Ok(plan)
    }

    fn open(&self, plan: &Plan) -> Result<Output> {
        if let Some(path) = &self.resume {
            return Output::resume(path, &plan.study);
        }
        let time = clock::utc(clock::unix_now()).replace(['-', ':'], "");
        let name = || Path::new("runs").join(format!("{}-{time}.jsonl", plan.study));
        Output::create(&self.output.clone().unwrap_or_else(name))
    }
}

/// A point and what is known of it.
struct Trial {
    point: Point,
    workload: Workload,
    options: String,
    is_local: bool,
    samples: Vec<Sample>,
    /// Rounds that an earlier run measured.
    rounds: usize,
    /// Its records are in the file.
    is_written: bool,
}

/// Directories are there; refused otherwise.
pub(crate) fn check_dirs<'a>(mut dirs: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    match dirs.find(|dir| !dir.is_dir()) {
        Some(dir) => Err(LabError(format!("{} is no directory", dir.display()))),
        None => Ok(()),
    }
}

/// Runs a study and writes its file.
pub fn run(request: &Request, stop: Stop) -> Result<()> {
    let plan = request.plan()?;
    let request = &request.placed(&plan)?;
    let trials = trials(&plan, request)?;
    for trial in &trials {
        fits(&trial.workload, trial.dir(request))?;
    }
    let (limits, unknown) = match Workload::is_placed(&plan.workload.name) {
        true => Limits::measure(request.scratch().map(PathBuf::as_path)),
        false => Default::default(),
    };
    unknown.iter().for_each(|text| tell(text));
    let space = WorkDir::make(&request.dir)?;
    let local = request.local.clone().map(|dir| WorkDir::make(&[dir])).transpose()?;
    let output = request.open(&plan)?;
    let id = output.path().file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let run = output.run().map(String::from).or(id).unwrap_or_default();
    let mut session = Session {
        origin: Origin { run, study: plan.study.clone() },
        rounds: plan.repeat,
        control: request.patience.control(stop),
        hosts: [host::facts(&request.dir[0]), host::facts(request.local_dir())],
        progress: Progress::new(0.0),
        trials,
        output,
        limits,
        space,
        local,
    };
    session.skip_known();
    session.announce(&plan)?;
    session.all_rounds()
}

fn trials(plan: &Plan, request: &Request) -> Result<Vec<Trial>> {
    let mut trials = Vec::new();
    let mut left_out = 0;
    for point in plan.points()? {
        let is_local = point.get("place").is_some_and(|place| place == "local");
        if is_local && request.local.is_none() {
            left_out += 1;
            continue;
        }
        let words = plan.options(&point)?;
        let workload = Workload::parse(&plan.workload.name, &words)?;
        if !workload.is_confined() {
            return Err(LabError::new("a plan cannot name files: leave out -o and -k"));
        }
        let options = format!("{} {}", workload.name(), words.join(" "));
        if let Some(why) = workload.obstacle() {
            tell(&format!("{options} is left out: {why}"));
            continue;
        }
        trials.push(Trial {
            point,
            workload,
            options,
            is_local,
            samples: Vec::new(),
            rounds: 0,
            is_written: false,
        });
    }
    if left_out > 0 {
        tell(&format!("{left_out} points with place=local are left out: --local DIR is not given"));
    }
    if trials.is_empty() {
        let need = if left_out > 0 { ": all points need --local DIR" } else { "" };
        return Err(LabError(format!("nothing to measure{need}")));
    }
    Ok(trials)
}

/// Refuses what the file system has no room for.
pub(crate) fn fits(workload: &Workload, dir: &Path) -> Result<()> {
    let (needed, free) = (workload.space(), free(dir)?);
    if needed <= free {
        return Ok(());
    }
    let (needed, free) = (human(needed), human(free));
    Err(LabError(format!("{} needs {needed} free, it has {free}", dir.display())))
}

impl Trial {
    fn dir<'a>(&self, request: &'a Request) -> &'a Path {
        if self.is_local { request.local_dir() } else { &request.dir[0] }
    }

    fn name(&self) -> String {
        let values: Vec<_> = self.point.iter().map(|(k, v)| format!("{k}={v}")).collect();
        values.join(" ")
    }
}

/// A run under way.
struct Session {
    origin: Origin,
    rounds: usize,
    trials: Vec<Trial>,
    output: Output,
    limits: Limits,
    control: Control,
    progress: Progress,
    /// Of the space and of the local directory.
    hosts: [Host; 2],
    space: WorkDir,
    local: Option<WorkDir>,
}

impl Session {
    /// What the file has already is not measured again.
    fn skip_known(&mut self) {
        for i in 0..self.trials.len() {
            let Trial { point, options, workload, .. } = &self.trials[i];
            let (rounds, samples) = recalled(workload, &self.output.of(point, options));
            (self.trials[i].rounds, self.trials[i].samples) = (rounds, samples);
            let known = self.records(i, None);
            let is_whole = known.iter().all(|record| self.output.has(record));
            self.trials[i].is_written = is_whole && !known.is_empty();
        }
    }

    fn announce(&mut self, plan: &Plan) -> Result<()> {
        let left: Vec<_> = self.trials.iter().filter(|trial| !trial.is_written).collect();
        let rounds = |trial: &Trial| self.rounds.saturating_sub(trial.rounds) as f64;
        let all: f64 = left.iter().map(|trial| rounds(trial) * self.guess(trial)).sum();
        let space = left.iter().map(|trial| trial.workload.space()).max().unwrap_or(0);
        tell(&format!("{}: {}", plan.study, plan.question));
        let (points, rounds) = (left.len(), self.rounds);
        let (time, space) = (duration(all), human(space));
        let free = human(free(&self.space.views()[0])?);
        tell(&format!(
            "points: {points}, rounds: {rounds}; {time} by guess; up to {space} of {free} free"
        ));
        tell(&format!("results: {}", self.output.path().display()));
        for Limit { name, value } in self.limits.all() {
            tell(&format!("limit: {name} {value:.0} MiB/s"));
        }
        self.progress = Progress::new(all);
        Ok(())
    }

    /// Half of what the disk does, where that is known.
    fn guess(&self, trial: &Trial) -> f64 {
        let disk = self.limits.lowest(&[DISK_WRITE, DISK_READ]);
        let rate = disk.map_or(MIB_PER_SECOND, |limit| (limit.value / 2.0).max(1.0));
        guess(&trial.workload, rate)
    }

    fn all_rounds(&mut self) -> Result<()> {
        for round in 0..self.rounds {
            for i in 0..self.trials.len() {
                if self.trials[i].is_written {
                    continue;
                }
                if round >= self.trials[i].rounds {
                    self.measure(round, i).map_err(|error| self.give_up(i, error))?;
                }
                if round + 1 == self.rounds {
                    self.write(i, None)?;
                }
            }
        }
        self.progress.end();
        tell(&format!("results are in {}", self.output.path().display()));
        Ok(())
    }

    fn measure(&mut self, round: usize, i: usize) -> Result<()> {
        let (rounds, points) = (self.rounds, self.trials.len());
        let name = self.trials[i].name();
        let (round_now, point) = (round + 1, i + 1);
        self.progress.show(&format!("round {round_now}/{rounds} point {point}/{points} {name}"));
        let guessed = self.guess(&self.trials[i]);
        let trial = &mut self.trials[i];
        let work = match &self.local {
            Some(local) if trial.is_local => local,
            _ => &self.space,
        };
        let (dirs, samples) = (work.views(), &mut trial.samples);
        measure(&trial.workload, dirs, round as u64, &self.control, samples)?;
        self.progress.advance(guessed);
        Ok(())
    }

    /// Keeps what was measured.
    fn give_up(&mut self, failed: usize, LabError(why): LabError) -> LabError {
        self.progress.end();
        for i in 0..self.trials.len() {
            let trial = &self.trials[i];
            let began = i == failed || !trial.samples.is_empty();
            if began
                && !trial.is_written
                && let Err(LabError(also)) = self.write(i, Some(&why))
            {
                return LabError(format!("{why}; and what was measured is lost: {also}"));
            }
        }
        let (name, file) = (self.trials[failed].name(), self.output.path().display());
        LabError(format!("{name}: {why}; what was measured is in {file}, go on with --resume"))
    }

    fn write(&mut self, i: usize, partial: Option<&str>) -> Result<()> {
        for record in self.records(i, partial) {
            if !self.output.has(&record) {
                self.output.add(&record)?;
            }
        }
        self.trials[i].is_written = true;
        Ok(())
    }

    fn records(&self, i: usize, partial: Option<&str>) -> Vec<Record> {
        let trial = &self.trials[i];
        let limit = |sample: &Sample| self.limits.lowest(passed(sample, trial.is_local));
        let subject = Subject {
            point: &trial.point,
            options: trial.options.clone(),
            workload: &trial.workload,
            host: self.hosts[usize::from(trial.is_local)].clone(),
            limit: &limit,
        };
        records(&self.origin, &subject, &trial.samples, partial)
    }
}

/// What the bytes of a phase must pass.
fn passed(sample: &Sample, is_local: bool) -> &'static [&'static str] {
    let writes = matches!(sample.phase.own(), Phase::Write | Phase::WriteCharacters);
    match (sample.phase.unit(), sample.caches.as_str()) {
        _ if sample.phase == Phase::Stream => &[],
        (Unit::OpsPerSecond | Unit::Microseconds | Unit::Seconds, _) => &[],
        (_, "warm" | "not synced") => &[MEMORY],
        _ if is_local && writes => &[DISK_WRITE],
        _ if is_local => &[DISK_READ],
        _ if writes => &[DISK_WRITE, STREAM],
        _ => &[DISK_READ, STREAM],
    }
}
