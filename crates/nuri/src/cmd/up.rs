//! `nuri up`: makes a space at first, starts it, waits until it serves.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nuri_fuse::mount::{check, is_mounted, make_point};
use nuri_node::directory::{META_LOG, NODE, NodeSettings, load_json, save_json};
use nuri_node::joining;
use nuri_node::metadata_copy::restore::newest;
use nuri_node::targets::{say_it, sizes_of};
use nuri_proto::id::NodeId;
use nuri_proto::layout::Shape;
use nuri_proto::map::TargetState;
use nuri_target::target::is_made;
use nuri_volume::Cluster;

use super::node::NEEDS_WORD;
use super::status;
use crate::cli::Up;
use crate::show::human;
use crate::space::{Role, Settings, Space};
use crate::{Failure, at, logs, supervisor};

/// Where a space listens when nobody said where.
const LOOPBACK: &str = "127.0.0.1:0";
const START_WAIT: Duration = Duration::from_secs(20);

pub(crate) fn run(args: Up) -> Result<ExitCode, Failure> {
    let dir = std::path::absolute(&args.dir).map_err(at(args.dir.display()))?;
    let space = Space::at(&dir);
    let started = Instant::now();
    let mut settings = match space.settings()? {
        Some(known) => again(&space, known, &args)?,
        None => {
            let mut settings = plan(&space, &args)?;
            if !args.create {
                tell_plan(&space, &settings);
                return Ok(ExitCode::from(NEEDS_WORD));
            }
            if let Some(point) = &settings.mount {
                settings.made_mount = make_point(point).map_err(Failure::new)?;
            }
            space.prepare()?;
            settings
        }
    };
    space.protect()?;
    space.give_mounts_a_token()?;
    (settings.suid, settings.dev) = (settings.suid || args.suid, settings.dev || args.dev);
    if let Some(point) = &settings.mount
        && space.running(Role::Mount).is_none()
    {
        settings.made_mount |= make_point(point).map_err(Failure::new)?;
    }
    settings.creating = args.create;
    let lengths = LogLengths::of(&space, &settings);
    if args.create {
        settings.sizes = sizes(&settings)?;
    }
    space.save(&settings)?;
    let outcome = start(&space, &settings, &lengths);
    // Whatever is missing later is not made anew.
    settings.creating = false;
    space.save(&settings)?;
    outcome?;
    report(&space, &settings, started.elapsed()).map(|()| ExitCode::SUCCESS)
}

fn start(space: &Space, settings: &Settings, lengths: &LogLengths) -> Result<(), Failure> {
    if let Some(point) = &settings.mount
        && space.running(Role::Mount).is_none()
    {
        check_mount_point(point)?;
    }
    refuse_lost_metadata(space, settings)?;
    let _ = std::fs::remove_file(space.stop_path());
    if space.running(Role::Supervisor).is_none() {
        supervisor::start(space, settings)?;
    } else if settings.creating {
        // A node makes its targets when it starts.
        let lacks = |targets: &Vec<PathBuf>| !targets.iter().all(|path| is_made(path));
        for (n, _) in settings.nodes.iter().enumerate().filter(|(_, targets)| lacks(targets)) {
            supervisor::renew(space, Role::Node(n))?;
        }
    }
    wait(space, settings, lengths)
}

/// How large the targets of each node become.
fn sizes(settings: &Settings) -> Result<Vec<Vec<u64>>, Failure> {
    let all: Vec<_> = settings.nodes.iter().flatten().cloned().collect();
    let said = Some(settings.target_size).filter(|size| *size > 0);
    let mut sizes = sizes_of(&all, said)?.into_iter();
    Ok(settings.nodes.iter().map(|own| sizes.by_ref().take(own.len()).collect()).collect())
}

/// What a start would make, where it was not told to.
fn tell_plan(space: &Space, settings: &Settings) {
    let all: Vec<_> = settings.nodes.iter().flatten().map(|p| p.display().to_string()).collect();
    let (dir, count, shape) = (space.dir.display(), all.len(), settings.shape);
    let paths = all.join(", ");
    eprintln!(
        "nuri: there is no space in {dir}: this would make one there, with {count} targets \
         ({paths}), files kept as {shape}. If a disk should be mounted there, mount it; {}",
        say_it()
    );
}

