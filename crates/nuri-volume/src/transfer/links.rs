//! Measures the links from this machine to the nodes: the round trip, and bytes per second each
//! way. The measurement uses calls whose bytes mean nothing (`Echo`).
//!
//! One measurement runs at a time. A front end begins it for `nuri lab watch`, on a thread of its
//! own. It takes about a third of a second for each node, and at most [`LIMIT`] and one call. A
//! node that does not answer is named. The nodes are measured one after the other: at once they
//! would share this machine's cable.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nuri_proto::Status;
use nuri_proto::id::NodeId;
use nuri_proto::limit::MAX_PAYLOAD;
use nuri_proto::map::Node;
use nuri_proto::op::cluster::Path;
use nuri_proto::op::near::Echo;
use nuri_rpc::{CallContext, Peer};
use parking_lot::Mutex;

use crate::map_cache::Cluster;

/// Of a look: nodes that come later are not asked.
const LIMIT: Duration = Duration::from_secs(30);
/// How long nothing may move before a node counts as silent.
const PATIENCE: Duration = Duration::from_secs(2);
/// Empty calls, of which the fastest counts: what else goes on makes them longer.
const TRIPS: u32 = 32;
/// Tries for each direction, of which the best counts, how long they take, and when there are no
/// more of them on a slow path.
const TRIES: u32 = 3;
const SPAN: Duration = Duration::from_millis(50);
const SLOW: Duration = Duration::from_secs(1);
/// Bytes of a try: enough that what a shaped path lets pass at once counts little, and at most; of
/// the first call; and how long a call lasts that is long enough.
const ENOUGH_BYTES: u64 = 512 << 10;
const MOST_BYTES: u64 = 32 << 20;
const FIRST: usize = 64 << 10;
const LONG: Duration = Duration::from_millis(20);

/// A node, as seen from this machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Link {
    pub node: NodeId,
    pub address: String,
    /// Else why there is nothing to tell.
    pub found: Result<Carries, Untold>,
}

/// The measured round trip and rates of a link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Carries {
    pub path: Path,
    pub round_trip: Duration,
    /// Bytes per second from here, and to here.
    pub sending: u64,
    pub receiving: u64,
}

/// Why there is no measurement of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Untold {
    /// The node is down, or did not answer in time.
    Silent,
    /// It answers and does not know the question: it is of an older version.
    Older,
    /// The look took too long already.
    Unasked,
}

/// The result of the last measurement.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct LinksView {
    pub is_running: bool,
    /// When it ended, in seconds since 1970; none before the first did.
    pub at: Option<u64>,
    pub links: Vec<Link>,
}

/// The measurements of a space's links. See the module's text.
#[derive(Default)]
pub struct Links(Mutex<LinksView>);

impl Links {
    /// Begins a measurement unless one is under way. `start` gets the function to run on a thread.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn begin<E>(&self, start: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut view = self.0.lock();
        if view.is_running {
            return Ok(());
        }
        let begun = start();
        view.is_running = begun.is_ok();
        begun
    }

    /// The result of the last measurement, and whether one is under way.
    pub fn view(&self) -> LinksView {
        self.0.lock().clone()
    }

    /// Measures the link to each node of the space. Once `stops` says so, the remaining nodes are
    /// not asked.
    pub fn look(&self, cluster: &Cluster, stops: impl Fn() -> bool) {
        // Without an authority the old map is the best there is.
        let map = cluster.state().map_or_else(|_| cluster.map(), |state| state.map);
        let begun = Instant::now();
        let link = |node: &Node| {
            let found = match (begun.elapsed() < LIMIT && !stops(), node.up) {
                (false, _) => Err(Untold::Unasked),
                (true, false) => Err(Untold::Silent),
                (true, true) => carries(&cluster.fresh_peer(&node.address)),
            };
            Link { node: node.id, address: node.address.clone(), found }
        };
        let links = map.nodes.iter().map(link).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        *self.0.lock() = LinksView { is_running: false, at: Some(now.as_secs()), links };
    }
}

fn carries(peer: &Peer) -> Result<Carries, Untold> {
    let told = |status| match status {
        Status::MALFORMED => Untold::Older,
        _ => Untold::Silent,
    };
    measure(peer).map_err(told)
}

fn measure(peer: &Peer) -> Result<Carries, Status> {
    let mut block = vec![0; MAX_PAYLOAD];
    let call = |bytes: u32, payload: &[u8], into: &mut [u8]| {
        let echo = Echo { bytes };
        peer.call(CallContext::default(), &echo, payload, into, PATIENCE).map(|_| ())
    };
    // Makes the connection.
    call(0, &[], &mut [])?;
    let (begun, mut round_trip) = (Instant::now(), Duration::MAX);
    for _ in 0..TRIPS {
        let start = Instant::now();
        call(0, &[], &mut [])?;
        round_trip = round_trip.min(start.elapsed());
        if begun.elapsed() > SLOW {
            break;
        }
    }
    let sending = best(round_trip, |len| call(0, &block[..len], &mut []))?;
    let receiving = best(round_trip, |len| call(len as u32, &[], &mut block[..len]))?;
    Ok(Carries { path: peer.carried().path, round_trip, sending, receiving })
}

