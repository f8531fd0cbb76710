//! How a node starts: its settings, its place in the space, its services, and the threads that run
//! beside the services.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nuri_cluster::authority::Authority;
use nuri_io::clock::SystemClock;
use nuri_io::lock::ExclusiveLock;
use nuri_io::paired::PairedDisk;
use nuri_kv::embedded::{Embedded, KvConfig};
use nuri_meta::namespace::txn::ClusterView;
use nuri_meta::server::MetaServer;
use nuri_proto::Status;
use nuri_proto::id::{BootId, ClusterId, GroupId, NodeId, PoolId};
use nuri_proto::layout::Shape;
use nuri_proto::map::{Placement, Run};
use nuri_proto::op::cluster::{Admitted, Join, JoinReply, MetaRole};
use nuri_rpc::{Peer, Secret, Server};
use nuri_target::server::TargetServer;
use nuri_target::target::Target;
use nuri_watch::calendar::unix_now;

use crate::directory::{
    MAP, META_LOG, NODE, NodeSettings, SPACE, load_json, save_json, store_disks,
};
use crate::disk_reserve::{DiskReserve, is_store_full};
use crate::disks::{DiskService, MakeDisks};
use crate::failure::{Failure, at};
use crate::gc::collect_garbage;
use crate::heartbeat::heartbeat;
use crate::joining::{self, connected, doubt_older, refusal, refuse_loopback};
use crate::metadata_copy::copier::{CopiedMap, Copier};
use crate::metadata_copy::keeper::Keeper;
use crate::metadata_copy::restore::refuse_unfinished;
use crate::services::Services;
use crate::targets::{self, Opened, needs_word};
use crate::{resync, scrub};

const FORMAT: u32 = 1;
const META_TICK: Duration = Duration::from_millis(250);

/// The authority as the metadata server sees it.
struct Pools(Arc<Authority>);

impl ClusterView for Pools {
    fn groups(&self, pool: PoolId, shape: Shape) -> Result<Vec<GroupId>, Status> {
        self.0.groups(pool, shape)
    }

    fn default_shape(&self) -> Shape {
        self.0.default_shape()
    }

    fn admit(&self, list: Admitted) {
        self.0.admit(list);
    }

    fn is_in_force(&self, version: u64) -> bool {
        self.0.is_in_force(version)
    }
}

/// What a node is told when it starts. What is not said is as it was.
#[derive(Default)]
pub struct NodeOptions {
    /// Its settings and, for the first node, the metadata.
    pub dir: PathBuf,
    /// What is not there may be made.
    pub may_create: bool,
    /// Address to listen on.
    pub listen: Option<String>,
    /// A socket that listens there already: whoever starts this node keeps it while it restarts.
    pub listener: Option<TcpListener>,
    /// Address of the space's first node; none for the first node.
    pub join: Option<String>,
    /// File with the space's secret.
    pub token_file: Option<PathBuf>,
    pub targets: Vec<PathBuf>,
    /// Bytes of each target that is made, or of each one its own.
    pub target_size: Option<u64>,
    pub target_sizes: Vec<u64>,
    /// Of the first node: defaults of the space.
    pub shape: Option<Shape>,
    pub placement: Option<Placement>,
    /// Which raw disks other machines may use: `all`, `none`, or paths with commas between them.
    pub export_disks: Option<String>,
    pub make_disks: Option<MakeDisks>,
}

/// How a node came to its end without a failure.
pub enum NodeEnd {
    Stopped,
    /// It would make something and was not told to: what.
    NeedsWord(String),
}