/// A dead mount is cleared by the supervisor; anything else in the way is told.
fn check_mount_point(point: &Path) -> Result<(), Failure> {
    match check(point) {
        Err(nuri_fuse::MountError::Stale(_)) | Ok(()) => Ok(()),
        Err(error) => Err(Failure::new(error)),
    }
}

/// A first node that lost its metadata, beside a copy of it, would begin an empty space.
fn refuse_lost_metadata(space: &Space, settings: &Settings) -> Result<(), Failure> {
    let others = (1..settings.nodes.len()).map(|n| space.node_dir(n)).filter(|dir| dir.exists());
    match newest(&others.collect::<Vec<_>>()) {
        Ok(copy) if !space.node_dir(0).join(META_LOG).exists() => {
            let (copy, dir) = (copy.path.display(), space.dir.display());
            Err(Failure(format!(
                "the metadata is lost, a copy is in {copy}; restore it: \
                 nuri doctor --restore-metadata --dir {dir}"
            )))
        }
        _ => Ok(()),
    }
}

/// Which raw disks are given away may change at any time. A node learns it when it starts.
fn set_export_disks(space: &Space, known: &mut Settings, args: &Up) -> Result<(), Failure> {
    if args.export_disks.is_none() || args.export_disks == known.export_disks {
        return Ok(());
    }
    known.export_disks.clone_from(&args.export_disks);
    space.save(known)?;
    supervisor::renew(space, Role::Node(0))
}

/// A space that exists: what is said now must fit what was said at first.
fn again(space: &Space, mut known: Settings, args: &Up) -> Result<Settings, Failure> {
    let dir = space.dir.display();
    let have: usize = known.nodes.iter().map(Vec::len).sum();
    if let Some(n) = args.targets.filter(|n| usize::from(*n) != have) {
        return Err(Failure(format!("the space in {dir} has {have} targets, not {n}")));
    }
    if let Some(n) = args.nodes.filter(|n| usize::from(*n) != known.nodes.len()) {
        let have = known.nodes.len();
        return Err(Failure(format!("the space in {dir} has {have} nodes, not {n}")));
    }
    if let Some(listen) = args.listen.as_ref().filter(|l| **l != known.listen) {
        move_to(space, &known.listen, listen)?;
        known.listen = listen.clone();
        space.save(&known)?;
    }
    if let Some(shape) = args.shape.filter(|s| *s != known.shape) {
        let was = known.shape;
        return Err(Failure(format!(
            "the space in {dir} keeps files as {was}; for new files from now on: \
             nuri space set --shape {shape} --dir {dir}; for those of a directory: \
             nuri fs layout set DIRECTORY --shape {shape}"
        )));
    }
    if let Some(placement) = args.placement.filter(|p| *p != known.placement) {
        if space.running(Role::Supervisor).is_some() {
            let was = known.placement;
            return Err(Failure(format!(
                "the space runs and places groups {was}; stop it first: nuri down --dir {dir}"
            )));
        }
        // Groups that are there stay as they are.
        known.placement = placement;
        space.save(&known)?;
    }
    set_export_disks(space, &mut known, args)?;
    for path in &args.target {
        let path = std::path::absolute(path).map_err(at(path.display()))?;
        if !known.nodes.iter().flatten().any(|t| *t == path) {
            let path = path.display();
            return Err(Failure(format!("{path} is no target of the space in {dir}")));
        }
    }
    if let Some(point) = &args.mount {
        let point = std::path::absolute(point).map_err(at(point.display()))?;
        if known.mount.as_ref() != Some(&point) {
            if space.running(Role::Mount).is_some() {
                let old = known.mount.unwrap_or_default();
                let old = old.display();
                let text = format!("the space is mounted at {old}; run: nuri down --dir {dir}");
                return Err(Failure(text));
            }
            if space.running(Role::Supervisor).is_some() {
                let point = point.display();
                let text = format!("the space runs already; run: nuri fs mount {dir} {point}");
                return Err(Failure(text));
            }
            (known.mount, known.made_mount) = (Some(point), false);
            space.save(&known)?;
        }
    }
    Ok(known)
}

