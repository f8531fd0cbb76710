//! `nuri volume ...`: block devices that the space keeps, by name, and the server for them.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use nuri_client::ClientConfig;
use nuri_nbd::peer::Door;
use nuri_nbd::server::{Limits, Listener, Server};
use nuri_nbd::volume::{Catalog, Serving, Shrink, VolumeView};
use nuri_volume::Cluster;
use serde::Serialize;

use super::attach;
use super::client;
use super::fs::mount::{Reported, report_client};
use super::nbd::NbdDoor;
use crate::cli::{self, Volume, VolumeServe};
use crate::show::{human, print_json};
use crate::{Failure, at};

/// Inodes that a client of volumes remembers.
const INODES: usize = 10_000;
/// What other servers may use at once. Each has a connection for each volume.
const FORWARDERS: Limits = Limits { connections: 1024, in_flight: 64 };

pub(super) fn run(verb: &Volume) -> Result<(), Failure> {
    match verb {
        Volume::Create(args) => in_catalog(&args.whence, |volumes| {
            volumes.create(&args.name, args.size, args.shape).map_err(Failure::new)?;
            println!("volume {}: {}", args.name, human(args.size));
            Ok(())
        }),
        Volume::List(args) => in_catalog(&args.whence, |volumes| list(volumes, args.json)),
        Volume::Resize(args) => in_catalog(&args.whence, |volumes| {
            let shrink = if args.force { Shrink::Forced } else { Shrink::Refused };
            volumes.resize(&args.name, args.size, shrink).map_err(Failure::new)?;
            println!(
                "volume {}: {}; clients see it when they connect",
                args.name,
                human(args.size)
            );
            Ok(())
        }),
        Volume::Rename(args) => in_catalog(&args.whence, |volumes| {
            volumes.rename(&args.name, &args.new).map_err(Failure::new)
        }),
        Volume::Rm(args) => {
            in_catalog(&args.whence, |volumes| volumes.remove(&args.name).map_err(Failure::new))
        }
        Volume::AcceptLoss(args) => in_catalog(&args.whence, |volumes| {
            volumes.accept_loss(&args.name).map_err(Failure::new)
        }),
        Volume::Attach(args) => attach::attach(args),
        Volume::Detach(args) => attach::detach(args),
        Volume::Attached(args) => attach::attached(args.json),
        Volume::Serve(args) => serve(args),
    }
}

fn config() -> ClientConfig {
    ClientConfig { name: String::new(), inodes: INODES, marks_reads: false }
}

/// Does something with the volumes.
fn in_catalog(
    whence: &cli::Whence,
    act: impl FnOnce(&Catalog) -> Result<(), Failure>,
) -> Result<(), Failure> {
    client::with(whence, (" nuri volume", config()), |client| act(&Catalog::new(client)))
}

/// `nuri volume list --json`.
#[derive(Serialize)]
struct List {
    format: u32,
    volumes: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    size: u64,
    used: u64,
    shape: Option<String>,
    in_use: bool,
    owner: Option<String>,
    doubtful: bool,
}

fn list(volumes: &Catalog, json: bool) -> Result<(), Failure> {
    let volumes = volumes.list().map_err(Failure::new)?;
    if json {
        let listed = |view: VolumeView| Listed {
            shape: view.shape.map(|shape| shape.to_string()),
            name: view.name,
            size: view.size,
            used: view.used,
            in_use: view.in_use,
            owner: view.owner,
            doubtful: view.is_doubtful,
        };
        return print_json(&List { format: 1, volumes: volumes.into_iter().map(listed).collect() });
    }
    println!("{:<24} {:>10} {:>10} {:<12} STATE", "VOLUME", "SIZE", "USED", "SHAPE");
    for view in volumes {
        let shape = view.shape.map_or_else(|| "-".into(), |shape| shape.to_string());
        let (size, used) = (human(view.size), human(view.used));
        let state = match (view.is_doubtful, view.in_use, view.owner) {
            (true, ..) => {
                "doubtful: a target lost what was not flushed; nuri volume accept-loss".into()
            }
            (false, true, Some(owner)) => format!("served by {owner}"),
            (false, true, None) => "served".into(),
            (false, false, _) => "idle".to_owned(),
        };
        println!("{:<24} {size:>10} {used:>10} {shape:<12} {state}", view.name);
    }
    Ok(())
}

fn serve(args: &VolumeServe) -> Result<(), Failure> {
    let server = NbdDoor::open(&args.server)?;
    let cluster = client::connect(&args.whence)?;
    let client = client::start(&cluster, &server.place(), config())?;
    let catalog = Arc::new(Catalog::new(client.clone()));
    let (door, forwarders) = open_door(&cluster)?;
    let mut volumes = Serving::new(catalog.clone(), door.clone());
    if let Some(name) = &args.name {
        volumes = volumes.only(name.clone());
        catalog.about(name).map_err(Failure::new)?;
    }
    if args.read_only {
        volumes = volumes.read_only();
    }
    let others = Server::new(door, FORWARDERS);
    others.listen(forwarders).map_err(at("no thread"))?;
    let reported = Reported { host: client::host(), place: server.place() };
    report_client(&cluster, &client, reported, Default::default);
    let served = server.serve("volumes", Arc::new(volumes));
    others.stop();
    client.close().map_err(at("bytes that were written to volumes are lost"))?;
    served
}

/// Where other servers reach the volumes that this one owns: at the address by which this machine
/// reaches the space.
fn open_door(cluster: &Cluster) -> Result<(Arc<Door>, Listener), Failure> {
    let first = cluster.authority();
    let reached = TcpStream::connect(first).and_then(|stream| stream.local_addr());
    let own = reached.map_err(at(first))?.ip();
    let listener = TcpListener::bind((own, 0)).map_err(at(own))?;
    let address = listener.local_addr().map_err(at(own))?;
    Ok((Arc::new(Door::at(address.to_string())), Listener::Tcp(listener)))
}