/// Runs a node until it is killed: stopping without notice is its normal end.
pub fn run(mut options: NodeOptions) -> Result<NodeEnd, Failure> {
    let (dir, shape, placement) = (options.dir.clone(), options.shape, options.placement);
    let (may_create, sizes) = (options.may_create, options.target_sizes.clone());
    if dir.join(SPACE).exists() {
        let dir = dir.display();
        return Err(Failure(format!(
            "{dir} is the directory of a whole space, whose first node is {dir}/node0: start it \
             with nuri up --dir {dir}, or give this node a directory of its own"
        )));
    }
    let (given, make_disks) = (options.listener.take(), options.make_disks);
    let known: Option<NodeSettings> = load_json(&dir.join(NODE))?;
    let before = known.clone();
    let mut settings = merge(known.clone().unwrap_or_default(), options)?;
    let has_begun = known.as_ref().is_some_and(|known| known.join.is_some() && known.id.is_none());
    if let Some(words) = needs_word(&dir, &settings, has_begun).filter(|_| !may_create) {
        return Ok(NodeEnd::NeedsWord(words));
    }
    let create = (may_create, &sizes[..]);
    std::fs::create_dir_all(&dir).map_err(at(format!("cannot make {}", dir.display())))?;
    let _lock = ExclusiveLock::acquire(&dir).map_err(Failure::new)?;
    let token = settings.token_file.clone().unwrap_or(dir.join("token"));
    let secret = Secret::load_own(&token).map_err(Failure::new)?;
    let is_first = settings.join.is_none();
    if let Some(known) = known.filter(|known| is_first && known.address != settings.address) {
        joining::refuse_copy(&dir, &known, &secret)?;
    }
    let listener = listen(&mut settings, given)?;
    let address = settings.address.clone().unwrap_or_default();
    let node = match settings.join.clone() {
        None => {
            First { dir: &dir, secret: &secret, shape, placement, create }.start(&mut settings)?
        }
        Some(join) => Joined { dir: &dir, secret: &secret, create }.start(&join, &mut settings)?,
    };
    // What did not change needs no room on a full disk.
    if before.as_ref() != Some(&settings) {
        save_json(&dir.join(NODE), &settings)?;
    }
    let mut services = node.services;
    services.disks = disks(make_disks, &settings, &listener)?;
    let services = Arc::new(services);
    let server = Server::start(listener, &secret, services.clone())
        .map_err(at("cannot serve the listening address"))?;
    tracing::info!("node {} serves {address}", node.id);
    if let Some(meta) = &services.meta {
        start_meta_workers(meta, node.store, &address, &secret);
    }
    if let Some(copier) = node.copier {
        spawn("meta-copy", || copier.run());
    }
    let authority = settings.join.unwrap_or(address);
    start_resync(&services, &authority, &secret);
    start_scrub(&services, node.id, &authority, &secret);
    heartbeat(&services, node.id, node.join, &Peer::new(&authority, &secret));
    drop(server);
    Ok(NodeEnd::Stopped)
}

/// Settings of an earlier run, overridden by what is said now.
fn merge(mut settings: NodeSettings, options: NodeOptions) -> Result<NodeSettings, Failure> {
    if settings.format > FORMAT {
        let (found, dir) = (settings.format, options.dir.display());
        return Err(Failure(format!("{dir}/node.json has format {found}; use a newer nuri")));
    }
    settings.format = FORMAT;
    let absolute = |p: PathBuf| std::path::absolute(&p).unwrap_or(p);
    settings.address = options.listen.or(settings.address);
    settings.join = options.join.or(settings.join);
    settings.token_file = options.token_file.map(absolute).or(settings.token_file);
    settings.export_disks = options.export_disks.or(settings.export_disks);
    settings.target_size = options.target_size.or(settings.target_size);
    for target in options.targets.into_iter().map(absolute) {
        if !settings.targets.contains(&target) {
            settings.targets.push(target);
        }
    }
    Ok(settings)
}

fn listen(settings: &mut NodeSettings, given: Option<TcpListener>) -> Result<TcpListener, Failure> {
    let wanted = settings.address.clone().unwrap_or("127.0.0.1:0".into());
    let bound = given.map_or_else(|| joining::bind(&wanted), Ok);
    let listener = bound.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => Failure(format!(
            "{wanted} is taken by another program; stop that one or choose another with --listen"
        )),
        _ => Failure(format!("cannot listen on {wanted}: {e}")),
    })?;
    let address = listener.local_addr().map_err(at("cannot listen"))?;
    if address.ip().is_unspecified() {
        return Err(Failure(format!(
            "{wanted} is no address that others can reach; \
             name one of this machine's: --listen IP:PORT"
        )));
    }
    if let Some(join) = &settings.join {
        refuse_loopback(address, join)?;
    }
    settings.address = Some(address.to_string());
    Ok(listener)
}

/// What serves the raw disks of this node.
fn disks(
    make: Option<MakeDisks>,
    settings: &NodeSettings,
    listener: &TcpListener,
) -> Result<Option<Arc<dyn DiskService>>, Failure> {
    let ip = listener.local_addr().map_err(at("cannot listen"))?.ip();
    let allowed = settings.export_disks.as_deref().unwrap_or("none");
    make.map(|make| make(allowed, ip)).transpose()
}