/// The first node listens elsewhere from now on.
fn move_to(space: &Space, was: &str, listen: &str) -> Result<(), Failure> {
    if space.address().is_err() {
        // It never came up; maybe the address was the reason.
        return Ok(());
    }
    if space.running(Role::Supervisor).is_some() {
        let dir = space.dir.display();
        return Err(Failure(format!(
            "the space in {dir} was made to listen on {was}, not {listen}; to move it, stop it \
             first: nuri down --dir {dir}"
        )));
    }
    let path = space.node_dir(0).join(NODE);
    let node: Option<NodeSettings> = load_json(&path)?;
    let Some(node) = node else { return Ok(()) };
    joining::refuse_copy(&space.dir, &node, &space.secret()?)?;
    save_json(&path, &NodeSettings { address: Some(listen.into()), ..node })?;
    println!("moved    the first node listens on {listen}; tell the other machines, once each:");
    println!("         nuri node run --dir DIR --join {listen}; nuri fs mount {listen} MOUNTPOINT");
    Ok(())
}

/// The settings of a new space. Nothing is made before all that was asked for is known to be
/// possible.
fn plan(space: &Space, args: &Up) -> Result<Settings, Failure> {
    let dir = &space.dir;
    if dir.exists() {
        let mut entries = std::fs::read_dir(dir).map_err(at(dir.display()))?;
        if entries.next().is_some() {
            let dir = dir.display();
            return Err(Failure(format!("{dir} is not empty and holds no space; choose another")));
        }
    }
    let absolute = |p: &PathBuf| std::path::absolute(p).map_err(at(p.display()));
    let mount = args.mount.as_ref().map(absolute).transpose()?;
    if let Some(point) = mount.as_ref().filter(|point| point.symlink_metadata().is_ok()) {
        check(point).map_err(Failure::new)?;
    }
    let paths = args.target.iter().map(absolute).collect::<Result<Vec<_>, _>>()?;
    let nodes = args.nodes.unwrap_or(1);
    let plan = space.plan(args.targets, &paths, nodes);
    let count = plan.iter().map(Vec::len).sum::<usize>() as u64;
    if plan.iter().any(Vec::is_empty) {
        return Err(Failure(format!("{nodes} nodes need at least {nodes} targets, not {count}")));
    }
    // More targets may join.
    let shape = args.shape.unwrap_or_else(|| Shape::best_for(count as usize));
    let listen = args.listen.clone().unwrap_or(LOOPBACK.into());
    let (placement, target_size) =
        (args.placement.unwrap_or_default(), args.target_size.unwrap_or(0));
    let (format, nodes, creating, sizes) = (1, plan, false, Vec::new());
    let (made_mount, suid, dev) = (false, args.suid, args.dev);
    Ok(Settings {
        format,
        listen,
        mount,
        made_mount,
        suid,
        dev,
        nodes,
        target_size,
        creating,
        sizes,
        shape,
        placement,
        export_disks: args.export_disks.clone(),
    })
}

