//! `nuri fs`: mount, umount, layout, df.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use nuri_client::{Client, ClientConfig};
use nuri_fuse::mount::{How, Writes, abort, detach, is_mounted, make_point, unmount};
use nuri_fuse::transport::prepare;
use nuri_fuse::{FuseConfig, MountError, Transport};
use nuri_node::directory::{NODE, SPACE};
use nuri_node::joining;
use nuri_proto::Status;
use nuri_proto::clock::HEARTBEAT;
use nuri_proto::layout::Shape;
use nuri_proto::op::cluster::MountReport;
use nuri_rpc::{Peer, Secret};
use nuri_volume::Cluster;
use nuri_volume::transfer::READ_AHEAD;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::status;
use crate::cli::{Cli, Command, Df, Fs, Layout, Mount, Umount};
use crate::show::{StatusView, human, print_json};
use crate::space::Space;
use crate::{Failure, at, logs, supervisor, users};

const LAYOUT_ATTRIBUTE: &str = "nuri.layout";
const SYNC_ATTRIBUTE: &str = "nuri.sync";
const MOUNT_WAIT: Duration = Duration::from_secs(35);
const FIRST_NODE_WAIT: Duration = Duration::from_secs(3);
const SESSION_WAIT: Duration = Duration::from_secs(5);

