//! `nuri fs mount`: serves a mount, here or in a process of its own.

use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_client::{Client, ClientConfig};
use nuri_fuse::mount::{How, Writes, abort, is_mounted, make_point};
use nuri_fuse::transport::prepare;
use nuri_fuse::{FuseConfig, Transport};
use nuri_node::joining;
use nuri_proto::clock::HEARTBEAT;
use nuri_proto::op::cluster::{MountReport, Programs};
use nuri_volume::Cluster;
use nuri_volume::transfer::READ_AHEAD;

use super::resolve;
use crate::cli::Mount;
use crate::{Failure, at, logs, supervisor};

const MOUNT_WAIT: Duration = Duration::from_secs(35);

pub(super) fn run(args: &Mount) -> Result<(), Failure> {
    let _role = supervisor::enter_role()?;
    let point = std::path::absolute(&args.mountpoint).map_err(at(args.mountpoint.display()))?;
    make_point(&point).map_err(Failure::new)?;
    nuri_fuse::mount::check(&point).map_err(Failure::new)?;
    let (transport, read_only) = (transport(args.transport)?, args.ro);
    let config = FuseConfig { transport, read_only, ..FuseConfig::default() };
    let (address, secret) = resolve(args)?;
    let cluster = joining::connect(&address, &secret, args.wait())?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = format!("{host}:{}", point.display());
    let (inodes, marks_reads) = (args.inodes as usize, !args.noatime);
    let config_of_client = ClientConfig { name, inodes, marks_reads };
    let client = Client::start(&cluster, &config_of_client).map_err(at("no session"))?;
    let client = Arc::new(client);
    let writes = if args.ro { Writes::Refused } else { Writes::Allowed };
    let how = How {
        readahead_kib: READ_AHEAD >> 10,
        writes,
        suid: args.suid,
        dev: args.dev,
        exec: !args.noexec,
        atime: !args.noatime,
    };
    let device = match nuri_fuse::mount(&point, &args.source, how) {
        Ok(device) => device,
        Err(error) => {
            // Nothing was written yet.
            let _ = client.close();
            return Err(Failure::new(error));
        }
    };
    // What it says of its size while no server answers.
    let _ = client.statfs();
    let (place, passed) = (point.display().to_string(), config.passed.clone());
    report_client(&cluster, &client, Reported { host, place }, move || passed.counts());
    let served = nuri_fuse::serve(device, client.clone(), config, &point);
    let kept = client.close();
    if served.is_err() {
        // Nobody answers there any more.
        let _ = abort(&point);
    }
    served.map_err(at("the mount ended"))?;
    kept.map_err(at("bytes that were written through this mount are lost"))
}

/// Gets the kernel ready for the transport, before the mount's first request asks for it.
fn transport(wanted: Transport) -> Result<Transport, Failure> {
    if wanted == Transport::Classic {
        return Ok(wanted);
    }
    match prepare() {
        Ok(()) => Ok(wanted),
        Err(why) if wanted == Transport::Uring => {
            Err(Failure(format!("no FUSE over io_uring: {why}")))
        }
        Err(why) => {
            tracing::info!("fuse: no rings: {why}");
            Ok(Transport::Classic)
        }
    }
}

/// Where a client of the space is: a mount, or a server of volumes.
pub(in crate::cmd) struct Reported {
    pub(in crate::cmd) host: String,
    /// The mount point, or the addresses.
    pub(in crate::cmd) place: String,
}

/// Tells the authority regularly that this client lives.
pub(in crate::cmd) fn report_client(
    cluster: &Cluster,
    client: &Arc<Client>,
    reported: Reported,
    programs: impl Fn() -> Programs + Send + 'static,
) {
    let (cluster, client) = (cluster.clone(), client.clone());
    let body = move || {
        loop {
            let (host, mountpoint) = (reported.host.clone(), reported.place.clone());
            let (pid, session) = (std::process::id(), client.session());
            let inodes = client.inodes() as u64;
            let (links, programs) = (cluster.links(), programs());
            let report = MountReport { host, pid, mountpoint, session, inodes, links, programs };
            // An authority that does not answer is noticed elsewhere.
            let _ = cluster.report_mount(report);
            std::thread::sleep(HEARTBEAT);
        }
    };
    let _ = std::thread::Builder::new().name("report".into()).spawn(body);
}

pub(super) fn in_background(args: &Mount) -> Result<(), Failure> {
    let point = std::path::absolute(&args.mountpoint).map_err(at(args.mountpoint.display()))?;
    let (address, secret) = resolve(args)?;
    // Said here: the process in the background says it to its log.
    joining::connect(&address, &secret, args.wait())?;
    make_point(&point).map_err(Failure::new)?;
    nuri_fuse::mount::check(&point).map_err(Failure::new)?;
    let log_path = logs::of_mount(&point)?;
    let log = logs::open(&log_path)?;
    let before = log.metadata().map_err(at(log_path.display()))?.len();
    let err = log.try_clone().map_err(at("cannot open the log"))?;
    let program = std::env::current_exe().map_err(at("cannot find nuri itself"))?;
    let mut command = process::Command::new("setsid");
    command.arg(program).args(["fs", "mount", "--foreground"]);
    if let Some(token) = &args.token_file {
        let token = std::path::absolute(token).map_err(at(token.display()))?;
        command.arg("--token-file").arg(token);
    }
    if args.ro {
        command.arg("--ro");
    }
    command.arg("--transport").arg(args.transport.to_string());
    command.arg("--inodes").arg(args.inodes.to_string());
    let flags = [(args.suid, "--suid"), (args.dev, "--dev")];
    let flags = flags.into_iter().chain([(args.noexec, "--noexec"), (args.noatime, "--noatime")]);
    command.args(flags.filter(|(is_set, _)| *is_set).map(|(_, flag)| flag));
    command.arg("--source").arg(&args.source);
    let directory = Path::new(&args.space).is_dir().then(|| std::path::absolute(&args.space));
    let directory = directory.transpose().map_err(at(args.space.display()))?;
    command.arg(directory.unwrap_or_else(|| PathBuf::from(&args.space))).arg(&point);
    command.stdin(Stdio::null()).stdout(log).stderr(err).current_dir("/");
    logs::pass_on(&mut command, &log_path);
    let mut child = command.spawn().map_err(at("cannot start the mount process"))?;
    let start = Instant::now();
    while start.elapsed() < MOUNT_WAIT {
        if is_mounted(&point) {
            println!("mounted  {}; unmount: nuri fs umount {0}", point.display());
            return Ok(());
        }
        if let Ok(Some(_)) = child.try_wait() {
            let said = logs::last_error(&log_path, before);
            return Err(Failure(said.unwrap_or("it ended at once".into())));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    Err(Failure(format!("{} was not mounted in time", point.display())))
}
