//! The status as people and programs read it. The JSON form is documented in `docs/status-json.md`.

use nuri_proto::id::NodeId;
use nuri_proto::map::{Map, Node, Run, Standing, TargetState};
use nuri_proto::op::cluster::{ClusterState, Link, Path, Programs, Scrub};
pub(crate) use nuri_proto::size::human;
use serde::Serialize;

use crate::health::Health;
use crate::logs::plain;
use crate::loss::Losses;

/// Version of the JSON form.
const FORMAT: u32 = 1;

/// `nuri status --json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StatusView {
    pub(crate) format: u32,
    pub(crate) space: String,
    pub(crate) cluster: String,
    pub(crate) nodes: Vec<NodeView>,
    pub(crate) targets: Vec<TargetView>,
    pub(crate) pools: Vec<PoolView>,
    pub(crate) mounts: Vec<MountView>,
    pub(crate) capacity: Capacity,
    /// For files of the space's shape, redundancy left out.
    pub(crate) usable: Usable,
    /// How new groups lie over targets.
    pub(crate) placement: String,
    pub(crate) metadata: MetadataView,
    pub(crate) scrub: ScrubView,
    pub(crate) health: Health,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Usable {
    pub(crate) shape: String,
    pub(crate) size: u64,
    pub(crate) used: u64,
    /// Bytes of larger targets that groups which need every target cannot use.
    pub(crate) beyond_smallest: u64,
}

impl Usable {
    fn of(map: &Map, (size, used): (u64, u64)) -> Usable {
        let needs_all = map.targets.len() == map.shape.members();
        let least = map.targets.iter().map(|t| t.size).min().unwrap_or(0);
        let beyond: u64 = map.targets.iter().map(|t| t.size - least).sum();
        let beyond_smallest = if needs_all { beyond } else { 0 };
        Usable { shape: map.shape.to_string(), size, used, beyond_smallest }
    }

    fn print(&self, placement: &str) {
        let (used, size) = (human(self.used), human(self.size));
        let shape = &self.shape;
        println!("usable    {used} used of {size} for files kept as {shape}, {placement}");
        if self.beyond_smallest > self.size / 50 {
            let lost = human(self.beyond_smallest);
            println!(
                "          every group needs every target: {lost} of the larger ones lie idle"
            );
        }
    }
}

/// The last scrub, over all nodes.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ScrubView {
    pub(crate) number: u64,
    pub(crate) running: bool,
    pub(crate) stopped: bool,
    /// Seconds since 1970.
    pub(crate) started: u64,
    pub(crate) rate: u64,
    pub(crate) every_days: Option<u16>,
    pub(crate) stripes: u64,
    pub(crate) done: u64,
    pub(crate) skipped: u64,
    pub(crate) bytes: u64,
    pub(crate) repaired: u64,
    pub(crate) unrepaired: u64,
    pub(crate) findings: Vec<String>,
}

/// Where the metadata is, as of now.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct MetadataView {
    pub(crate) copies: usize,
    pub(crate) nodes: Vec<u32>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct NodeView {
    pub(crate) id: u32,
    pub(crate) pid: u32,
    pub(crate) address: String,
    pub(crate) state: &'static str,
    pub(crate) roles: Vec<&'static str>,
    pub(crate) version: String,
    /// Seconds since 1970 when its process began.
    pub(crate) since: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct TargetView {
    pub(crate) id: u32,
    pub(crate) node: u32,
    pub(crate) path: String,
    pub(crate) state: &'static str,
    /// Why it is failed.
    pub(crate) reason: Option<String>,
    pub(crate) size: u64,
    pub(crate) used: u64,
    /// Places in redundant groups, and in how many it is not up to date.
    pub(crate) places: usize,
    pub(crate) behind: usize,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct PoolView {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) groups: usize,
    pub(crate) size: u64,
    pub(crate) used: u64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct MountView {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) mountpoint: String,
    pub(crate) session: u64,
    /// That it remembers.
    pub(crate) inodes: u64,
    pub(crate) links: Vec<LinkView>,
    pub(crate) programs: ProgramsView,
}

/// Programs that move bytes past the kernel.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ProgramsView {
    pub(crate) connections: u32,
    /// Both ways.
    pub(crate) bytes: u64,
    /// Between program and mount.
    pub(crate) copies_per_byte: f64,
}

impl ProgramsView {
    fn new(programs: &Programs) -> ProgramsView {
        let Programs { connections, bytes, copied } = *programs;
        ProgramsView { connections, bytes, copies_per_byte: copies_per_byte(bytes, copied) }
    }
}

fn copies_per_byte(bytes: u64, copied: u64) -> f64 {
    copied as f64 / bytes.max(1) as f64
}

