//! `nuri disk ...`: raw disks of this machine, and the server for them.

use std::path::PathBuf;
use std::sync::Arc;

use nuri_nbd::disk::{self, DiskView, Disks, Use, Writes};
use serde::Serialize;

use super::nbd::NbdDoor;
use crate::cli::{Disk, DiskServe};
use crate::show::{human, print_json};
use crate::{Failure, at};

pub(super) fn run(verb: &Disk) -> Result<(), Failure> {
    match verb {
        Disk::List(args) => list(args.json),
        Disk::Serve(args) => serve(args),
    }
}

/// `nuri disk list --json`.
#[derive(Serialize)]
struct List {
    format: u32,
    disks: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    path: PathBuf,
    size: u64,
    block: u32,
    model: String,
    read_only: bool,
    /// What uses it; null where nothing does.
    used: Option<String>,
}

fn list(json: bool) -> Result<(), Failure> {
    let disks = disk::list().map_err(at("the kernel lists no disks"))?;
    if json {
        let listed = |DiskView { path, size, model, block, read_only, used }: DiskView| {
            let used = (used != Use::Nothing).then(|| used.to_string());
            Listed { path, size, block, model, read_only, used }
        };
        return print_json(&List { format: 1, disks: disks.into_iter().map(listed).collect() });
    }
    println!("{:<16} {:>10} {:>6} {:<24} USED BY", "DISK", "SIZE", "BLOCK", "MODEL");
    for disk in disks {
        let (path, size) = (disk.path.display().to_string(), human(disk.size));
        let used = if disk.used == Use::Nothing { "-".into() } else { disk.used.to_string() };
        println!("{path:<16} {size:>10} {:>6} {:<24} {used}", disk.block, disk.model);
    }
    Ok(())
}

fn serve(args: &DiskServe) -> Result<(), Failure> {
    let writes = if args.writable { Writes::Allowed } else { Writes::Refused };
    let disks = Disks::open(args.paths.iter().map(PathBuf::as_path), writes);
    let disks = disks.map_err(Failure::new)?;
    NbdDoor::open(&args.server)?.serve("disks", Arc::new(disks))
}
