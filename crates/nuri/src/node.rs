//! A node: its services behind one listener, and the threads that keep them honest.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use nuri_client::{Cluster, DataPlane};
use nuri_cluster::authority::Authority;
use nuri_io::clock::SystemClock;
use nuri_io::disk::Disk;
use nuri_io::file::OpenMode;
use nuri_io::lock::ExclusiveLock;
use nuri_io::paired::PairedDisk;
use nuri_io::uring::open_disk;
use nuri_kv::embedded::{Embedded, KvConfig};
use nuri_meta::server::MetaServer;
use nuri_meta::txn::ClusterView;
use nuri_proto::Status;
use nuri_proto::clock::HEARTBEAT;
use nuri_proto::id::{BootId, ClusterId, GroupId, NodeId, ObjectId, PoolId};
use nuri_proto::layout::Shape;
use nuri_proto::map::{Placement, Run};
use nuri_proto::op::cluster::{Admitted, Heartbeat, Join, MapGet, MetaRole, NodeReach};
use nuri_rpc::{Peer, Reply, Request, Secret, Server, Service, reply_to};
use nuri_target::server::TargetServer;
use nuri_target::target::Target;
use nuri_watch::calendar::unix_now;

use crate::cli::NodeRun;
use crate::copy::copier::{CopiedMap, Copier};
use crate::copy::keeper::Keeper;
use crate::copy::restore::refuse_unfinished;
use crate::joining::{self, doubt_older, reach, refusal, refuse_loopback};
use crate::news::Told;
use crate::resync::{self, Progress};
use crate::room::Room;
use crate::scrub;
use crate::space::{NodeSettings, SPACE, load_json, save_json};
use crate::targets::{self, Opened, needs_word};
use crate::{Failure, at};

const FORMAT: u32 = 1;
const GARBAGE_TICK: Duration = Duration::from_millis(100);
const GARBAGE_BATCH: usize = 512;
const META_TICK: Duration = Duration::from_millis(250);

/// Where a node runs its metadata: its log and its tables.
pub(crate) const META_LOG: &str = "meta.log";
pub(crate) const META_TABLES: &str = "meta.tables";
pub(crate) const MAP: &str = "map.json";
pub(crate) const NODE: &str = "node.json";

/// Everything a node serves.
struct Services {
    authority: Option<Arc<Authority>>,
    meta: Option<Arc<MetaServer>>,
    targets: Arc<TargetServer>,
    resync: Arc<Progress>,
    scrub: Arc<scrub::Progress>,
    copies: Keeper,
}

impl Service for Services {
    fn serve(&self, request: &Request<'_>) -> Reply {
        match request.op as u16 {
            // It takes a while, and nothing of the authority's.
            15 if self.authority.is_some() => reply_to::<NodeReach>(request.args, |c| reach(&c)),
            0..16 | 21 => match &self.authority {
                Some(authority) => authority.serve(request),
                None => Reply::failed(Status::NOTSUP),
            },
            16..32 => self.copies.serve(request),
            32..64 => self.targets.serve(request),
            _ => match &self.meta {
                Some(meta) => meta.serve(request),
                None => Reply::failed(Status::RETRY),
            },
        }
    }
}

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

/// Exit code of a command that would make something and was not told to.
pub(crate) const NEEDS_WORD: u8 = 2;