/// A node ready to serve.
struct Ready {
    id: NodeId,
    services: Services,
    store: Option<(Arc<Embedded>, Arc<DiskReserve>)>,
    copier: Option<Copier>,
    join: Join,
}

/// The first node: authority, metadata server and its own targets.
struct First<'a> {
    dir: &'a Path,
    secret: &'a Secret,
    /// What new files get where no directory says otherwise, if it was said now.
    shape: Option<Shape>,
    placement: Option<Placement>,
    /// Whether targets may be made, and how large.
    create: (bool, &'a [u64]),
}

impl First<'_> {
    fn start(&self, settings: &mut NodeSettings) -> Result<Ready, Failure> {
        refuse_unfinished(self.dir)?;
        self.refuse_lost(settings)?;
        let cluster = cluster_id(settings)?;
        let clock = SystemClock::shared();
        let reserve = Arc::new(DiskReserve::open(self.dir)?);
        let map = CopiedMap::new(&self.dir.join(MAP), reserve.clone());
        let authority = Authority::open(Box::new(map.clone()), clock.clone(), cluster);
        let authority = authority.map_err(Failure::new)?;
        let defaults = authority.set_defaults(self.shape, self.placement);
        defaults.map_err(at("cannot keep the map"))?;
        let authority = Arc::new(authority);
        let Opened { served: targets, lost } = targets::open(settings, cluster, self.create)?;
        let join = join_request(settings, MetaRole::Owner, &targets);
        let reply = authority.join(&join).map_err(|status| {
            doubt_older(&targets, &authority.map());
            refusal("the map", status, &join, &authority.map())
        })?;
        settings.id = Some(reply.node.0);
        targets::adopt(settings, &targets, cluster, &reply)?;
        let [log, tables] = store_disks(self.dir)?;
        let paired = |disk| Arc::new(PairedDisk::new(disk));
        let (log, tables) = (paired(log), paired(tables));
        let open = || Embedded::open(log.clone(), tables.clone(), KvConfig::default());
        let engine = Arc::new(reserve.with(open, is_store_full).map_err(Failure::new)?);
        let pools = Arc::new(Pools(authority.clone()));
        let meta = MetaServer::open(engine.clone(), pools, clock).map_err(at("metadata"))?;
        let copier = Copier {
            dir: self.dir.to_owned(),
            node: reply.node,
            address: join.address.clone(),
            secret: self.secret.clone(),
            authority: authority.clone(),
            log,
            tables,
            map,
        };
        let services = Services {
            authority: Some(authority),
            meta: Some(Arc::new(meta)),
            targets: Arc::new(TargetServer::start(targets, lost)),
            resync: Arc::default(),
            scrub: Arc::new(scrub::Progress::load(self.dir)),
            copies: Keeper::new(self.dir, cluster),
            disks: None,
        };
        let (store, copier) = (Some((engine, reserve)), Some(copier));
        Ok(Ready { id: reply.node, services, store, copier, join })
    }
}

impl First<'_> {
    /// A first node that ran has a map and metadata. Where they are missing an empty space must not
    /// begin in their place.
    fn refuse_lost(&self, settings: &NodeSettings) -> Result<(), Failure> {
        let missing = [MAP, META_LOG].into_iter().find(|name| !self.dir.join(name).exists());
        let Some((name, id)) = missing.zip(settings.id) else { return Ok(()) };
        Err(Failure(format!(
            "the {name} of node {id} is missing in {}: mount its disk, or restore it from another \
             node's copy: nuri doctor --restore-metadata",
            self.dir.display()
        )))
    }
}

fn cluster_id(settings: &mut NodeSettings) -> Result<ClusterId, Failure> {
    if let Some(text) = &settings.cluster {
        return text.parse().map_err(|_| Failure("node.json has a damaged cluster id".into()));
    }
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(at("the system gave no random bytes"))?;
    let id = ClusterId(bytes);
    settings.cluster = Some(id.to_string());
    Ok(id)
}

fn join_request(settings: &NodeSettings, serves_meta: MetaRole, targets: &[Target]) -> Join {
    Join {
        node: settings.id.map(NodeId),
        address: settings.address.clone().unwrap_or_default(),
        pid: std::process::id(),
        serves_meta,
        run: Run { version: env!("CARGO_PKG_VERSION").into(), since: unix_now() },
        instance: getrandom::u64().unwrap_or_default(),
        machine: machine(),
        targets: targets.iter().map(Target::announce).collect(),
    }
}

