//! `nuri doctor`: checks a stopped space's metadata and targets; of a running one says how it is.

use std::process::ExitCode;

use nuri_fuse::transport::{self, Switch};
use nuri_io::lock::ExclusiveLock;
use nuri_meta::fsck;
use nuri_node::directory::{META_LOG, open_engine};
use serde::Serialize;

use super::target::{CheckView, check_target};
use super::{restore, status};
use crate::Failure;
use crate::cli::Doctor;
use crate::show::{StatusView, print_json};
use crate::space::{Role, Space};
use crate::supervisor::roles;

/// `nuri doctor --json`.
#[derive(Serialize)]
struct DoctorView {
    clean: bool,
    inodes: u64,
    directories: u64,
    orphans: u64,
    problems: Vec<String>,
    targets: Vec<CheckView>,
    machine: Vec<String>,
}

/// `nuri doctor --json` of a space that runs: its contents were not checked.
#[derive(Serialize)]
struct RunningView {
    running: bool,
    status: StatusView,
    machine: Vec<String>,
}

pub(crate) fn run(args: &Doctor) -> Result<ExitCode, Failure> {
    if args.restore_metadata {
        return restore::run(args);
    }
    let space = Space::at(&args.dir.dir);
    let settings = space.existing()?;
    let runs = |role: &Role| space.running(*role).is_some();
    if roles(&settings).iter().any(runs) {
        return running(args);
    }
    let view = examine(&space, settings.nodes.iter().flatten())?;
    if args.json {
        print_json(&view)?;
    } else {
        view.print();
    }
    Ok(if view.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What can be said of a space that runs.
fn running(args: &Doctor) -> Result<ExitCode, Failure> {
    let status = status::fetch(&args.dir.dir)?;
    let code = if status.health.state == "ok" { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.json {
        print_json(&RunningView { running: true, status, machine: machine() })?;
    } else {
        status.print();
        machine().iter().for_each(|line| println!("machine   {line}"));
        println!("A full check needs the space stopped: nuri down, then nuri doctor again.");
    }
    Ok(code)
}

fn examine<'a>(
    space: &Space,
    targets: impl Iterator<Item = &'a std::path::PathBuf>,
) -> Result<DoctorView, Failure> {
    let dir = space.node_dir(0);
    if !dir.join(META_LOG).exists() {
        return Err(Failure(format!("there is no metadata in {}", dir.display())));
    }
    let _lock = ExclusiveLock::acquire(&dir).map_err(Failure::new)?;
    let engine = open_engine(&dir)?;
    let report = fsck::check(&engine).map_err(Failure::new)?;
    engine.checkpoint().map_err(Failure::new)?;
    let targets = targets.map(|t| check_target(t)).collect::<Result<Vec<_>, _>>()?;
    let clean = report.problems.is_empty() && targets.iter().all(|t| t.clean);
    Ok(DoctorView {
        clean,
        inodes: report.inodes,
        directories: report.directories,
        orphans: report.orphans,
        problems: report.problems,
        targets,
        machine: machine(),
    })
}

impl DoctorView {
    fn print(&self) {
        let verdict = match self.problems.len() {
            0 => "clean".to_string(),
            n => format!("{n} problems"),
        };
        println!("metadata: {verdict}; {} inodes, {} directories", self.inodes, self.directories);
        self.problems.iter().for_each(|p| println!("  {p}"));
        self.targets.iter().for_each(CheckView::print);
        self.machine.iter().for_each(|line| println!("machine: {line}"));
    }
}

/// What this machine offers.
fn machine() -> Vec<String> {
    let mut out = Vec::new();
    let fuse = std::path::Path::new("/dev/fuse").exists();
    out.push(format!("FUSE: {}", if fuse { "there" } else { "missing (modprobe fuse)" }));
    out.push(match transport::available() {
        Ok(Switch::On) => "mounts: over io_uring (fuse.enable_uring is Y)".into(),
        Ok(Switch::Off) => "mounts: over io_uring; fuse.enable_uring is N, mounting sets it".into(),
        Err(why) => format!("mounts: over /dev/fuse, not io_uring: {why}"),
    });
    let ring = nuri_io::uring::available();
    out.push(format!("io_uring: {}", if ring { "used for disks" } else { "refused, using pread" }));
    out
}