pub(crate) fn run(fs: Fs) -> Result<ExitCode, Failure> {
    let done = match fs {
        Fs::Mount(args) if args.foreground => mount(&args),
        Fs::Mount(args) => mount_in_background(&args),
        Fs::Umount(args) => umount(&args),
        Fs::Layout(Layout::Get { path, json }) => layout_get(&path, json),
        Fs::Layout(Layout::Set { path, chunk_size, width, shape }) => {
            layout_set(&path, chunk_size, width, shape)
        }
        Fs::Tune(tune) => super::tune::run(tune),
        Fs::Df(args) => df(&args),
        Fs::Lost(args) => return super::lost::run(&args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Where a space is and how to prove that we may use it.
fn resolve(args: &Mount) -> Result<(String, Secret), Failure> {
    let dir = Path::new(&args.space);
    let token = |default: PathBuf| args.token_file.clone().unwrap_or(default);
    if dir.is_dir() {
        let space = Space::at(dir);
        let secret = Secret::load(&token(space.token_path())).map_err(Failure::new)?;
        return Ok((space.address()?, secret.for_mounts()));
    }
    let address = args.space.to_string_lossy();
    if !address.contains(':') {
        let text = format!("{address} is neither a space's directory nor HOST:PORT");
        return Err(Failure(text));
    }
    let Some(file) = &args.token_file else {
        return Err(Failure("mounting by address needs --token-file".into()));
    };
    Ok((address.into_owned(), Secret::load(file).map_err(Failure::new)?.for_mounts()))
}

fn mount(args: &Mount) -> Result<(), Failure> {
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
    report_mount(&cluster, &client, &config, host, &point);
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

/// Tells the authority regularly that this mount lives.
fn report_mount(
    cluster: &Cluster,
    client: &Arc<Client>,
    config: &FuseConfig,
    host: String,
    point: &Path,
) {
    let (cluster, client, passed) = (cluster.clone(), client.clone(), config.passed.clone());
    let mountpoint = point.display().to_string();
    let body = move || {
        loop {
            let (host, mountpoint) = (host.clone(), mountpoint.clone());
            let (pid, session) = (std::process::id(), client.session());
            let inodes = client.inodes() as u64;
            let (links, programs) = (cluster.links(), passed.counts());
            let report = MountReport { host, pid, mountpoint, session, inodes, links, programs };
            // An authority that does not answer is noticed elsewhere.
            let _ = cluster.report_mount(report);
            std::thread::sleep(HEARTBEAT);
        }
    };
    let _ = std::thread::Builder::new().name("report".into()).spawn(body);
}

fn mount_in_background(args: &Mount) -> Result<(), Failure> {
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

/// Asks a mount to write everything out, so that unmounting leaves nothing behind.
///
/// # Errors
/// Where bytes of files could not be kept. It is said once.
pub(crate) fn sync_mount(point: &Path) -> Result<(), Failure> {
    match rustix::fs::setxattr(point, SYNC_ATTRIBUTE, b"", XattrFlags::empty()) {
        Err(Errno::IO) => {
            let point = point.display();
            Err(Failure(format!(
                "{point}: bytes of files that are closed could not be kept and are lost; the \
                 mount's log names the inodes; it stays mounted: unmount it again to leave it so"
            )))
        }
        // A dead mount has nothing left to write.
        _ => Ok(()),
    }
}

fn umount(args: &Umount) -> Result<(), Failure> {
    let point = std::path::absolute(&args.mountpoint).map_err(at(args.mountpoint.display()))?;
    let server = users::server(&point);
    let cut_off = server.and_then(|pid| look_for_first_node(pid, &point).err());
    let is_cut_off = cut_off.is_some();
    if !args.force {
        if let Some(failure) = cut_off {
            return Err(failure);
        }
        sync_mount(&point)?;
    }
    match unmount(&point) {
        Err(MountError::Busy(_)) if args.force => detach(&point).map_err(Failure::new),
        Err(MountError::Busy(_)) => {
            let (point, users) = (point.display(), users::of(&point));
            Err(Failure(format!(
                "{point} is in use by {users}: end them, or: nuri fs umount --force"
            )))
        }
        outcome => outcome.map_err(Failure::new),
    }?;
    // The session ends with the process: only then others get its leases and locks at once.
    let Some(pid) = server.filter(|_| !args.force || is_cut_off) else { return Ok(()) };
    let stays = !users::wait_ended(pid, SESSION_WAIT);
    if stays && args.force {
        // It tries to write what nobody can take, and was told to leave that behind.
        let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, Signal::KILL));
        eprintln!("nuri: the first node does not answer: process {pid} of the mount was ended");
    } else if stays {
        eprintln!("nuri: the mount's process {pid} is still ending its session: its log says why");
    }
    Ok(())
}

/// What a mount has not written yet it cannot write while the first node is gone; it would wait for
/// that a long time.
fn look_for_first_node(pid: u32, point: &Path) -> Result<(), Failure> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = line.strip_suffix(&[0]).unwrap_or(&line);
    let words = line.split(|b| *b == 0).map(OsStr::from_bytes);
    let Ok(Cli { command: Command::Fs(Fs::Mount(mount)), .. }) = Cli::try_parse_from(words) else {
        return Ok(());
    };
    let Ok((address, secret)) = resolve(&mount) else { return Ok(()) };
    match Peer::new(&address, &secret).reach(FIRST_NODE_WAIT) {
        Err(Status::UNREACHABLE) => Err(Failure(format!(
            "{}: the first node, {address}, does not answer, so what this mount has not written \
             yet cannot be written: start that node, or leave those bytes behind: \
             nuri fs umount --force",
            point.display()
        ))),
        _ => Ok(()),
    }
}

/// What a mount says of itself, or of a file.
pub(super) fn attribute(path: &Path, name: &str) -> Result<String, Failure> {
    let mut buf = vec![0; 64 << 10];
    let read = rustix::fs::getxattr(path, name, &mut buf);
    let len = read.map_err(|e| match e {
        rustix::io::Errno::NOENT => Failure(format!("{} does not exist", path.display())),
        _ => Failure(format!("{} is not on a mounted space", path.display())),
    })?;
    Ok(String::from_utf8_lossy(&buf[..len]).into_owned())
}

fn layout_get(path: &Path, json: bool) -> Result<(), Failure> {
    let text = attribute(path, LAYOUT_ATTRIBUTE)?;
    if !json {
        println!("{text}");
        return Ok(());
    }
    print_json(&fields(&text))
}

/// What an attribute of a mount shows: `key=value`, apart by spaces.
pub(super) fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.split_whitespace().filter_map(|w| w.split_once('=')).collect()
}

fn layout_set(
    path: &Path,
    chunk_size: Option<u64>,
    width: Option<u16>,
    shape: Option<Shape>,
) -> Result<(), Failure> {
    if chunk_size.is_none() && width.is_none() && shape.is_none() {
        return Err(Failure("say what to set: --chunk-size, --width or --shape".into()));
    }
    let old = attribute(path, LAYOUT_ATTRIBUTE)?;
    let field = |key: &str| {
        let found = old.split_whitespace().find_map(|w| w.strip_prefix(key));
        found.and_then(|v| v.strip_prefix('=')).unwrap_or_default().to_string()
    };
    let shape = shape.map_or_else(|| field("shape"), |s| s.to_string());
    let size = chunk_size.map_or_else(|| field("chunk_size"), |n| n.to_string());
    let bytes: u64 = size.parse().map_err(at("the chunk size"))?;
    let small = u32::try_from(bytes).unwrap_or(u32::MAX);
    nuri_proto::layout::ChunkSize::try_from(small).map_err(Failure::new)?;
    let width = width.map_or_else(|| field("width"), |n| n.to_string());
    let text = format!("shape={shape} chunk_size={size} width={width}");
    let set = rustix::fs::setxattr(path, LAYOUT_ATTRIBUTE, text.as_bytes(), XattrFlags::empty());
    set.map_err(|e| match e {
        rustix::io::Errno::NOTDIR => {
            let path = path.display();
            Failure(format!("{path} is a file: its layout was fixed when it was made"))
        }
        rustix::io::Errno::INVAL => {
            Failure(format!("{shape} needs more targets than the space has: nuri target list"))
        }
        e => Failure(format!("{} refuses the layout: {e}", path.display())),
    })
}

#[derive(Serialize)]
struct DfRow {
    target: String,
    size: u64,
    used: u64,
    free: u64,
}

fn df(args: &Df) -> Result<(), Failure> {
    let rows = match view_of(args)? {
        // It is stopped, or does not answer.
        Some(view) if view.nodes.is_empty() => {
            return Err(Failure(view.health.sentences.join("; ")));
        }
        Some(view) => {
            let row = |t: &crate::show::TargetView| DfRow {
                target: t.path.clone(),
                size: t.size,
                used: t.used,
                free: t.size.saturating_sub(t.used),
            };
            view.targets.iter().map(row).collect()
        }
        None => {
            let name = args.space.display().to_string();
            let s = rustix::fs::statvfs(&args.space).map_err(at(&name))?;
            let (size, free) = (s.f_blocks * s.f_frsize, s.f_bavail * s.f_frsize);
            vec![DfRow { target: name, size, used: size - free, free }]
        }
    };
    if args.json {
        return print_json(&rows);
    }
    for r in &rows {
        let (size, used, free) = (human(r.size), human(r.used), human(r.free));
        println!("{size:>12} {used:>12} used {free:>12} free  {}", r.target);
    }
    Ok(())
}

/// Of a space that is named by its directory, that of a node, or an address; none of a path on a
/// mount.
fn view_of(args: &Df) -> Result<Option<StatusView>, Failure> {
    let is_directory = [SPACE, NODE].iter().any(|file| args.space.join(file).exists());
    if is_directory {
        return status::fetch(&args.space).map(Some);
    }
    let name = args.space.to_string_lossy();
    if args.space.exists() || !name.contains(':') {
        return Ok(None);
    }
    status::fetch_at(&name, args.token_file.as_deref()).map(Some)
}
