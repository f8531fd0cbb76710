//! `nuri status` and `nuri top`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nuri_client::Cluster;
use nuri_watch::{calendar, history};

use crate::Failure;
use crate::cli;
use crate::room;
use crate::show::{StatusView, human, print_json};
use crate::space::Space;
use crate::supervisor;

pub(crate) fn run(args: &cli::Status) -> Result<ExitCode, Failure> {
    let view = fetch(&args.dir.dir)?;
    if args.json {
        print_json(&view)?;
    } else {
        view.print();
    }
    Ok(if view.nodes.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The status of the space in a directory, also where it does not run.
pub(crate) fn fetch(dir: &Path) -> Result<StatusView, Failure> {
    let space = Space::at(dir);
    space.existing()?;
    let name = std::path::absolute(dir).unwrap_or(dir.to_owned()).display().to_string();
    let state = space.address().and_then(|address| {
        let cluster = Cluster::connect(&address, &space.secret()?).map_err(Failure::new)?;
        cluster.state().map_err(Failure::new)
    });
    let mut view = match state {
        Ok(state) => StatusView::new(&name, &state),
        Err(_) if supervisor::is_stopped(&space) => StatusView::stopped(&name),
        Err(Failure(why)) => StatusView::unreachable(&name, &why),
    };
    if view.health.state == "stopped" {
        return Ok(view);
    }
    view.health.sentences.extend(room::shortage(&space.node_dir(0)));
    let slow = history::alerts(&dir.join(nuri_watch::FILE), calendar::unix_now());
    view.health.sentences.extend(slow);
    Ok(view)
}

/// Shows the status once a second until interrupted.
pub(crate) fn top(dir: &Path) -> Result<(), Failure> {
    let mut before = fetch(dir)?.capacity.used;
    loop {
        let view = fetch(dir)?;
        // Home and clear: the screen is drawn anew.
        print!("\x1b[H\x1b[2J");
        view.print();
        let used = view.capacity.used;
        let change = human(used.abs_diff(before));
        let sign = if used < before { "-" } else { "+" };
        println!("change    {sign}{change}/s        (Ctrl-C ends)");
        before = used;
        std::thread::sleep(Duration::from_secs(1));
    }
}
