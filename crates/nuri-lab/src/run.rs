//! Runs a study point by point. Each round goes over all points, so that a change on the machine
//! meanwhile touches all of them alike. Where clusters are made, a round goes over all points of
//! one cluster.

use std::path::{Path, PathBuf};

use nuri_proto::size::human;
use nuri_watch::unit::Unit;

use crate::bed::Cluster;
use crate::ground::{Ground, room};
use crate::hosts::Hosts;
use crate::limit::{DISK_READ, DISK_WRITE, Limits, MEMORY, STREAM, WIRE, free};
use crate::measure::{Sample, measure};
use crate::output::Output;
use crate::plan::{Plan, Point};
use crate::progress::{MIB_PER_SECOND, Progress, duration, guess, tell};
use crate::rank_group::Control;
use crate::record::{Limit, Record};
use crate::request::Request;
use crate::results::{Origin, Subject, recalled, records};
use crate::stop::Stop;
use crate::workload::{Phase, Workload};
use crate::{LabError, Result};

/// A point and what is known of it.
struct Trial {
    point: Point,
    workload: Workload,
    options: String,
    is_local: bool,
    /// What is made for it, unless it runs in directories that are given.
    cluster: Option<Cluster>,
    samples: Vec<Sample>,
    /// Rounds that an earlier run measured.
    rounds: usize,
    /// Its records are in the file.
    is_written: bool,
}

/// Runs a study and writes its file.
pub fn run(request: &Request, stop: Stop) -> Result<()> {
    let plan = request.plan()?;
    let request = &request.placed(&plan)?;
    let trials = trials(&plan, request)?;
    for trial in &trials {
        let (place, room) = trial.room(request)?;
        fits_in(trial.workload.space(), &place, room)?;
    }
    let (limits, unknown) = match Workload::is_placed(&plan.workload.name) {
        true => Limits::measure(request.scratch().map(PathBuf::as_path)),
        false => Default::default(),
    };
    unknown.iter().for_each(|text| tell(text));
    let local = request.local.clone().map(|dir| Ground::of(&[dir], &limits)).transpose()?;
    let output = request.open(&plan)?;
    let id = output.path().file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let run = output.run().map(String::from).or(id).unwrap_or_default();
    let mut session = Session {
        origin: Origin { run, study: plan.study.clone() },
        rounds: plan.repeat,
        control: Control { hosts: request.hosts.clone(), ..request.patience.control(stop) },
        progress: Progress::new(0.0),
        trials,
        output,
        limits,
        request: request.clone(),
        ground: None,
        local,
    };
    session.skip_known();
    session.announce(&plan)?;
    session.all_groups()
}

