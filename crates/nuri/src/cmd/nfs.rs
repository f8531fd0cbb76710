//! `nuri nfs ...`: directories of the space for machines beside the cluster.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use nuri_client::{Client, ClientConfig};
use nuri_nfs::export::{Export, ExportError, Store};
use nuri_nfs::floating::{Addresses, Floating, listen_anyway};
use nuri_nfs::gateway::Gateway;
use nuri_nfs::protocol::LONGEST_CALL;
use nuri_nfs::rpcbind::{self, Registered};
use nuri_nfs::server::{Limits, Server};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::client;
use super::fs::mount::{Reported, report_client};
use super::signals::wait_for_end;
use crate::cli::{self, Nfs, NfsExport, NfsExportAdd, NfsServe};
use crate::show::print_json;
use crate::{Failure, at};

/// Inodes that a server remembers.
const INODES: usize = 50_000;
/// Calls that are carried out at once.
const THREADS: usize = 32;
/// Bytes held for clients that are slow, all of them together.
const HELD: usize = 64 << 20;

pub(super) fn run(verb: &Nfs) -> Result<(), Failure> {
    match verb {
        Nfs::Export(NfsExport::Add(args)) => {
            change(args, |store| store.add(&args.path, args.clients.clone()))
        }
        Nfs::Export(NfsExport::Set(args)) => {
            change(args, |store| store.set(&args.path, args.clients.clone()))
        }
        Nfs::Export(NfsExport::List(args)) => {
            in_store(&args.whence, |store| list(store, args.json))
        }
        Nfs::Export(NfsExport::Rm(args)) => in_store(&args.whence, |store| {
            store.remove(&args.path).map_err(Failure::new)?;
            println!("{} is not exported any more", args.path);
            Ok(())
        }),
        Nfs::Serve(args) => serve(args),
    }
}

fn config() -> ClientConfig {
    ClientConfig { name: String::new(), inodes: INODES, marks_reads: true }
}

/// Does something with the exports.
fn in_store(
    whence: &cli::Whence,
    act: impl FnOnce(&Store) -> Result<(), Failure>,
) -> Result<(), Failure> {
    client::with(whence, (" nuri nfs", config()), |client| act(&Store::new(client)))
}

fn change(
    args: &NfsExportAdd,
    act: impl FnOnce(&Store) -> Result<Export, ExportError>,
) -> Result<(), Failure> {
    in_store(&args.whence, |store| {
        show(&act(store).map_err(Failure::new)?);
        Ok(())
    })
}

/// One line for each client, as exports(5) has them.
fn show(export: &Export) {
    for client in &export.clients {
        println!("{:<32} {client}", export.path);
    }
}

/// `nuri nfs export list --json`.
#[derive(Serialize)]
struct List {
    format: u32,
    exports: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    path: String,
    clients: Vec<nuri_nfs::export::Client>,
}

fn list(store: &Store, json: bool) -> Result<(), Failure> {
    let exports = store.list().map_err(Failure::new)?;
    if json {
        let listed = |export: Export| Listed { path: export.path, clients: export.clients };
        return print_json(&List { format: 1, exports: exports.into_iter().map(listed).collect() });
    }
    println!("{:<32} CLIENT", "EXPORT");
    exports.iter().for_each(show);
    Ok(())
}

fn serve(args: &NfsServe) -> Result<(), Failure> {
    // From here on a signal is waited for.
    let signals = Signals::new([SIGTERM, SIGINT]).map_err(at("no signals"))?;
    let listeners = listeners(&args.listen)?;
    let addresses: Result<Vec<_>, _> = listeners.iter().map(TcpListener::local_addr).collect();
    let addresses = addresses.map_err(at("no address"))?;
    let port = addresses[0].port();
    let cluster = client::connect(&args.whence)?;
    let place = format!("nfs at {}", args.listen.join(" "));
    let client = client::start(&cluster, &format!(" {place}"), config())?;
    let gateway = Gateway::new(client.clone(), args.exports.clone(), port);
    let gateway = Arc::new(gateway.map_err(Failure::new)?);
    check_exports(&gateway)?;
    let connections = args.max_connections.into();
    let limits = Limits { connections, threads: THREADS, message: LONGEST_CALL, held: HELD };
    let server = Server::start(gateway.clone(), limits).map_err(at("no thread"))?;
    for (listener, address) in listeners.into_iter().zip(&addresses) {
        server.listen(listener).map_err(at("no thread"))?;
        tracing::info!("nfs: serves at {address}");
    }
    let floating = floating(args, &client, (&server, gateway.addresses()), port)?;
    let registered = if args.no_rpcbind { None } else { register(&addresses) };
    let reported = Reported { host: client::host(), place };
    report_client(&cluster, &client, reported, Default::default);
    let watched = gateway.clone();
    // Nobody waits for its end: where the space does not answer that would take long.
    std::thread::spawn(move || watched.look_after());
    wait_for_end(signals, "nfs");
    drop(registered);
    server.stop();
    gateway.close();
    floating.iter().for_each(|address| address.leave());
    client.close().map_err(at("bytes that clients wrote and did not commit are lost"))
}

/// Tells clients the ports, where this machine can. Else they must be given them.
fn register(addresses: &[SocketAddr]) -> Option<Registered> {
    let registered = rpcbind::register(Path::new(rpcbind::SOCKET), addresses);
    registered.unwrap_or_else(|error| {
        tracing::warn!("nfs: rpcbind tells clients no ports of this server: {error}");
        None
    })
}

/// Addresses that this server takes when no other one has them.
fn floating(
    args: &NfsServe,
    client: &Arc<Client>,
    (server, addresses): (&Arc<Server>, &Arc<Addresses>),
    port: u16,
) -> Result<Vec<Arc<Floating>>, Failure> {
    let mut all = Vec::new();
    for wanted in &args.floating {
        let listener = listen_anyway(wanted.address, port).map_err(at(wanted))?;
        let floating = Floating::new(client.clone(), server.clone(), addresses.clone(), *wanted);
        let floating = Arc::new(floating.map_err(Failure::new)?);
        server.listen(listener).map_err(at("no thread"))?;
        let runs = floating.clone();
        std::thread::spawn(move || runs.run());
        all.push(floating);
    }
    Ok(all)
}

fn listeners(addresses: &[String]) -> Result<Vec<TcpListener>, Failure> {
    let mut listeners = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind(address).map_err(at(address))?;
        let bound = listener.local_addr().map_err(at(address))?;
        if !bound.ip().is_loopback() {
            tracing::warn!(
                "nfs: clients that reach {bound} say themselves who their users are, and nothing \
                 is encrypted: let none reach it that are not trusted"
            );
        }
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Says what a person must know of the exports before clients come.
fn check_exports(gateway: &Gateway) -> Result<(), Failure> {
    let all = gateway.exports().all();
    if let Some(path) = gateway.exports().missing().first() {
        return Err(Failure(format!("{path} is not exported: nuri nfs export list")));
    }
    if all.is_empty() {
        tracing::warn!("nfs: nothing is exported: nuri nfs export add PATH CLIENT");
    }
    for known in all.iter().filter(|known| known.root.is_none()) {
        tracing::warn!("nfs: {} is exported, and no directory of the space", known.export.path);
    }
    Ok(())
}
