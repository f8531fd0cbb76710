//! `nuri status` and `nuri top`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nuri_node::directory::NODE;
use nuri_node::disk_reserve;
use nuri_rpc::Secret;
use nuri_volume::Cluster;
use nuri_watch::{calendar, history};

use crate::loss::Losses;
use crate::show::{StatusView, human, print_json};
use crate::space::Space;
use crate::{Failure, cli, supervisor};

pub(crate) fn run(args: &cli::Status) -> Result<ExitCode, Failure> {
    let view = fetch_from(&args.whence)?;
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
    let name = std::path::absolute(dir).unwrap_or(dir.to_owned()).display().to_string();
    if space.settings()?.is_none() && dir.join(NODE).exists() {
        let (address, secret) = space.way()?;
        return ask(&name, &address, &secret);
    }
    space.existing()?;
    let state = space.way().and_then(|(address, secret)| {
        let cluster = Cluster::connect(&address, &secret).map_err(Failure::new)?;
        view_of(&name, &cluster)
    });
    let mut view = match state {
        Ok(view) => view,
        Err(_) if supervisor::is_stopped(&space) => StatusView::stopped(&name),
        Err(Failure(why)) => StatusView::unreachable(&name, &why),
    };
    if view.health.state == "stopped" {
        return Ok(view);
    }
    view.health.sentences.extend(disk_reserve::shortage(&space.node_dir(0)));
    let slow = history::alerts(&dir.join(nuri_watch::FILE), calendar::unix_now());
    view.health.sentences.extend(slow);
    Ok(view)
}

/// The status of the space that the command names.
pub(super) fn fetch_from(whence: &cli::Whence) -> Result<StatusView, Failure> {
    match address_said(whence)? {
        Some(address) => fetch_at(&address, whence.token_file.as_deref()),
        None => fetch(&whence.dir),
    }
}

/// The address of the first node, where the command says it or a mount.
fn address_said(whence: &cli::Whence) -> Result<Option<String>, Failure> {
    match (&whence.at, &whence.mount) {
        (Some(address), _) => Ok(Some(address.clone())),
        (None, Some(mount)) => Ok(Some(super::fs::attribute(mount, "nuri.space")?)),
        (None, None) => Ok(None),
    }
}

/// How the space that the command names is asked.
pub(super) fn way(whence: &cli::Whence) -> Result<(String, Secret), Failure> {
    let token = whence.token_file.as_deref();
    match address_said(whence)? {
        Some(address) => Ok((address, secret_in(token)?)),
        None => Space::at(&whence.dir).way(),
    }
}

fn secret_in(token: Option<&Path>) -> Result<Secret, Failure> {
    let token =
        token.ok_or_else(|| Failure("say where the secret is: --token-file FILE".into()))?;
    Secret::load(token).map_err(Failure::new)
}

/// The status that the first node at an address gives to who has the token.
pub(super) fn fetch_at(address: &str, token: Option<&Path>) -> Result<StatusView, Failure> {
    ask(address, address, &secret_in(token)?)
}

/// The status that the first node at an address gives.
fn ask(name: &str, address: &str, secret: &Secret) -> Result<StatusView, Failure> {
    let cluster = Cluster::connect(address, secret).map_err(Failure::new);
    Ok(match cluster.and_then(|cluster| view_of(name, &cluster)) {
        Ok(view) => view,
        Err(Failure(why)) => StatusView::unreachable(name, &why),
    })
}

/// The status of a space that answers.
pub(super) fn view_of(name: &str, cluster: &Cluster) -> Result<StatusView, Failure> {
    let state = cluster.state().map_err(Failure::new)?;
    Ok(StatusView::new(name, &state, &Losses::of(cluster, &state.map)))
}

/// Shows the status once a second until interrupted.
pub(crate) fn top(whence: &cli::Whence) -> Result<(), Failure> {
    let mut before = fetch_from(whence)?.capacity.used;
    loop {
        let view = fetch_from(whence)?;
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
