//! `nuri fs df`: how full a space is, target by target, or a mount as a whole.

use nuri_node::directory::{NODE, SPACE};
use serde::Serialize;

use crate::cli::Df;
use crate::cmd::status;
use crate::show::{StatusView, human, print_json};
use crate::{Failure, at};

#[derive(Serialize)]
struct DfRow {
    target: String,
    size: u64,
    used: u64,
    free: u64,
}

pub(super) fn run(args: &Df) -> Result<(), Failure> {
    let rows = match view_of(args)? {
        // It is stopped, or does not answer.
        Some(view) if view.nodes.is_empty() => {
            return Err(Failure(view.health.sentences.join("; ")));
        }
        Some(view) => {
            let row = |t: &crate::show::TargetView| DfRow {
                target: t.path.clone(),
                size: t.size,
                used: t.used,
                free: t.size.saturating_sub(t.used),
            };
            view.targets.iter().map(row).collect()
        }
        None => {
            let name = args.space.display().to_string();
            let s = rustix::fs::statvfs(&args.space).map_err(at(&name))?;
            let (size, free) = (s.f_blocks * s.f_frsize, s.f_bavail * s.f_frsize);
            vec![DfRow { target: name, size, used: size - free, free }]
        }
    };
    if args.json {
        return print_json(&rows);
    }
    for r in &rows {
        let (size, used, free) = (human(r.size), human(r.used), human(r.free));
        println!("{size:>12} {used:>12} used {free:>12} free  {}", r.target);
    }
    Ok(())
}

/// Of a space that is named by its directory, that of a node, or an address; none of a path on a
/// mount.
fn view_of(args: &Df) -> Result<Option<StatusView>, Failure> {
    let is_directory = [SPACE, NODE].iter().any(|file| args.space.join(file).exists());
    if is_directory {
        return status::fetch(&args.space).map(Some);
    }
    let name = args.space.to_string_lossy();
    if args.space.exists() || !name.contains(':') {
        return Ok(None);
    }
    status::fetch_at(&name, args.token_file.as_deref()).map(Some)
}
