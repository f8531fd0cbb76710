//! `nuri target scrub`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use nuri_proto::map::ScrubPolicy;
use nuri_proto::op::cluster::{ScrubChange, ScrubSet};
use nuri_volume::Cluster;

use super::repair::connect;
use crate::show::{ScrubView, print_json};
use crate::space::Space;
use crate::{Failure, at, cli};

const LOOK: Duration = Duration::from_millis(300);

pub(crate) fn run(args: &cli::TargetScrub) -> Result<ExitCode, Failure> {
    let change = match (args.stop, args.every, args.rate) {
        (true, _, _) => ScrubChange::Stop,
        (_, Some(days), _) => ScrubChange::EveryDays(days.0),
        (_, _, Some(0)) => return Err(Failure("a rate of 0 never ends: use --stop".into())),
        (_, _, rate) => ScrubChange::Start { rate: rate.unwrap_or(ScrubPolicy::RATE) },
    };
    let cluster = connect(&Space::at(&args.dir))?;
    cluster.ask(&ScrubSet { change }).map_err(at("the authority refuses"))?;
    let view = if args.wait { wait(&cluster, args.json)? } else { look(&cluster)? };
    if args.json {
        print_json(&view)?;
    } else {
        view.print();
    }
    let failed = args.wait && view.unrepaired > 0;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn look(cluster: &Cluster) -> Result<ScrubView, Failure> {
    Ok(ScrubView::new(&cluster.state().map_err(at("the first node does not answer"))?))
}

/// Shows how far it is, if somebody watches.
fn wait(cluster: &Cluster, quiet: bool) -> Result<ScrubView, Failure> {
    let mut out = std::io::stdout();
    let shows = out.is_terminal() && !quiet;
    loop {
        let view = look(cluster)?;
        if shows {
            // To the line's start and clear it: the line is drawn anew.
            let _ = write!(out, "\r\x1b[K{}", view.sentence());
            let _ = out.flush();
        }
        if !view.running {
            if shows {
                println!();
            }
            return Ok(view);
        }
        std::thread::sleep(LOOK);
    }
}