/// Bytes per second of calls one after the other, without the time that an empty one takes.
fn best(
    round_trip: Duration,
    mut carry: impl FnMut(usize) -> Result<(), Status>,
) -> Result<u64, Status> {
    let (begun, mut len, mut best) = (Instant::now(), FIRST, 0.0f64);
    // Longer ones until they fill the path, which also takes what may pass at once beforehand.
    loop {
        let start = Instant::now();
        carry(len)?;
        if start.elapsed() >= LONG || len == MAX_PAYLOAD {
            break;
        }
        len = (2 * len).min(MAX_PAYLOAD);
    }
    for tries in 0..TRIES {
        if tries > 0 && begun.elapsed() > SLOW {
            break;
        }
        let (start, mut calls) = (Instant::now(), 0);
        loop {
            carry(len)?;
            calls += 1;
            let (took, bytes) = (start.elapsed(), calls * len as u64);
            let lasted = took >= SPAN && (bytes >= ENOUGH_BYTES || took >= SLOW / 2);
            if lasted || bytes >= MOST_BYTES {
                break;
            }
        }
        best = best.max(rate(len as u64, calls, start.elapsed(), round_trip));
    }
    Ok(best as u64)
}

/// Of so many calls with so many bytes each. What one costs without bytes is no more than half.
fn rate(len: u64, calls: u64, took: Duration, round_trip: Duration) -> f64 {
    let (took, trips) = (took.as_secs_f64(), calls as f64 * round_trip.as_secs_f64());
    (len * calls) as f64 / (took - trips).max(took / 2.0).max(1e-9)
}

/// A line for each node, after one that says how the look stands.
impl fmt::Display for LinksView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_running { "running" } else { "done" };
        match self.at {
            Some(at) => write!(f, "state={state} at={at}")?,
            None if self.is_running => write!(f, "state={state}")?,
            None => write!(f, "state=none")?,
        }
        self.links.iter().try_for_each(|link| write!(f, "\n{link}"))
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node={} address={}", self.node, self.address)?;
        match self.found {
            Ok(Carries { path, round_trip, sending, receiving }) => {
                let path = match path {
                    Path::Tcp => "tcp",
                    Path::Unix => "unix",
                    Path::SingleCopy => "single-copy",
                };
                let trip = round_trip.as_secs_f64() * 1e6;
                write!(f, " path={path} round_trip={trip:.1}")?;
                write!(f, " sending={sending} receiving={receiving}")
            }
            Err(Untold::Silent) => write!(f, " untold=silent"),
            Err(Untold::Older) => write!(f, " untold=older"),
            Err(Untold::Unasked) => write!(f, " untold=unasked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_rate_is_of_the_time_beyond_empty_calls() {
        assert_eq!(rate(1000, 10, 100 * MS, 5 * MS), 10_000.0 / 0.05);
        assert_eq!(rate(1000, 10, 100 * MS, 2 * MS), 10_000.0 / 0.08);
        assert_eq!(rate(1000, 10, 100 * MS, 50 * MS), 10_000.0 / 0.05, "half at most");
    }

    /// A path whose calls take as long as their bytes; what was asked of it.
    fn asked(bytes_per_second: f64) -> (u64, Vec<usize>) {
        let mut asked = Vec::new();
        let carry = |len: usize| {
            std::thread::sleep(Duration::from_secs_f64(len as f64 / bytes_per_second));
            asked.push(len);
            Ok(())
        };
        (best(Duration::ZERO, carry).unwrap(), asked)
    }

    #[test]
    fn a_slow_path_is_asked_little_and_a_fast_one_enough() {
        let (rate, calls) = asked(1e6);
        assert!((500_000..1_010_000).contains(&rate), "{rate}");
        assert!(calls.iter().all(|len| *len == FIRST) && calls.len() <= 20, "{calls:?}");
        let (rate, calls) = asked(400e6);
        assert!(rate > 100_000_000, "{rate}");
        assert_eq!(calls.last(), Some(&MAX_PAYLOAD));
        let failed = best(Duration::ZERO, |_| Err(Status::UNREACHABLE));
        assert_eq!(failed, Err(Status::UNREACHABLE));
    }

    #[test]
    fn a_view_has_a_line_for_each_node() {
        let mut view = LinksView::default();
        assert_eq!(view.to_string(), "state=none");
        view.is_running = true;
        assert_eq!(view.to_string(), "state=running");
        let address = "10.0.0.1:7400".to_string();
        let (path, round_trip) = (Path::Tcp, 150 * MS / 1000);
        let found = Ok(Carries { path, round_trip, sending: 5, receiving: 7 });
        let silent = Link { node: NodeId(2), address: address.clone(), found: Err(Untold::Silent) };
        view = LinksView {
            is_running: false,
            at: Some(9),
            links: vec![Link { node: NodeId(1), address, found }, silent],
        };
        let lines = "state=done at=9\n\
                     node=1 address=10.0.0.1:7400 path=tcp round_trip=150.0 sending=5 receiving=7\n\
                     node=2 address=10.0.0.1:7400 untold=silent";
        assert_eq!(view.to_string(), lines);
    }
}
