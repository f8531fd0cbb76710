//! `nuri disk ...`: raw disks of this machine, and the server for them.

use std::sync::Arc;

use nuri_nbd::disk::{self, DiskView, Disks, Use, Writes};
use nuri_proto::id::NodeId;
use nuri_proto::op::disk::NodeDisk;
use nuri_volume::Cluster;
use serde::Serialize;

use super::nbd::NbdDoor;
use crate::cli::{Disk, DiskList, DiskServe, Whence};
use crate::show::{human, print_json};
use crate::{Failure, at, disks};

pub(super) fn run(verb: &Disk) -> Result<(), Failure> {
    match verb {
        Disk::List(args) => list(args),
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
    /// Null for one of this machine.
    node: Option<u32>,
    path: String,
    size: u64,
    block: u32,
    model: String,
    read_only: bool,
    /// What uses it; null where nothing does.
    used: Option<String>,
    /// Other machines may use it; null for one of this machine.
    exported: Option<bool>,
}

impl Listed {
    fn own(disk: DiskView) -> Listed {
        let DiskView { path, size, model, block, read_only, used } = disk;
        let (node, exported, path) = (None, None, path.display().to_string());
        let used = (used != Use::Nothing).then(|| used.to_string());
        Listed { node, path, size, block, model, read_only, used, exported }
    }

    fn of_node(node: NodeId, disk: NodeDisk) -> Listed {
        let NodeDisk { path, size, block, model, read_only, used, is_exported } = disk;
        let (node, exported) = (Some(node.0), Some(is_exported));
        Listed { node, path, size, block, model, read_only, used, exported }
    }

    fn name(&self) -> String {
        self.node.map_or_else(|| self.path.clone(), |node| format!("{node}:{}", self.path))
    }
}

fn list(args: &DiskList) -> Result<(), Failure> {
    let disks = match args.nodes {
        true => of_all_nodes(&args.whence)?,
        false => {
            let own = disk::list().map_err(at("the kernel lists no disks"))?;
            own.into_iter().map(Listed::own).collect()
        }
    };
    if args.json {
        return print_json(&List { format: 1, disks });
    }
    println!("{:<20} {:>10} {:>6} {:<24} USED BY", "DISK", "SIZE", "BLOCK", "MODEL");
    for disk in disks {
        let (name, size) = (disk.name(), human(disk.size));
        let used = disk.used.as_deref().unwrap_or("-");
        let kept = if disk.exported == Some(false) { " (not given to other machines)" } else { "" };
        println!("{name:<20} {size:>10} {:>6} {:<24} {used}{kept}", disk.block, disk.model);
    }
    Ok(())
}

/// Raw disks are for who may do everything, not for mounts.
fn connect(whence: &Whence) -> Result<Cluster, Failure> {
    let (address, secret) = super::status::way(whence)?;
    Cluster::connect(&address, &secret).map_err(Failure::new)
}

fn of_all_nodes(whence: &Whence) -> Result<Vec<Listed>, Failure> {
    let cluster = connect(whence)?;
    let mut all = Vec::new();
    for node in cluster.map().nodes {
        match disks::of_node(&cluster, node.id) {
            Ok(disks) => all.extend(disks.into_iter().map(|disk| Listed::of_node(node.id, disk))),
            Err(why) => eprintln!("nuri: {why}: its disks are not listed"),
        }
    }
    Ok(all)
}

fn serve(args: &DiskServe) -> Result<(), Failure> {
    let writes = if args.writable { Writes::Allowed } else { Writes::Refused };
    let is_remote = args.disks.iter().any(|disk| disk.node.is_some());
    let cluster = if is_remote { Some(Arc::new(connect(&args.whence)?)) } else { None };
    let mut served = Disks::default();
    for disk in &args.disks {
        match (disk.node, &cluster) {
            (Some(node), Some(cluster)) => {
                let opened = disks::open(cluster, (node, &disk.path), writes);
                served.add_remote(opened.map_err(Failure::new)?);
            }
            _ => served.add_own(&disk.path, writes).map_err(Failure::new)?,
        }
    }
    NbdDoor::open(&args.server)?.serve("disks", Arc::new(served))
}