/// Tells one start of this machine from another; 0 where it does not say.
pub fn machine() -> BootId {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    BootId(u64::from_str_radix(&digits, 16).unwrap_or_default())
}

/// A node that joins an existing space with its targets.
struct Joined<'a> {
    dir: &'a Path,
    secret: &'a Secret,
    /// As the first node's.
    create: (bool, &'a [u64]),
}

impl Joined<'_> {
    fn start(&self, join: &str, settings: &mut NodeSettings) -> Result<Ready, Failure> {
        let space = joining::connect(join, self.secret, joining::BOOT)?;
        let cluster = space.map().cluster;
        let Opened { served: targets, lost } = targets::open(settings, cluster, self.create)?;
        settings.cluster = Some(cluster.to_string());
        let request = join_request(settings, MetaRole::None, &targets);
        joining::refuse_unreached(&space, join, &request)?;
        let reply = self.noted(settings, || joining::join(&space, join, &request, &targets))?;
        settings.id = Some(reply.node.0);
        targets::adopt(settings, &targets, cluster, &reply)?;
        let targets = Arc::new(TargetServer::start(targets, lost));
        let copies = Keeper::new(self.dir, cluster);
        let (resync, scrub) = (Arc::default(), Arc::new(scrub::Progress::load(self.dir)));
        let (authority, meta, disks) = (None, None, None);
        let services = Services { authority, meta, targets, resync, scrub, copies, disks };
        Ok(Ready { id: reply.node, services, store: None, copier: None, join: request })
    }
}

/// A node that is answered so has not joined.
const REFUSALS: [Status; 4] = [Status::WRONG_PEER, Status::STALE, Status::NOSPC, Status::BUSY];

impl Joined<'_> {
    /// Joins. A node that ends before it can note who it is was noted before: its next start
    /// goes on, and needs not be told to make anything.
    fn noted(
        &self,
        settings: &NodeSettings,
        join: impl FnOnce() -> Result<JoinReply, (Status, Failure)>,
    ) -> Result<JoinReply, Failure> {
        let note = self.dir.join(NODE);
        let is_new = !note.exists();
        if settings.id.is_none() {
            save_json(&note, settings)?;
        }
        join().map_err(|(status, failure)| {
            if is_new && REFUSALS.contains(&status) {
                // It is to be said anew.
                let _ = std::fs::remove_file(note);
            }
            failure
        })
    }
}

/// Threads of the metadata server: expiry, moving frozen tables, deleting garbage.
fn start_meta_workers(
    meta: &Arc<MetaServer>,
    store: Option<(Arc<Embedded>, Arc<DiskReserve>)>,
    address: &str,
    secret: &Secret,
) {
    let ticking = meta.clone();
    spawn("meta-tick", move || {
        loop {
            std::thread::sleep(META_TICK);
            if let Err(status) = ticking.tick() {
                tracing::warn!("metadata: {status}");
            }
        }
    });
    if let Some((engine, reserve)) = store {
        let server = meta.clone();
        spawn("meta-absorb", move || {
            loop {
                std::thread::sleep(META_TICK / 10);
                if let Err(error) = reserve.look_after(&engine, &server) {
                    tracing::warn!("{error}");
                    std::thread::sleep(META_TICK * 4);
                }
            }
        });
    }
    let (meta, address, secret) = (meta.clone(), address.to_string(), secret.clone());
    spawn("garbage", move || collect_garbage(&meta, &address, &secret));
}

fn start_resync(services: &Services, authority: &str, secret: &Secret) {
    let (targets, progress) = (services.targets.clone(), services.resync.clone());
    let (authority, secret) = (authority.to_string(), secret.clone());
    spawn("resync", move || resync::run(&connected(&authority, &secret), &targets, &progress));
}

fn start_scrub(services: &Services, node: NodeId, authority: &str, secret: &Secret) {
    let (targets, progress) = (services.targets.clone(), services.scrub.clone());
    let (authority, secret) = (authority.to_string(), secret.clone());
    let run = move || scrub::run(node, &connected(&authority, &secret), &targets, &progress);
    spawn("scrub", run);
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(body) {
        tracing::warn!("cannot start the thread {name}: {error}");
    }
}