/// Runs a node until it is killed: stopping without notice is its normal end.
pub(crate) fn run(args: NodeRun) -> Result<ExitCode, Failure> {
    let (dir, shape, placement) = (args.dir.clone(), args.shape, args.placement);
    let (may_create, sizes) = (args.create, args.target_sizes.clone());
    if dir.join(SPACE).exists() {
        let dir = dir.display();
        return Err(Failure(format!(
            "{dir} is the directory of a whole space, whose first node is {dir}/node0: start it \
             with nuri up --dir {dir}, or give this node a directory of its own"
        )));
    }
    let known: Option<NodeSettings> = load_json(&dir.join(NODE))?;
    let mut settings = merge(known.clone().unwrap_or_default(), args)?;
    if let Some(words) = needs_word(&dir, &settings).filter(|_| !may_create) {
        tracing::error!("{words}");
        return Ok(ExitCode::from(NEEDS_WORD));
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
    let listener = listen(&mut settings)?;
    let address = settings.address.clone().unwrap_or_default();
    let node = match settings.join.clone() {
        None => {
            First { dir: &dir, secret: &secret, shape, placement, create }.start(&mut settings)?
        }
        Some(join) => Joined { dir: &dir, secret: &secret, create }.start(&join, &mut settings)?,
    };
    save_json(&dir.join(NODE), &settings)?;
    let services = Arc::new(node.services);
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
    Ok(ExitCode::SUCCESS)
}

/// Settings of an earlier run, overridden by what is said now.
fn merge(mut settings: NodeSettings, args: NodeRun) -> Result<NodeSettings, Failure> {
    if settings.format > FORMAT {
        let (found, dir) = (settings.format, args.dir.display());
        return Err(Failure(format!("{dir}/node.json has format {found}; use a newer nuri")));
    }
    settings.format = FORMAT;
    let absolute = |p: PathBuf| std::path::absolute(&p).unwrap_or(p);
    settings.address = args.listen.or(settings.address);
    settings.join = args.join.or(settings.join);
    settings.token_file = args.token_file.map(absolute).or(settings.token_file);
    settings.target_size = args.target_size.or(settings.target_size);
    for target in args.target.into_iter().map(absolute) {
        if !settings.targets.contains(&target) {
            settings.targets.push(target);
        }
    }
    Ok(settings)
}

fn listen(settings: &mut NodeSettings) -> Result<TcpListener, Failure> {
    let wanted = settings.address.clone().unwrap_or("127.0.0.1:0".into());
    let listener = joining::bind(&wanted).map_err(|e| match e.kind() {
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

/// A node ready to serve.
struct Ready {
    id: NodeId,
    services: Services,
    store: Option<(Arc<Embedded>, Room)>,
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
        let map = CopiedMap::new(&self.dir.join(MAP));
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
        let mut room = Room::open(self.dir)?;
        let open = || Embedded::open(log.clone(), tables.clone(), KvConfig::default());
        let engine = Arc::new(room.with(open).map_err(Failure::new)?);
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
        };
        let (store, copier) = (Some((engine, room)), Some(copier));
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

/// Opens the metadata store of a node's directory; the caller holds the directory's lock.
pub(crate) fn open_engine(dir: &Path) -> Result<Embedded, Failure> {
    refuse_unfinished(dir)?;
    let [log, tables] = store_disks(dir)?;
    Embedded::open(log, tables, KvConfig::default()).map_err(Failure::new)
}

/// Log and tables of the metadata store of a node's directory.
pub(crate) fn store_disks(dir: &Path) -> Result<[Arc<dyn Disk>; 2], Failure> {
    let disk = |name: &str| {
        let path = dir.join(name);
        open_disk(&path, OpenMode::Create).map_err(at(format!("cannot open {}", path.display())))
    };
    Ok([disk(META_LOG)?, disk(META_TABLES)?])
}

fn cluster_id(settings: &mut NodeSettings) -> Result<ClusterId, Failure> {
    if let Some(text) = &settings.cluster {
        let parse = |i: usize| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok();
        let mut bytes = [0; 16];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = parse(i).ok_or_else(|| Failure("node.json has a damaged cluster id".into()))?;
        }
        return Ok(ClusterId(bytes));
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
fn machine() -> BootId {
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
        let reply = joining::join(&space, join, &request, &targets)?;
        settings.id = Some(reply.node.0);
        targets::adopt(settings, &targets, cluster, &reply)?;
        let targets = Arc::new(TargetServer::start(targets, lost));
        let copies = Keeper::new(self.dir, cluster);
        let (resync, scrub) = (Arc::default(), Arc::new(scrub::Progress::load(self.dir)));
        let services = Services { authority: None, meta: None, targets, resync, scrub, copies };
        Ok(Ready { id: reply.node, services, store: None, copier: None, join: request })
    }
}

/// Beats until the process ends; joins again where the authority forgot this node.
fn heartbeat(services: &Services, node: NodeId, join: Join, authority: &Peer) {
    let join = Join { node: Some(node), ..join };
    let mut was_second = false;
    let mut told = Told::default();
    loop {
        let (admission, epochs) = (&services.targets.admission, &services.targets.epochs);
        let (targets, admitted) = (services.targets.reports(), admission.version());
        let (resyncs, scrub) = (services.resync.report(), services.scrub.report());
        let instance = join.instance;
        let beat = Heartbeat { node, instance, targets, admitted, resyncs, scrub };
        let context = nuri_rpc::CallContext::default();
        let sent = admission.now();
        told.of_targets(&beat.targets);
        match authority.call(context, &beat, &[], &mut [], HEARTBEAT * 4) {
            Ok((reply, _)) => {
                told.of_contact(true);
                let changed = reply.admitted.is_some();
                // The lease of an answer that tells of a new map counts once that is obeyed.
                if reply.map_epoch <= epochs.adopted() || adopt_map(services, authority, &mut told)
                {
                    services.targets.renew(sent, reply.admitted);
                }
                if changed {
                    // Somebody waits to hear that the list is in force.
                    continue;
                }
            }
            Err(Status::WRONG_PEER) => {
                let again = Join { targets: services.targets.announce(), ..join.clone() };
                let answer = authority.call(context, &again, &[], &mut [], HEARTBEAT * 4);
                let is_second = matches!(answer, Err(Status::BUSY));
                if is_second && !std::mem::replace(&mut was_second, is_second) {
                    tracing::warn!(
                        "node {node}: another one with this number runs elsewhere: stop one"
                    );
                }
            }
            Err(_) => told.of_contact(false),
        }
        epochs.wait_named(HEARTBEAT);
    }
}

/// Fetches the map and obeys it.
fn adopt_map(services: &Services, authority: &Peer, told: &mut Told) -> bool {
    let context = nuri_rpc::CallContext::default();
    match authority.call(context, &MapGet {}, &[], &mut [], HEARTBEAT * 4) {
        Ok((map, _)) => {
            let adopted = services.targets.adopt(&map);
            let epoch = map.epoch;
            told.of_map(map);
            adopted.is_ok() && services.targets.epochs.adopted() >= epoch
        }
        Err(_) => false,
    }
}

/// Threads of the metadata server: expiry, moving frozen tables, deleting garbage.
fn start_meta_workers(
    meta: &Arc<MetaServer>,
    store: Option<(Arc<Embedded>, Room)>,
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
    if let Some((engine, mut room)) = store {
        let server = meta.clone();
        spawn("meta-absorb", move || {
            loop {
                std::thread::sleep(META_TICK / 10);
                if let Err(error) = room.look_after(&engine, &server) {
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

/// Connects as soon as there is an authority.
fn connected(authority: &str, secret: &Secret) -> Cluster {
    loop {
        match Cluster::connect(authority, secret) {
            Ok(cluster) => return cluster,
            Err(_) => std::thread::sleep(GARBAGE_TICK),
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(body) {
        tracing::warn!("cannot start the thread {name}: {error}");
    }
}

/// Deletes the data of removed files from the targets, for ever.
fn collect_garbage(meta: &MetaServer, address: &str, secret: &Secret) {
    let cluster = connected(address, secret);
    let data = DataPlane::new(&cluster);
    // Where this round is, and whether something of it was left.
    let (mut after, mut left) = (ObjectId(0), false);
    loop {
        let garbage = meta.garbage(after, GARBAGE_BATCH).unwrap_or_default();
        let Some((last, _)) = garbage.last() else {
            // What waits for a target that is down is tried again, and holds nothing else up.
            if left {
                let _ = cluster.refresh();
                std::thread::sleep(GARBAGE_TICK * 20);
            }
            std::thread::sleep(GARBAGE_TICK);
            (after, left) = (ObjectId(0), false);
            continue;
        };
        after = *last;
        let deleted = data.delete(&garbage);
        left |= deleted.len() < garbage.len() || meta.garbage_done(&deleted).is_err();
    }
}
