//! How a node joins a space: at an address that the other nodes reach, and as the only node with
//! its number.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use nuri_cluster::transition::is_older;
use nuri_proto::Status;
use nuri_proto::clock::FAILURE_DETECTION;
use nuri_proto::map::Map;
use nuri_proto::op::cluster::{Join, JoinReply, NodeReach};
use nuri_rpc::{HandshakeError, Secret};
use nuri_target::target::Target;
use nuri_volume::{Cluster, ConnectError};

use crate::directory::NodeSettings;
use crate::failure::Failure;

/// How long the first node tries to connect back.
const REACH: Duration = Duration::from_secs(2);
/// A node that ended a moment ago is still taken for one that runs.
const PATIENCE: Duration = FAILURE_DETECTION.saturating_mul(3);
const PAUSE: Duration = Duration::from_millis(200);
/// How long a node waits for what other machines and its network bring up.
pub const BOOT: Duration = Duration::from_secs(60);

/// After a boot a machine's addresses and the other machines come one by one: waits for them, says
/// so once, and gives up after a while.
fn patiently<T, E: std::fmt::Display>(
    (what, most): (&str, Duration),
    mut attempt: impl FnMut() -> Result<T, E>,
    is_worth: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let start = Instant::now();
    let mut has_said = false;
    loop {
        match attempt() {
            Err(error) if is_worth(&error) && start.elapsed() < most => {
                if !std::mem::replace(&mut has_said, true) {
                    let most = most.as_secs();
                    tracing::info!("waits up to {most} s for {what} ({error})");
                }
                std::thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Binds an address of this machine, as soon as it has it.
pub fn bind(address: &str) -> std::io::Result<TcpListener> {
    let is_missing = |e: &std::io::Error| e.kind() == ErrorKind::AddrNotAvailable;
    let what = format!("its address {address}");
    patiently((&what, BOOT), || TcpListener::bind(address), is_missing)
}

/// Connects to the first node, as soon as it answers, if it does for so long.
pub fn connect(first: &str, secret: &Secret, most: Duration) -> Result<Cluster, Failure> {
    // Wrong words, unlike silence, do not get better.
    let is_silent = |error: &ConnectError| match error {
        ConnectError::Handshake(_, error) => matches!(error, HandshakeError::Io(_)),
        ConnectError::Map(..) => true,
    };
    let what = format!("the first node {first}");
    patiently((&what, most), || Cluster::connect(first, secret), is_silent).map_err(Failure::new)
}

/// Connects as soon as there is an authority, however late that is.
pub fn connected(authority: &str, secret: &Secret) -> Cluster {
    loop {
        match Cluster::connect(authority, secret) {
            Ok(cluster) => return cluster,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// A first node that is to listen elsewhere than the last time. Where it still answers there, this
/// is a copy of its directory.
pub fn refuse_copy(dir: &Path, known: &NodeSettings, secret: &Secret) -> Result<(), Failure> {
    let (Some(before), Some(own)) = (&known.address, &known.cluster) else { return Ok(()) };
    let Ok(space) = Cluster::connect(before, secret) else { return Ok(()) };
    if space.map().cluster.to_string() != *own {
        return Ok(());
    }
    Err(Failure(format!(
        "the first node of this space runs at {before}, and {} is a copy of its directory: stop \
         that one first, or remove the copy",
        dir.display()
    )))
}

/// A loopback address reaches nobody on another machine: everybody is given the address as it is.
pub fn refuse_loopback(own: SocketAddr, join: &str) -> Result<(), Failure> {
    let first = join.to_socket_addrs().ok().and_then(|mut all| all.next());
    let Some(first) = first.filter(|first| own.ip().is_loopback() && !first.ip().is_loopback())
    else {
        return Ok(());
    };
    let better = match address_towards(first) {
        Some(ip) => SocketAddr::new(ip, own.port()).to_string(),
        None => "IP:PORT".into(),
    };
    Err(Failure(format!(
        "{own} can be reached from this machine only, and the first node {join} is not on it: give \
         an address that the other machines reach: --listen {better}"
    )))
}

/// The address of this machine from which it would talk to another one.
fn address_towards(other: SocketAddr) -> Option<IpAddr> {
    let any = if other.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    // Nothing is sent: the kernel looks for the way.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(other).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// The first node's part: whether it reaches that address.
pub fn reach(call: &NodeReach) -> Result<bool, Status> {
    let address: SocketAddr = call.address.parse().map_err(|_| Status::INVAL)?;
    Ok(TcpStream::connect_timeout(&address, REACH).is_ok())
}

/// The first node must reach this one.
pub fn refuse_unreached(space: &Cluster, first: &str, request: &Join) -> Result<(), Failure> {
    let own = &request.address;
    if space.ask(&NodeReach { address: own.clone() }) != Ok(false) {
        return Ok(());
    }
    Err(Failure(format!(
        "the first node {first} cannot connect to {own}, so nor can others: open that port \
         between the machines, or give an address that they reach: --listen IP:PORT"
    )))
}

/// Joins the space at `first`. With an error comes its status, which says whether it is a refusal.
pub fn join(
    space: &Cluster,
    first: &str,
    request: &Join,
    targets: &[Target],
) -> Result<JoinReply, (Status, Failure)> {
    let start = Instant::now();
    loop {
        match space.ask(request) {
            Ok(reply) => return Ok(reply),
            Err(Status::BUSY) if start.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Err(status) => {
                let _ = space.refresh();
                let map = space.map();
                doubt_older(targets, &map);
                return Err((status, refusal(first, status, request, &map)));
            }
        }
    }
}

/// A node was refused: those of its targets that are older states of themselves note that. Without
/// it they would be taken for the newest after enough tries, each of which raises their number.
pub fn doubt_older(targets: &[Target], map: &Map) {
    for target in targets {
        let request = target.announce();
        let known = request.id.and_then(|id| map.target(id));
        if known.is_some_and(|known| is_older(known, &request))
            && let Err(e) = target.doubt()
        {
            tracing::warn!("{}: {e}", request.path);
        }
    }
}

/// Why a node or its targets are not taken, and what to do.
pub fn refusal(who: &str, status: Status, request: &Join, map: &Map) -> Failure {
    let why = match status {
        Status::STALE => {
            "its targets are older than what was known of them and the others do not hold their \
             data, or the map is older than what they obeyed: bring back the newer state, or \
             restore the metadata from a newer copy"
        }
        Status::WRONG_PEER => {
            "a target belongs to another space, is served by another node, or carries the id of \
             another target, or was removed: look at nuri target list"
        }
        Status::NOSPC => "the space has as many nodes or targets as it can have",
        Status::BUSY => {
            let node = request.node.and_then(|id| map.node(id));
            let (id, there) = node.map_or((0, "another address"), |n| (n.id.0, &n.address));
            let here = &request.address;
            return Failure(format!(
                "{who} refuses this node: node {id} runs at {there}, and this one at {here} has a \
                 copy of its directory: stop one of the two; a new node needs an empty directory"
            ));
        }
        _ => return Failure(format!("{who} refuses this node: {status}")),
    };
    Failure(format!("{who} refuses this node: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_for_one_machine() {
        let own: SocketAddr = "127.0.0.1:7000".parse().unwrap();
        assert!(refuse_loopback(own, "127.0.0.1:7400").is_ok());
        assert!(refuse_loopback("10.0.0.2:7000".parse().unwrap(), "10.0.0.1:7400").is_ok());
        let said = refuse_loopback(own, "192.0.2.1:7400").unwrap_err().to_string();
        assert!(said.contains("--listen ") && said.contains("this machine only"), "{said}");
    }

    #[test]
    fn who_listens_is_reached() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert_eq!(reach(&NodeReach { address: address.clone() }), Ok(true));
        drop(listener);
        assert_eq!(reach(&NodeReach { address }), Ok(false));
        assert_eq!(reach(&NodeReach { address: "a name".into() }), Err(Status::INVAL));
    }
}
