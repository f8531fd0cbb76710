//! `nuri node list` and `nuri target list`: the status, a row for each node or target.

use std::process::ExitCode;

use nuri_watch::calendar::unix_now;
use serde::Serialize;

use super::status::fetch_from;
use crate::health::Health;
use crate::logs::plain;
use crate::show::{NodeView, StatusView, TargetView, human, print_json};
use crate::{Failure, cli};

#[derive(Serialize)]
struct List<'v> {
    format: u32,
    space: &'v str,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<&'v [NodeView]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    targets: Option<&'v [TargetView]>,
    health: &'v Health,
}

pub(crate) fn nodes(args: &cli::Status) -> Result<ExitCode, Failure> {
    let view = fetch_from(&args.whence)?;
    if args.json {
        print_json(&List { nodes: Some(&view.nodes), ..List::of(&view) })?;
    } else {
        println!(
            "{:<5} {:<22} {:<6} {:<9} {:>8} {:>8}  ROLES",
            "NODE", "ADDRESS", "STATE", "VERSION", "RUNS FOR", "TARGETS"
        );
        view.nodes.iter().for_each(|node| print_node(&view, node));
    }
    Ok(ends(&view))
}

fn print_node(view: &StatusView, n: &NodeView) {
    let targets = view.targets.iter().filter(|t| t.node == n.id).count();
    let is_up = n.state == "up";
    let runs = if is_up { age(unix_now().saturating_sub(n.since)) } else { "-".into() };
    println!(
        "{:<5} {:<22} {:<6} {:<9} {runs:>8} {targets:>8}  {}",
        n.id,
        n.address,
        n.state,
        plain(&n.version),
        n.roles.join(", ")
    );
}

pub(crate) fn targets(args: &cli::Status) -> Result<ExitCode, Failure> {
    let view = fetch_from(&args.whence)?;
    if args.json {
        print_json(&List { targets: Some(&view.targets), ..List::of(&view) })?;
    } else {
        println!(
            "{:<7} {:<5} {:<7} {:>10} {:>10} {:>4} {:>7} {:>7}  PATH",
            "TARGET", "NODE", "STATE", "SIZE", "USED", "%", "PLACES", "BEHIND"
        );
        view.targets.iter().for_each(print_target);
    }
    Ok(ends(&view))
}

fn print_target(t: &TargetView) {
    let (size, used, percent) = (human(t.size), human(t.used), t.used * 100 / t.size.max(1));
    let why = t.reason.as_deref().map_or(String::new(), |why| format!("  ({})", plain(why)));
    println!(
        "{:<7} {:<5} {:<7} {size:>10} {used:>10} {percent:>4} {:>7} {:>7}  {}{why}",
        t.id,
        t.node,
        t.state,
        t.places,
        t.behind,
        plain(&t.path)
    );
}

impl List<'_> {
    fn of(view: &StatusView) -> List<'_> {
        let StatusView { format, space, health, .. } = view;
        List { format: *format, space, nodes: None, targets: None, health }
    }
}

/// Says why there is nothing to list.
fn ends(view: &StatusView) -> ExitCode {
    if !view.nodes.is_empty() {
        return ExitCode::SUCCESS;
    }
    view.health.sentences.iter().for_each(|said| eprintln!("nuri: {}", plain(said)));
    ExitCode::FAILURE
}

/// A time in its largest two units.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        assert_eq!([5, 125, 3725, 90_061].map(age), ["5s", "2m", "1h02m", "1d01h"]);
    }
}
