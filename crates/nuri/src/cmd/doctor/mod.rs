//! `nuri doctor`: checks a stopped space's metadata, map and targets; of a running one says how it
//! is.

mod repair;
mod restore;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nuri_cluster::sound;
use nuri_cluster::store::{FileStore, MapStore};

use nuri_fuse::transport::{self, Switch};
use nuri_io::lock::ExclusiveLock;
use nuri_meta::fsck;
use nuri_node::directory::{MAP, META_LOG, NODE, NodeSettings, load_json, open_engine};
use serde::Serialize;

use super::status;
use super::target::{CheckView, check_target};
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
    /// Of `--repair`: what was wrong and is not any more, and where the state from before lies.
    mended: Vec<String>,
    kept: Option<String>,
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

/// What is looked at: the first node's own directory, and targets.
struct Place {
    first: PathBuf,
    targets: Vec<PathBuf>,
}

impl Place {
    /// Of a node that was started by `nuri node run`.
    fn of_node(dir: &Path) -> Result<Option<Place>, Failure> {
        let settings: Option<NodeSettings> = load_json(&dir.join(NODE))?;
        Ok(settings.map(|node| Place { first: dir.into(), targets: node.targets }))
    }
}

pub(crate) fn run(args: &Doctor) -> Result<ExitCode, Failure> {
    if args.restore_metadata {
        return restore::run(args);
    }
    let dir = &args.dir.dir;
    let space = Space::at(dir);
    let place = match (space.settings()?, Place::of_node(dir)?) {
        (None, Some(place)) => place,
        (None, None) => return Err(space.existing().err().unwrap_or_else(|| Failure("".into()))),
        (Some(settings), _) => {
            let runs = |role: &Role| space.running(*role).is_some();
            if roles(&settings).iter().any(runs) {
                return running(args);
            }
            let targets = settings.nodes.into_iter().flatten().collect();
            Place { first: space.node_dir(0), targets }
        }
    };
    if !place.first.join(META_LOG).exists() {
        let first = place.first.display();
        return Err(Failure(format!("there is no metadata in {first}: the first node has it")));
    }
    let done = if args.repair { repair::run(&place)? } else { repair::Done::default() };
    let view = examine(&place, done)?;
    if args.json {
        print_json(&view)?;
    } else {
        view.print();
    }
    Ok(if view.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What can be said of a space that runs.
fn running(args: &Doctor) -> Result<ExitCode, Failure> {
    if args.repair {
        let dir = args.dir.dir.display();
        return Err(Failure(format!("the space runs; stop it: nuri down --dir {dir}")));
    }
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

fn examine(place: &Place, done: repair::Done) -> Result<DoctorView, Failure> {
    let dir = &place.first;
    let _lock = ExclusiveLock::acquire(dir).map_err(Failure::new)?;
    let engine = open_engine(dir)?;
    let report = fsck::check(&engine).map_err(Failure::new)?;
    engine.checkpoint().map_err(Failure::new)?;
    let mut problems = map_problems(dir);
    problems.extend(report.problems.iter().map(ToString::to_string));
    let targets = place.targets.iter().map(|t| check_target(t)).collect::<Result<Vec<_>, _>>()?;
    let clean = problems.is_empty() && targets.iter().all(|t| t.clean);
    Ok(DoctorView {
        clean,
        inodes: report.inodes,
        directories: report.directories,
        orphans: report.orphans,
        problems,
        mended: done.mended,
        kept: done.kept.map(|path| path.display().to_string()),
        targets,
        machine: machine(),
    })
}

fn map_problems(dir: &Path) -> Vec<String> {
    match FileStore::new(&dir.join(MAP)).load() {
        Ok(map) => {
            let problems = sound::check(&map.unwrap_or_default()).into_iter();
            problems.map(|problem| format!("map: {problem}")).collect()
        }
        Err(e) => vec![e.to_string()],
    }
}

impl DoctorView {
    fn print(&self) {
        self.mended.iter().for_each(|problem| println!("mended    {problem}"));
        if let Some(kept) = &self.kept {
            println!("kept      what was there before is in {kept}; remove it when all is well");
        }
        let verdict = match self.problems.len() {
            0 => "clean".to_string(),
            n => format!("{n} problems"),
        };
        println!("metadata: {verdict}; {} inodes, {} directories", self.inodes, self.directories);
        self.problems.iter().for_each(|p| println!("  {p}"));
        self.targets.iter().for_each(CheckView::print);
        self.machine.iter().for_each(|line| println!("machine: {line}"));
        if !self.problems.is_empty() {
            println!("Mend it: nuri doctor --repair; it keeps what was there before.");
        }
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
