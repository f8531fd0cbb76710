//! Keeps a space's processes running: starts them, restarts them with back-off, remounts.
//!
//! A process lives as long as it holds a lock on its file in `run/`; which process started it does
//! not matter. So a new supervisor adopts the processes that an old one started. While `run/stop`
//! exists nothing is restarted, and the supervisor ends when nothing runs any more.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nuri_fuse::mount::{abort, is_dead, is_mounted};

use crate::listeners::Listeners;
use crate::space::{Role, Settings, Space};
use crate::{Failure, at, logs};

const TICK: Duration = Duration::from_millis(50);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A process that ran this long starts with a short pause again.
const STEADY: Duration = Duration::from_secs(10);
/// A killed process that is not gone by then waits for something in the kernel.
const DYING: Duration = Duration::from_millis(500);
const END_WAIT: Duration = Duration::from_secs(10);
const MOUNT_WAIT: Duration = Duration::from_secs(60);

struct Watched {
    started: Instant,
    pause: Duration,
    child: Option<Child>,
    dying: Option<Instant>,
}

/// Says to a process what it is in its space.
pub(crate) const ROLE: &str = "NURI_ROLE";

/// Runs in the foreground of the supervisor's process.
pub(crate) fn run(space: &Space) -> Result<(), Failure> {
    let settings = space.existing()?;
    let _lock = space.enter(Role::Supervisor)?;
    // Its own session: a closed terminal does not end the space.
    let _ = rustix::process::setsid();
    let mut watched: HashMap<String, Watched> = HashMap::new();
    let mut listeners = Listeners::default();
    let roles = roles(&settings);
    loop {
        let stopping = space.stop_path().exists();
        let mut alive = false;
        for role in &roles {
            let w = watched.entry(role.to_string()).or_insert(Watched {
                started: Instant::now() - STEADY,
                pause: FIRST_PAUSE,
                child: None,
                dying: None,
            });
            if let Some(child) = &mut w.child
                && let Ok(Some(how)) = child.try_wait()
            {
                tell_of_end(*role, child.id(), how, stopping);
                w.child = None;
            }
            if *role == Role::Mount {
                end_dying_mount(space, &settings, w);
            }
            let runs = w.child.is_some() || space.running(*role).is_some();
            alive |= runs;
            if let (false, Role::Node(node)) = (runs, *role) {
                listeners.turn_away(node);
            }
            if !runs && !stopping && w.started.elapsed() >= w.pause && ready(space, *role) {
                restart(space, &settings, (*role, &mut listeners), w);
            }
        }
        if stopping && !alive {
            return Ok(());
        }
        std::thread::sleep(TICK);
    }
}

fn tell_of_end(role: Role, pid: u32, how: ExitStatus, is_told_to: bool) {
    match is_told_to || how.success() {
        true => tracing::info!("{role}, process {pid}, has ended: {how}"),
        false => tracing::error!("{role}, process {pid}, has ended: {how}"),
    }
}

/// A mount daemon that was killed may not come to its end: a thread of it waits in the kernel, in
/// an invalidation, for a page whose request only the daemon could answer. Ending the mount
/// answers it.
fn end_dying_mount(space: &Space, settings: &Settings, w: &mut Watched) {
    if !space.running(Role::Mount).is_some_and(is_zombie) {
        w.dying = None;
    } else if w.dying.get_or_insert_with(Instant::now).elapsed() > DYING
        && let Some(point) = &settings.mount
    {
        let _ = abort(point);
    }
}

/// Whether the process was killed and some thread of it is still there.
fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

/// Nodes in their order, then the mount.
pub(crate) fn roles(settings: &Settings) -> Vec<Role> {
    let mut roles: Vec<_> = (0..settings.nodes.len()).map(Role::Node).collect();
    roles.extend(settings.mount.as_ref().map(|_| Role::Mount));
    roles
}

/// Whether nothing of the space runs, as after `nuri down`.
pub(crate) fn is_stopped(space: &Space) -> bool {
    let runs = |role| space.running(role).is_some();
    !runs(Role::Supervisor) && !runs(Role::Node(0))
}