/// A mount's connections to one server.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LinkView {
    pub(crate) address: String,
    pub(crate) path: &'static str,
    /// Of payloads, both ways.
    pub(crate) bytes: u64,
    /// How often each was copied on the way, by both ends.
    pub(crate) copies_per_byte: f64,
}

impl LinkView {
    fn new(link: &Link) -> LinkView {
        let path = match link.path {
            Path::Tcp => "tcp",
            Path::Unix => "unix",
            Path::SingleCopy => "single-copy",
        };
        let copies_per_byte = copies_per_byte(link.bytes, link.copied);
        LinkView { address: link.address.clone(), path, bytes: link.bytes, copies_per_byte }
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Capacity {
    pub(crate) size: u64,
    pub(crate) used: u64,
    pub(crate) free: u64,
}

impl StatusView {
    pub(crate) fn new(space: &str, state: &ClusterState, losses: &Losses) -> StatusView {
        let map = &state.map;
        let (size, used) = map.capacity();
        let mount = |m: &nuri_proto::op::cluster::MountReport| MountView {
            host: m.host.clone(),
            pid: m.pid,
            mountpoint: m.mountpoint.clone(),
            session: m.session,
            inodes: m.inodes,
            links: m.links.iter().map(LinkView::new).collect(),
            programs: ProgramsView::new(&m.programs),
        };
        StatusView {
            format: FORMAT,
            space: space.into(),
            cluster: map.cluster.to_string(),
            nodes: map.nodes.iter().map(|n| node_view(map, n)).collect(),
            targets: map.targets.iter().map(|t| target_view(state, t)).collect(),
            pools: map.pools.iter().map(|p| pool_view(map, p)).collect(),
            mounts: state.mounts.iter().map(mount).collect(),
            capacity: Capacity { size, used, free: size.saturating_sub(used) },
            usable: Usable::of(map, state.usable),
            placement: map.placement.to_string(),
            metadata: MetadataView {
                copies: state.metadata.len(),
                nodes: state.metadata.iter().map(|n| n.0).collect(),
            },
            scrub: ScrubView::new(state),
            health: Health::of(state, losses),
        }
    }

    /// A space that does not run.
    pub(crate) fn stopped(space: &str) -> StatusView {
        let health = Health::stopped(format!("the space is stopped: nuri up --dir {space}"));
        StatusView { health, ..StatusView::unreachable(space, "") }
    }

    /// A space whose first node does not answer.
    pub(crate) fn unreachable(space: &str, why: &str) -> StatusView {
        let sentence = format!("the space does not answer ({why}); start it: nuri up");
        StatusView {
            format: FORMAT,
            space: space.into(),
            cluster: String::new(),
            nodes: Vec::new(),
            targets: Vec::new(),
            pools: Vec::new(),
            mounts: Vec::new(),
            capacity: Capacity { size: 0, used: 0, free: 0 },
            usable: Usable::default(),
            placement: String::new(),
            metadata: MetadataView::default(),
            scrub: ScrubView::default(),
            health: Health::unreachable(sentence),
        }
    }

    /// For people.
    pub(crate) fn print(&self) {
        println!("space     {}", self.space);
        println!("health    {}", self.health.state);
        self.health.sentences.iter().for_each(|s| println!("          {}", plain(s)));
        let c = &self.capacity;
        println!("capacity  {} used of {}, {} free", human(c.used), human(c.size), human(c.free));
        if self.usable.size > 0 {
            self.usable.print(&self.placement);
        }
        println!("metadata: {}", self.metadata.sentence());
        self.scrub.print();
        for n in &self.nodes {
            let roles = n.roles.join(", ");
            println!("node {:<4} {:<8} {}  pid {}  {roles}", n.id, n.state, n.address, n.pid);
        }
        for t in &self.targets {
            let (used, size) = (human(t.used), human(t.size));
            let (id, state, node) = (t.id, t.state, t.node);
            let behind = match (t.places, t.behind) {
                (0, _) => String::new(),
                (places, 0) => format!("  {places} places"),
                (places, n) => format!("  {places} places, {n} not up to date"),
            };
            println!(
                "target {id:<2} {state:<8} node {node}  {used:>10} of {size:>10}  {}{behind}",
                plain(&t.path)
            );
        }
        for m in &self.mounts {
            let (host, point) = (plain(&m.host), plain(&m.mountpoint));
            println!("mount     {host}:{point}  pid {}", m.pid);
            for link in m.links.iter().filter(|link| link.bytes > 0) {
                let (bytes, copies) = (human(link.bytes), link.copies_per_byte);
                println!(
                    "    to {}  {:<12} {bytes:>10}, {copies:.2} copies per byte",
                    link.address, link.path
                );
            }
            let ProgramsView { connections, bytes, copies_per_byte } = m.programs;
            if bytes > 0 || connections > 0 {
                println!(
                    "    to {connections} program connections  pipe {:>10}, {copies_per_byte:.2} \
                     copies per byte",
                    human(bytes)
                );
            }
        }
    }
}

impl ScrubView {
    pub(crate) fn new(state: &ClusterState) -> ScrubView {
        let (map, policy) = (&state.map, state.map.scrub);
        let has_ended = |node: NodeId| {
            let ended = |s: &Scrub| s.number == policy.number && s.has_ended;
            state.scrubs.iter().any(|(id, s)| *id == node && ended(s))
        };
        let works = |n: &&Node| n.up && map.targets.iter().any(|t| t.node == n.id);
        let all_ended = map.nodes.iter().filter(works).all(|n| has_ended(n.id));
        let (number, started, stopped) = (policy.number, policy.started, policy.is_stopped);
        let (rate, every_days) = (policy.rate, policy.every_days);
        let running = number > 0 && !stopped && !all_ended;
        let mut view =
            ScrubView { number, running, stopped, started, rate, every_days, ..Self::default() };
        // What a node that has not begun yet says is of the one before.
        for (_, s) in &state.scrubs {
            if s.number == number {
                view.stripes += s.stripes;
                view.done += s.done;
                view.skipped += s.skipped;
                view.bytes += s.bytes;
            }
            view.repaired += s.repaired;
            view.unrepaired += s.unrepaired;
            view.findings.extend(s.findings.iter().cloned());
        }
        view
    }

    pub(crate) fn sentence(&self) -> String {
        let what = match (self.number, self.running, self.stopped) {
            (0, ..) => return "none yet".into(),
            (_, true, _) => "running",
            (_, _, true) => "stopped",
            _ => "ended",
        };
        let (done, stripes, bytes) = (self.done, self.stripes, human(self.bytes));
        let (repaired, unrepaired) = (self.repaired, self.unrepaired);
        let skipped = match self.skipped {
            0 => String::new(),
            n => format!(", {n} left to the next one"),
        };
        format!(
            "{what}: {done} of {stripes} stripes, {bytes} read; \
             {repaired} repaired, {unrepaired} not{skipped}"
        )
    }

    pub(crate) fn print(&self) {
        println!("scrub     {}", self.sentence());
        self.findings.iter().for_each(|finding| println!("          {}", plain(finding)));
    }
}

impl MetadataView {
    fn sentence(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(u32::to_string).collect();
        match self.copies {
            0 => "not known".into(),
            1 => "1 copy".into(),
            n => format!("{n} copies (nodes {})", nodes.join(", ")),
        }
    }
}

fn node_view(map: &Map, n: &nuri_proto::map::Node) -> NodeView {
    let mut roles = Vec::new();
    if map.meta == Some(n.id) {
        roles.extend(["authority", "metadata"]);
    }
    if map.targets.iter().any(|t| t.node == n.id) {
        roles.push("targets");
    }
    let state = if n.up { "up" } else { "down" };
    let Run { version, since } = n.run.clone();
    NodeView { id: n.id.0, pid: n.pid, address: n.address.clone(), state, roles, version, since }
}

fn target_view(whole: &ClusterState, t: &nuri_proto::map::Target) -> TargetView {
    let map = &whole.map;
    let state = match t.state {
        TargetState::Up => "up",
        TargetState::Down => "down",
        TargetState::Failed => "failed",
    };
    let redundant = map.groups.iter().filter(|g| g.shape.is_redundant());
    let own = redundant.flat_map(|g| &g.members).filter(|m| m.target == t.id);
    let (places, behind) = own.fold((0, 0), |(places, behind), m| {
        (places + 1, behind + usize::from(m.standing != Standing::Live))
    });
    let (id, node, path) = (t.id.0, t.node.0, t.path.clone());
    let reason = whole.reasons.iter().find(|(failed, _)| *failed == t.id);
    let reason = reason.map(|(_, why)| why.clone());
    TargetView { id, node, path, state, reason, size: t.size, used: t.used, places, behind }
}

fn pool_view(map: &Map, pool: &nuri_proto::map::Pool) -> PoolView {
    let members = pool.groups.iter().filter_map(|g| map.group(*g)).flat_map(|g| &g.members);
    let sums = members
        .filter_map(|m| map.target(m.target))
        .fold((0, 0), |(s, u), t| (s + t.size, u + t.used));
    let (size, used) = sums;
    PoolView { id: pool.id.0, name: pool.name.clone(), groups: pool.groups.len(), size, used }
}

/// Prints any view as JSON.
pub(crate) fn print_json<T: Serialize>(value: &T) -> Result<(), crate::Failure> {
    let text = serde_json::to_string_pretty(value).map_err(crate::at("cannot print JSON"))?;
    println!("{text}");
    Ok(())
}
