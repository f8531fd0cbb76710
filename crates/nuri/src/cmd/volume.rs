//! `nuri volume ...`: block devices that the space keeps, by name, and the server for them.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use nuri_client::{Client, ClientConfig};
use nuri_nbd::export::Exports;
use nuri_nbd::server::{Limits, Listener, Server};
use nuri_nbd::volume::{Catalog, Shrink, VolumeView};
use nuri_volume::Cluster;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::fs::mount::{Reported, report_client};
use crate::cli::{self, Volume, VolumeServe};
use crate::show::{human, print_json};
use crate::{Failure, at};

/// Inodes that a client of volumes remembers.
const INODES: usize = 10_000;

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
        Volume::Serve(args) => serve(args),
    }
}

/// How the space is reached: what a mount needs, and no more.
fn connect(whence: &cli::Whence) -> Result<Cluster, Failure> {
    let (address, secret) = super::status::way(whence)?;
    Cluster::connect(&address, &secret.for_mounts()).map_err(Failure::new)
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn start_client(cluster: &Cluster, name: String) -> Result<Arc<Client>, Failure> {
    let config = ClientConfig { name, inodes: INODES, marks_reads: false };
    Client::start(cluster, &config).map(Arc::new).map_err(at("no session"))
}

/// Does something with the volumes.
fn in_catalog(
    whence: &cli::Whence,
    act: impl FnOnce(&Catalog) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let cluster = connect(whence)?;
    let client = start_client(&cluster, format!("{}: nuri volume", host()))?;
    let outcome = act(&Catalog::new(client.clone()));
    client.close().map_err(at("what was changed may be lost"))?;
    outcome
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
        };
        return print_json(&List { format: 1, volumes: volumes.into_iter().map(listed).collect() });
    }
    println!("{:<24} {:>10} {:>10} {:<12} STATE", "VOLUME", "SIZE", "USED", "SHAPE");
    for view in volumes {
        let shape = view.shape.map_or_else(|| "-".into(), |shape| shape.to_string());
        let (size, used) = (human(view.size), human(view.used));
        let state = if view.in_use { "served" } else { "idle" };
        println!("{:<24} {size:>10} {used:>10} {shape:<12} {state}", view.name);
    }
    Ok(())
}

fn serve(args: &VolumeServe) -> Result<(), Failure> {
    // From here on a signal is waited for.
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(at("no signals"))?;
    let cluster = connect(&args.whence)?;
    let listeners = listeners(args)?;
    let addresses: Vec<_> = listeners.iter().map(|(_, address)| address.clone()).collect();
    let client = start_client(&cluster, format!("{}:{}", host(), addresses.join(" ")))?;
    let mut volumes = Catalog::new(client.clone());
    if let Some(name) = &args.name {
        volumes = volumes.only(name.clone());
        volumes.about(name).map_err(Failure::new)?;
    }
    if args.read_only {
        volumes = volumes.read_only();
    }
    let limits = Limits { connections: usize::from(args.max_connections) };
    let server = Server::new(Arc::new(volumes), limits);
    for (listener, address) in listeners {
        server.listen(listener).map_err(at("no thread"))?;
        tracing::info!("nbd: serves volumes at {address}");
    }
    let place = addresses.join(" ");
    report_client(&cluster, &client, Reported { host: host(), place }, Default::default);
    signals.forever().next();
    tracing::info!("nbd: ends: what clients had begun is finished first");
    server.stop();
    if let Some(path) = &args.socket {
        // Whoever connects meanwhile finds nobody.
        let _ = fs::remove_file(path);
    }
    client.close().map_err(at("bytes that were written to volumes are lost"))
}

fn listeners(args: &VolumeServe) -> Result<Vec<(Listener, String)>, Failure> {
    let mut listeners = Vec::new();
    if let Some(address) = args.listen() {
        let listener = TcpListener::bind(address).map_err(at(address))?;
        let bound = listener.local_addr().map_err(at(address))?;
        if !bound.ip().is_loopback() {
            tracing::warn!(
                "nbd: whoever reaches {bound} reads and writes the volumes: nothing is encrypted \
                 and nobody is asked who they are"
            );
        }
        listeners.push((Listener::Tcp(listener), format!("nbd://{bound}")));
    }
    if let Some(path) = &args.socket {
        let listener = local(path).map_err(at(path.display()))?;
        let address = format!("nbd+unix:///?socket={}", path.display());
        listeners.push((Listener::Unix(listener), address));
    }
    Ok(listeners)
}

/// A socket of this machine. One that a server left behind is replaced.
fn local(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket {
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::other("another server listens there"));
        }
        fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}