/// Whether what the process connects to is there.
fn ready(space: &Space, role: Role) -> bool {
    match role {
        Role::Supervisor | Role::Node(0) => true,
        Role::Node(_) | Role::Mount => {
            space.running(Role::Node(0)).is_some() && space.address().is_ok_and(|a| reaches(&a))
        }
    }
}

fn reaches(address: &str) -> bool {
    let Ok(address) = address.parse() else { return true };
    std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
}

fn restart(
    space: &Space,
    settings: &Settings,
    (role, listeners): (Role, &mut Listeners),
    w: &mut Watched,
) {
    w.pause =
        if w.started.elapsed() >= STEADY { FIRST_PAUSE } else { (w.pause * 2).min(LONGEST_PAUSE) };
    w.started = Instant::now();
    // Whether targets may be made changes while it runs.
    let now = space.existing();
    match spawn(space, now.as_ref().unwrap_or(settings), role, listeners) {
        Ok(child) => w.child = Some(child),
        Err(Failure(text)) => tracing::warn!("{role}: {text}"),
    }
}

fn spawn(
    space: &Space,
    settings: &Settings,
    role: Role,
    listeners: &mut Listeners,
) -> Result<Child, Failure> {
    let mut command = own_command(&space.log_path(role))?;
    let mut socket = None;
    match role {
        Role::Supervisor => {
            command.arg("supervise").arg("--dir").arg(&space.dir);
        }
        Role::Node(n) => {
            node_arguments(space, settings, n, &mut command)?;
            let wanted = wanted_address(space, settings, n)?;
            if let Some(address) = listeners.address(n, &wanted) {
                command.arg("--listen").arg(address);
                socket = listeners.give(n, &mut command);
            } else {
                command.arg("--listen").arg(wanted);
            }
        }
        Role::Mount => {
            let Some(point) = &settings.mount else {
                return Err(Failure("no mount point is set".into()));
            };
            clear_dead(point);
            // It is started when the first node answers, and anew if that was too early.
            command.args(["fs", "mount", "--foreground", "--wait", "0"]);
            command.arg(&space.dir).arg(point);
            command.args(settings.suid.then_some("--suid")).args(settings.dev.then_some("--dev"));
        }
    }
    command.env("NURI_ROLE_LOCK", space.dir.join("run")).env(ROLE, role.to_string());
    let started = command.spawn().map_err(at(format!("cannot start the {role} process")));
    drop(socket);
    started
}

fn node_arguments(
    space: &Space,
    settings: &Settings,
    node: usize,
    command: &mut Command,
) -> Result<(), Failure> {
    command.args(["node", "run", "--dir"]).arg(space.node_dir(node));
    command.arg("--token-file").arg(space.token_path());
    if settings.creating {
        let sizes = settings.sizes.get(node).map_or(&[][..], Vec::as_slice);
        let sizes: Vec<_> = sizes.iter().map(u64::to_string).collect();
        command.arg("--create");
        if !sizes.is_empty() {
            command.arg("--target-sizes").arg(sizes.join(","));
        }
    }
    match node {
        0 => {
            command.arg("--shape").arg(settings.shape.to_string());
            command.arg("--placement").arg(settings.placement.to_string());
            if let Some(disks) = &settings.export_disks {
                command.arg("--export-disks").arg(disks);
            }
        }
        _ => _ = command.arg("--join").arg(space.address()?),
    }
    for target in &settings.nodes[node] {
        command.arg("--target").arg(target);
    }
    Ok(())
}

/// Where a node listens: where it did before; else the first node as it was said, others at a free
/// port of the first one's host.
fn wanted_address(space: &Space, settings: &Settings, node: usize) -> Result<String, Failure> {
    if let Some(before) = space.node_address(node)? {
        return Ok(before);
    }
    if node == 0 {
        return Ok(settings.listen.clone());
    }
    let first = space.address()?;
    let host = first.rsplit_once(':').map_or(first.as_str(), |(host, _)| host);
    Ok(format!("{host}:0"))
}

