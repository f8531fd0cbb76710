//! `nuri doctor --restore-metadata`.

use std::path::Path;
use std::process::ExitCode;

use nuri_cluster::store::{FileStore, MapStore};
use nuri_node::directory::MAP;
use nuri_node::metadata_copy::restore::{Overwrite, Restored, restore};
use nuri_rpc::Secret;
use nuri_watch::calendar::day_and_second;
use serde::Serialize;

use crate::cli::Doctor;
use crate::show::print_json;
use crate::space::{Role, Settings, Space};
use crate::{Failure, at};

/// `nuri doctor --restore-metadata --json`.
#[derive(Serialize)]
struct RestoreView {
    into: String,
    from: String,
    cluster: String,
    node: u32,
    generation: u64,
    /// Seconds since 1970.
    whole_since: u64,
    last_change: u64,
    inodes: u64,
    directories: u64,
    problems: Vec<String>,
    lost_targets: Vec<String>,
    #[serde(skip)]
    start: String,
}

pub(crate) fn run(args: &Doctor) -> Result<ExitCode, Failure> {
    let dir = &args.dir.dir;
    let space = Space::at(dir);
    let mut sources = args.from.clone();
    let (into, start) = match space.settings()? {
        Some(settings) => {
            let runs = |role| space.running(role).is_some();
            if runs(Role::Supervisor) || runs(Role::Node(0)) {
                let dir = dir.display();
                return Err(Failure(format!(
                    "the space runs; stop it: nuri down --force --dir {dir}"
                )));
            }
            let others = (1..settings.nodes.len()).map(|n| space.node_dir(n));
            sources.extend(others.filter(|dir| dir.exists()));
            (space.node_dir(0), format!("nuri up --dir {}", dir.display()))
        }
        None if args.token_file.is_some() => {
            (space.node_dir(0), format!("nuri up --dir {}", dir.display()))
        }
        None => (dir.clone(), format!("nuri node run --dir {}", dir.display())),
    };
    if sources.is_empty() {
        return Err(Failure("say where a copy is: --from DIR, another node's directory".into()));
    }
    let overwrite = if args.force { Overwrite::Force } else { Overwrite::Refuse };
    let done = restore(&into, &sources, overwrite)?;
    if let Some(token) = args.token_file.as_ref().filter(|_| into != *dir) {
        make_space(&space, token, &done)?;
    }
    let view = RestoreView::new(into.display().to_string(), start, done);
    if args.json {
        print_json(&view)?;
    } else {
        view.print();
    }
    Ok(if view.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes the directory around a restored first node one of a space, if it is none yet.
fn make_space(space: &Space, token: &Path, done: &Restored) -> Result<(), Failure> {
    if space.settings()?.is_some() {
        return Ok(());
    }
    space.protect()?;
    Secret::load_own(token).map_err(Failure::new)?;
    let own = space.token_path();
    if !own.exists() {
        std::fs::copy(token, &own).map_err(at(format!("cannot write {}", own.display())))?;
    }
    let map = FileStore::new(&space.node_dir(0).join(MAP)).load().map_err(Failure::new)?;
    let map = map.unwrap_or_default();
    let there = done.targets.iter().filter(|(_, there)| *there);
    space.save(&Settings {
        format: 1,
        listen: done.whole.address.clone(),
        mount: None,
        made_mount: false,
        suid: false,
        dev: false,
        nodes: vec![there.map(|(path, _)| path.clone()).collect()],
        target_size: 0,
        creating: false,
        sizes: Vec::new(),
        shape: map.shape,
        placement: map.placement,
        export_disks: None,
    })
}

impl RestoreView {
    fn new(into: String, start: String, done: Restored) -> RestoreView {
        let lost = done.targets.iter().filter(|(_, there)| !there);
        RestoreView {
            into,
            from: done.from.display().to_string(),
            cluster: done.whole.cluster,
            node: done.whole.node,
            generation: done.whole.generation,
            whole_since: done.whole.since,
            last_change: done.changed,
            inodes: done.check.inodes,
            directories: done.check.directories,
            problems: done.check.problems.iter().map(ToString::to_string).collect(),
            lost_targets: lost.map(|(path, _)| path.display().to_string()).collect(),
            start,
        }
    }

    fn print(&self) {
        println!("restored  the metadata of node {} into {}", self.node, self.into);
        println!("from      {}, space {}", self.from, self.cluster);
        let (since, last) = (day_and_second(self.whole_since), day_and_second(self.last_change));
        println!(
            "state     generation {}, whole since {since}, last change {last}",
            self.generation
        );
        println!("          what was confirmed after a copy was given up is not in it");
        println!("content   {} inodes, {} directories", self.inodes, self.directories);
        self.problems.iter().for_each(|p| println!("          {p}"));
        for path in &self.lost_targets {
            println!("lost      target {path}: files with chunks there cannot be read");
        }
        println!("start it  {}", self.start);
    }
}