fn trials(plan: &Plan, request: &Request) -> Result<Vec<Trial>> {
    let bed = request.bed(plan);
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
        workload.check_hosts(&request.hosts)?;
        if !workload.is_confined() {
            return Err(LabError::new("a plan cannot name files: leave out -o and -k"));
        }
        let options = format!("{} {}", workload.name(), words.join(" "));
        if let Some(why) = workload.obstacle() {
            tell(&format!("{options} is left out: {why}"));
            continue;
        }
        let made = bed.as_ref().filter(|_| !is_local);
        let cluster = made.map(|bed| bed.at(&point)).transpose()?;
        if let Some(what) = workload.lacks(cluster.as_ref().and_then(|cluster| cluster.serve)) {
            tell(&format!("{options} is left out: {what} are served where --testbed is given"));
            continue;
        }
        trials.push(Trial {
            cluster,
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
    fits_in(workload.space(), dir, free(dir)?)
}

fn fits_in(needed: u64, dir: &Path, free: u64) -> Result<()> {
    if needed <= free {
        return Ok(());
    }
    let (needed, free) = (human(needed), human(free));
    Err(LabError(format!("{} needs {needed} free, it has {free}", dir.display())))
}

impl Trial {
    /// Where it works, and the bytes that it may write there.
    fn room(&self, request: &Request) -> Result<(PathBuf, u64)> {
        match (&request.local, &request.testbed) {
            (Some(local), _) if self.is_local => Ok((local.clone(), free(local)?)),
            // Copies and parity take room too.
            (_, Some(dir)) => Ok((dir.clone(), room(request)? / 2)),
            (_, None) => Ok((request.dir[0].clone(), room(request)?)),
        }
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
    request: Request,
    /// Of the points that are measured now, and of those with `place=local`.
    ground: Option<Ground>,
    local: Option<Ground>,
}

/// Points that share a ground.
struct Group {
    cluster: Option<Cluster>,
    trials: Vec<usize>,
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
        let groups = self.groups();
        let clusters: Vec<_> = groups.iter().filter_map(|group| group.cluster.as_ref()).collect();
        let all = all + clusters.iter().map(|cluster| cluster.guess()).sum::<f64>();
        let space = left.iter().map(|trial| trial.workload.space()).max().unwrap_or(0);
        tell(&format!("{}: {}", plan.study, plan.question));
        let (points, rounds) = (left.len(), self.rounds);
        let (time, space) = (duration(all), human(space));
        let free = human(room(&self.request)?);
        tell(&format!(
            "points: {points}, rounds: {rounds}; {time} by guess; up to {space} of {free} free"
        ));
        if let Some(dir) = self.request.testbed.as_ref().filter(|_| !clusters.is_empty()) {
            tell(&format!("clusters that are made: {}, in {}", clusters.len(), dir.display()));
        }
        tell(&format!("results: {}", self.output.path().display()));
        for Limit { name, value } in self.limits.all() {
            tell(&format!("limit: {name} {value:.0} MiB/s"));
        }
        self.progress = Progress::new(all);
        Ok(())
    }

    /// Half of what the disk does, where that is known, or of what the cables do.
    fn guess(&self, trial: &Trial) -> f64 {
        let disk = self.limits.lowest(&[DISK_WRITE, DISK_READ]);
        let rate = disk.map_or(MIB_PER_SECOND, |limit| (limit.value / 2.0).max(1.0));
        let cables = trial.cluster.as_ref().and_then(Cluster::rate);
        guess(&trial.workload, cables.map_or(rate, |cables| rate.min(cables / 2.0)))
    }

    /// Of points that are not in the file. Local ones are measured beside others.
    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut local = Vec::new();
        for (i, trial) in self.trials.iter().enumerate().filter(|(_, trial)| !trial.is_written) {
            match groups.iter_mut().find(|group| group.cluster == trial.cluster) {
                _ if trial.is_local => local.push(i),
                Some(group) => group.trials.push(i),
                None => groups.push(Group { cluster: trial.cluster.clone(), trials: vec![i] }),
            }
        }
        match groups.first_mut() {
            Some(group) => group.trials.extend(local),
            None => groups.push(Group { cluster: None, trials: local }),
        }
        groups.iter_mut().for_each(|group| group.trials.sort_unstable());
        groups
    }

    fn all_groups(&mut self) -> Result<()> {
        for Group { cluster, trials } in self.groups() {
            let Some(first) = trials.first().copied() else { continue };
            self.enter(cluster.as_ref()).map_err(|error| self.give_up(first, error))?;
            self.all_rounds(&trials)?;
            self.ground.take().map_or(Ok(()), Ground::leave)?;
        }
        self.progress.end();
        tell(&format!("results are in {}", self.output.path().display()));
        Ok(())
    }

    fn enter(&mut self, cluster: Option<&Cluster>) -> Result<()> {
        let (limits, dirs) = (&self.limits, &self.request.dir);
        self.ground = match (cluster, &self.request.testbed) {
            (Some(cluster), Some(dir)) => {
                self.progress.show(&format!("making {cluster}"));
                let ground = Ground::made(cluster, dir, limits)?;
                self.progress.advance(cluster.guess());
                Some(ground)
            }
            _ if dirs.is_empty() => None,
            _ => Some(Ground::of(dirs, limits)?.worked_by(&self.request.hosts)),
        };
        Ok(())
    }

    fn all_rounds(&mut self, trials: &[usize]) -> Result<()> {
        for round in 0..self.rounds {
            for i in trials.iter().copied() {
                if round >= self.trials[i].rounds {
                    self.measure(round, i).map_err(|error| self.give_up(i, error))?;
                }
                if round + 1 == self.rounds {
                    self.write(i, None)?;
                }
            }
        }
        Ok(())
    }

    /// Where a point runs.
    fn place(&self, trial: &Trial) -> Option<&Ground> {
        if trial.is_local { self.local.as_ref() } else { self.ground.as_ref() }
    }

    fn measure(&mut self, round: usize, i: usize) -> Result<()> {
        let (rounds, points) = (self.rounds, self.trials.len());
        let name = self.trials[i].name();
        let (round_now, point) = (round + 1, i + 1);
        self.progress.show(&format!("round {round_now}/{rounds} point {point}/{points} {name}"));
        let guessed = self.guess(&self.trials[i]);
        let mut samples = std::mem::take(&mut self.trials[i].samples);
        let trial = &self.trials[i];
        let place = self.place(trial);
        let dirs = place.map_or(&[][..], Ground::views);
        let (network, served) = place.map(Ground::testbed).unwrap_or_default();
        // The reference is a disk of this machine.
        let hosts = if trial.is_local { Hosts::default() } else { self.control.hosts.clone() };
        let control = Control { network, served, hosts, ..self.control.clone() };
        let outcome = measure(&trial.workload, dirs, round as u64, &control, &mut samples);
        self.trials[i].samples = samples;
        self.progress.advance(guessed);
        outcome
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
        let ground = self.place(trial);
        let limits = ground.map_or(&self.limits, |ground| &ground.limits);
        let limit = |sample: &Sample| limits.lowest(passed(sample, trial.is_local));
        let subject = Subject {
            point: &trial.point,
            options: trial.options.clone(),
            workload: &trial.workload,
            host: ground.map(|ground| ground.host.clone()).unwrap_or_default(),
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
        (Unit::OpsPerSecond | Unit::Microseconds | Unit::Seconds | Unit::OfLocal, _) => &[],
        (_, "warm" | "not synced") => &[MEMORY],
        _ if is_local && writes => &[DISK_WRITE],
        _ if is_local => &[DISK_READ],
        _ if writes => &[DISK_WRITE, STREAM, WIRE],
        _ => &[DISK_READ, STREAM, WIRE],
    }
}