/// A command of this same program, its output in a log file.
fn own_command(log: &Path) -> Result<Command, Failure> {
    let out = logs::open(log)?;
    let err = out.try_clone().map_err(at("cannot open the log twice"))?;
    let mut command = nuri_io::program::again().map_err(at("cannot find nuri itself"))?;
    // Whatever directory it was started in may be unmounted or removed.
    command.stdin(Stdio::null()).stdout(out).stderr(err).current_dir("/");
    logs::pass_on(&mut command, log);
    Ok(command)
}

/// Starts a supervisor in the background.
pub(crate) fn start(space: &Space, settings: &Settings) -> Result<(), Failure> {
    spawn(space, settings, Role::Supervisor, &mut Listeners::default()).map(|_| ())
}

/// A mount whose daemon died is in the way of the next one, and of programs.
fn clear_dead(point: &Path) {
    if is_mounted(point) && has_no_daemon(point) {
        let _ = abort(point);
    }
}

/// Whether what is mounted there has lost its daemon.
pub(crate) fn has_no_daemon(point: &Path) -> bool {
    std::fs::metadata(point).is_err_and(|e| is_dead(&e))
}

/// Ends all processes of a space, the mount first; by force with SIGKILL at once.
/// `space.stop_path()` must exist.
pub(crate) fn end_all(space: &Space, settings: &Settings, force: bool) -> Result<(), Failure> {
    if !force {
        // The mount daemon ends by itself once it wrote everything out.
        wait_ended(space, Role::Mount, MOUNT_WAIT)?;
    }
    let start = Instant::now();
    loop {
        // Again and again: one may have been started a moment before the supervisor was to stop.
        for role in roles(settings).into_iter().rev() {
            end(space, role, force)?;
        }
        if let Some(point) = settings.mount.as_ref().filter(|_| force) {
            // One that was killed as it came up.
            clear_dead(point);
        }
        match wait_ended(space, Role::Supervisor, TICK * 4) {
            Err(_) if start.elapsed() < END_WAIT => {}
            outcome => return outcome,
        }
    }
}

/// Ends a role's process; the supervisor starts it anew, with the settings of then.
pub(crate) fn renew(space: &Space, role: Role) -> Result<(), Failure> {
    let Some(pid) = space.running(role) else { return Ok(()) };
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let start = Instant::now();
    while space.running(role) == Some(pid) {
        if start.elapsed() > END_WAIT {
            return Err(Failure(format!("the {role} process {pid} does not end")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn end(space: &Space, role: Role, force: bool) -> Result<(), Failure> {
    let signals = [rustix::process::Signal::TERM, rustix::process::Signal::KILL];
    // A process that stands still takes the second one only.
    for signal in &signals[usize::from(force)..] {
        let Some(pid) = space.running(role) else { return Ok(()) };
        if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
            let _ = rustix::process::kill_process(pid, *signal);
        }
        if wait_ended(space, role, END_WAIT).is_ok() {
            return Ok(());
        }
    }
    Err(Failure(format!("the {role} process does not end")))
}

fn wait_ended(space: &Space, role: Role, timeout: Duration) -> Result<(), Failure> {
    let start = Instant::now();
    while let Some(pid) = space.running(role) {
        if start.elapsed() > timeout {
            return Err(Failure(format!("the {role} process {pid} is still running")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Takes the lock of the role that the supervisor gave this process, if it did.
pub(crate) fn enter_role() -> Result<Option<nuri_io::lock::ExclusiveLock>, Failure> {
    let (Some(run), Ok(role)) = (std::env::var_os("NURI_ROLE_LOCK"), std::env::var(ROLE)) else {
        return Ok(None);
    };
    let dir = Path::new(&run).parent().unwrap_or(Path::new("."));
    let role = match role.as_str() {
        "mount" => Role::Mount,
        "supervisor" => return Ok(None),
        other => match other.strip_prefix("node").and_then(|n| n.parse().ok()) {
            Some(n) => Role::Node(n),
            None => return Ok(None),
        },
    };
    Space::at(dir).enter(role).map(Some)
}
