//! `nuri target check`: proves that a stopped target's log, index, slots and checksums agree.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use nuri_io::disk::Disk;
use nuri_io::file::OpenMode;
use nuri_io::lock::ExclusiveLock;
use nuri_io::uring::open_disk;
use nuri_target::store::check::{self, CheckReport};
use nuri_target::target::store_path;
use serde::Serialize;

use crate::cli::TargetCheck;
use crate::show::print_json;
use crate::{Failure, at};

/// `nuri target check --json`.
#[derive(Serialize)]
pub(crate) struct CheckView {
    pub(crate) path: String,
    pub(crate) clean: bool,
    pub(crate) chunks: u64,
    pub(crate) extents: u64,
    pub(crate) blocks: u64,
    pub(crate) problem_count: u64,
    pub(crate) problems: Vec<String>,
    pub(crate) notes: Vec<String>,
}

pub(crate) fn check(args: &TargetCheck) -> Result<ExitCode, Failure> {
    let view = check_target(&args.path)?;
    if args.json {
        print_json(&view)?;
    } else {
        view.print();
    }
    Ok(if view.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The disk of a target that is there.
pub(crate) fn open_store(path: &Path) -> Result<Arc<dyn Disk>, Failure> {
    let store = store_path(path);
    if !store.exists() {
        let (path, store) = (path.display(), store.display());
        return Err(Failure(format!("{path} is no target: there is no {store}")));
    }
    let disk = open_disk(&store, OpenMode::Existing);
    disk.map_err(at(format!("cannot open {}", store.display())))
}

/// Checks one stopped target.
pub(crate) fn check_target(path: &Path) -> Result<CheckView, Failure> {
    let disk = open_store(path)?;
    let _lock = ExclusiveLock::acquire(path).map_err(Failure::new)?;
    let CheckReport { chunks, extents, blocks, problems, problem_count, notes, .. } =
        check::check(&disk);
    let path = path.display().to_string();
    let clean = problem_count == 0;
    Ok(CheckView { path, clean, chunks, extents, blocks, problem_count, problems, notes })
}

impl CheckView {
    pub(crate) fn print(&self) {
        let (chunks, extents, blocks) = (self.chunks, self.extents, self.blocks);
        let verdict =
            if self.clean { "clean".into() } else { format!("{} problems", self.problem_count) };
        println!("{}: {verdict}; {chunks} chunks, {extents} extents, {blocks} blocks", self.path);
        self.problems.iter().for_each(|p| println!("  {p}"));
        self.notes.iter().for_each(|n| println!("  note: {n}"));
    }
}