/// Waits until every node serves, with the targets that it finds, and the mount is there.
fn wait(space: &Space, settings: &Settings, lengths: &LogLengths) -> Result<(), Failure> {
    let start = Instant::now();
    loop {
        let serve = serving(space, settings);
        let are_nodes_up = serve.is_ok();
        let missing = match serve {
            Err(Failure(text)) => text,
            Ok(()) => match &settings.mount {
                // One that lost its daemon is still to be replaced.
                Some(point) if !is_mounted(point) || supervisor::has_no_daemon(point) => {
                    "the mount is not there".into()
                }
                _ => return Ok(()),
            },
        };
        if start.elapsed() > START_WAIT {
            return Err(Failure(format!(
                "the space did not start: {missing}{}",
                last_words(space)
            )));
        }
        if start.elapsed() > Duration::from_secs(1)
            && let Some(words) = lengths.fatal_words(space, are_nodes_up)
        {
            let _ = std::fs::write(space.stop_path(), "");
            let _ = supervisor::end_all(space, settings, false);
            return Err(Failure(words));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How long the logs of the space's processes were when the start began.
struct LogLengths(Vec<(Role, u64)>);

impl LogLengths {
    fn of(space: &Space, settings: &Settings) -> LogLengths {
        let length = |role| std::fs::metadata(space.log_path(role)).map_or(0, |log| log.len());
        let roles = supervisor::roles(settings).into_iter();
        LogLengths(roles.map(|role| (role, length(role))).collect())
    }

    /// The last line of a process that could not start, where one is not running. A mount that
    /// ended because a node did says nothing of the cause.
    fn fatal_words(&self, space: &Space, are_nodes_up: bool) -> Option<String> {
        let may_be_why = |role: Role| role != Role::Mount || are_nodes_up;
        let mut roles = self.0.iter().filter(|(role, _)| may_be_why(*role));
        roles.find_map(|(role, before)| {
            let has_ended = space.running(*role).is_none();
            has_ended.then(|| logs::last_error(&space.log_path(*role), *before))?
        })
    }
}

/// Whether all nodes are up and have said of their targets how they are.
fn serving(space: &Space, settings: &Settings) -> Result<(), Failure> {
    let state = Cluster::connect(&space.address()?, &space.secret()?)
        .map_err(Failure::new)?
        .state()
        .map_err(Failure::new)?;
    for (n, targets) in settings.nodes.iter().enumerate() {
        let node: Option<NodeSettings> = load_json(&space.node_dir(n).join(NODE))?;
        let id = node.and_then(|node| node.id).map(NodeId);
        // Another process of that number belongs to a copy of this directory, or has ended.
        let own = space.running(Role::Node(n));
        let is_own = |node: &&nuri_proto::map::Node| node.up && Some(node.pid) == own;
        if id.and_then(|id| state.map.node(id)).filter(is_own).is_none() {
            return Err(Failure(format!("node{n} is not up")));
        }
        for path in targets.iter().map(|path| path.display().to_string()) {
            let mut known = state.map.targets.iter().filter(|t| t.path == path).peekable();
            // One that was removed is known no longer. One that is to be made is failed before.
            let waits = |state| match state {
                TargetState::Up => false,
                TargetState::Down => true,
                TargetState::Failed => settings.creating,
            };
            let is_awaited = known.peek().is_some() && known.all(|t| waits(t.state));
            if is_awaited {
                return Err(Failure(format!("the target {path} is not up")));
            }
        }
    }
    Ok(())
}

fn last_words(space: &Space) -> String {
    format!("; see the logs in {}", space.dir.join("log").display())
}

fn report(space: &Space, settings: &Settings, took: Duration) -> Result<(), Failure> {
    let cluster = Cluster::connect(&space.address()?, &space.secret()?).map_err(Failure::new)?;
    let dir = space.dir.display();
    let view = status::view_of(&dir.to_string(), &cluster)?;
    let (size, free) = (human(view.capacity.size), human(view.capacity.free));
    let (nodes, targets) = (view.nodes.len(), view.targets.len());
    println!(
        "space    {dir}: {targets} targets on {nodes} node process(es), {:.1} s",
        took.as_secs_f64()
    );
    let shape = settings.shape;
    println!("capacity {size}, {free} free; shape {shape} over {targets} targets, chunk 1 MiB");
    match &settings.mount {
        Some(point) => println!("mounted  {}", point.display()),
        None => println!("mount it nuri fs mount {dir} MOUNTPOINT"),
    }
    view.health.sentences.iter().for_each(|sentence| println!("mind     {sentence}"));
    println!("status   nuri status --dir {dir}");
    println!("stop     nuri down --dir {dir}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A node that fails in the middle of its start takes its connections along.
    #[test]
    fn a_mount_that_ended_with_a_node_does_not_say_why() {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::at(dir.path());
        ["run", "log"].iter().for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
        let write = |role, lines: &[&str]| {
            let line = |said: &&str| format!("2026-11-26T05:12:03Z ERROR {role}[7] {said}\n");
            fs::write(space.log_path(role), lines.iter().map(line).collect::<String>()).unwrap();
        };
        let (node, mount) = (Role::Node(0), Role::Mount);
        write(node, &["of last week"]);
        let length = fs::metadata(space.log_path(node)).unwrap().len();
        let lengths = LogLengths(vec![(node, length), (mount, 0)]);
        write(mount, &["the connection was reset"]);
        assert_eq!(lengths.fatal_words(&space, false), None);
        assert_eq!(lengths.fatal_words(&space, true).unwrap(), "the connection was reset");
        write(node, &["of last week", "no superblocks"]);
        // It is just started again.
        let runs = space.enter(node).unwrap();
        assert_eq!(lengths.fatal_words(&space, false), None);
        drop(runs);
        // A process that another test starts just now has a copy of the lock until it runs.
        let said = (0..500).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            lengths.fatal_words(&space, false)
        });
        assert_eq!(said.unwrap(), "no superblocks");
    }
}
