//! `nuri target drain`, `rebalance` and `remove`: places of groups move to other targets, and
//! targets that have none leave.
//!
//! The work is done by this process and shown as it goes. Interrupted, it is begun again: what has
//! moved stays moved.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use nuri_cluster::moving::{Step, empty, spread};
use nuri_proto::Status;
use nuri_proto::id::TargetId;
use nuri_proto::layout::Shape;
use nuri_proto::map::{Map, Standing, Target, TargetState};
use nuri_proto::op::cluster::{MemberMove, TargetRemove, TargetRetire};
use nuri_volume::group::Move;
use nuri_volume::{Cluster, DataPlane};

use crate::show::human;
use crate::space::Space;
use crate::{Failure, at, cli};

/// How long the end of one move may take: what was written while it was copied is brought after.
const SETTLING: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(200);
/// How long members of a group that do not hold all its data are waited for: a node that is slow
/// for a moment, or starts again, must not end a move of hours.
const RETURN: Duration = Duration::from_secs(60);
/// An attempt that takes so long copied something.
const PROGRESS: Duration = Duration::from_secs(5);

/// Moves are made one by one, so that at most one group at a time has a member catching up.
struct Mover {
    cluster: Cluster,
    data: DataPlane,
}

impl Mover {
    fn connect(space: &Space) -> Result<Mover, Failure> {
        let cluster = Cluster::connect(&space.address()?, &space.secret()?);
        let cluster = cluster.map_err(Failure::new)?;
        Ok(Mover { data: DataPlane::new(&cluster), cluster })
    }

    fn map(&self) -> Result<Map, Failure> {
        self.cluster.refresh().map_err(at("the authority does not answer"))?;
        Ok(self.cluster.map())
    }

    fn run(&self, steps: &[Step]) -> Result<(), Failure> {
        for (done, step) in steps.iter().enumerate() {
            let name = format!(
                "{}/{} group {}: target {} to {}",
                done + 1,
                steps.len(),
                step.group,
                step.from,
                step.to
            );
            self.make_in_time(step, &name).map_err(|status| match status {
                Status::BUSY => Failure(format!(
                    "{name}: the others of the group do not hold all its data for {RETURN:?}; run \
                     the command again when they are back (nuri status)"
                )),
                status => Failure(format!("{name}: {status}; run the command again to go on")),
            })?;
        }
        Ok(())
    }

    /// As `make`, also where the others of the group come back within a while.
    fn make_in_time(&self, step: &Step, name: &str) -> Result<(), Status> {
        // Since when nothing could be copied.
        let mut since = None;
        loop {
            let began = Instant::now();
            let outcome = self.make(step, name);
            if began.elapsed() > PROGRESS {
                since = None;
            }
            match outcome {
                Err(Status::BUSY) if since.is_none_or(|at: Instant| at.elapsed() < RETURN) => {}
                outcome => return outcome,
            }
            if since.is_none() {
                println!("{name}: waits until the others of the group hold all its data again");
            }
            since.get_or_insert_with(Instant::now);
            std::thread::sleep(LOOK);
            // An authority that does not answer now is asked again.
            let _ = self.cluster.refresh();
        }
    }

    fn make(&self, step: &Step, name: &str) -> Result<(), Status> {
        let Step { group, from, to } = *step;
        let groups = self.data.groups();
        let is_terminal = std::io::stdout().is_terminal();
        let mut stripes = 0;
        let since = groups.copy_place(Move { group, from, to }, |done, all| {
            stripes = all;
            if is_terminal {
                print!("\r{name}: {done} of {all} stripes ");
                let _ = std::io::stdout().flush();
            }
        })?;
        self.cluster.ask(&MemberMove { group, from, to, since })?;
        self.wait_live(step)?;
        println!("{}{name}: {stripes} stripes", if is_terminal { "\r" } else { "" });
        Ok(())
    }

    /// Takes away what a target holds of groups in which it has no place: those that it gave up
    /// now or when this was interrupted, and those of which it only got a copy. Returns whether
    /// that is all gone, and says why not.
    fn clear(&self, target: TargetId) -> Result<bool, Failure> {
        let map = self.map()?;
        let is_up = map.target(target).is_some_and(|t| t.state == TargetState::Up);
        let mut left = 0;
        for group in map.groups.iter().filter(|g| g.shape.is_redundant()) {
            if group.place(target).is_some() {
                continue;
            }
            let outcome = if is_up {
                self.data.groups().clear_place(group.id, target)
            } else {
                Err(Status::UNREACHABLE)
            };
            match outcome {
                Ok(()) => {}
                Err(Status::BUSY) => left += 1,
                Err(Status::UNREACHABLE) => {
                    println!(
                        "target {target} does not answer: what it may still hold of groups that \
                         it left is taken away when the command runs again while it serves"
                    );
                    return Ok(false);
                }
                Err(status) => {
                    return Err(Failure(format!(
                        "target {target} keeps what it held of group {}: {status}; run the \
                         command again to go on",
                        group.id
                    )));
                }
            }
        }
        if left > 0 {
            println!(
                "target {target} keeps what it held of {left} groups until all their members are \
                 up to date (nuri status): run the command again then"
            );
        }
        Ok(left == 0)
    }

    fn wait_live(&self, step: &Step) -> Result<(), Status> {
        let start = Instant::now();
        loop {
            self.cluster.refresh()?;
            let group = self.cluster.group(step.group).ok_or(Status::NOENT)?;
            let member = group.members.iter().find(|m| m.target == step.to);
            if member.is_some_and(|m| m.standing == Standing::Live) {
                return Ok(());
            }
            if start.elapsed() > SETTLING {
                return Err(Status::RETRY);
            }
            std::thread::sleep(LOOK);
        }
    }
}

pub(crate) fn drain(args: &cli::TargetDrain) -> Result<(), Failure> {
    let mover = Mover::connect(&Space::at(&args.dir))?;
    let target = TargetId(args.target);
    let map = mover.map()?;
    if map.target(target).is_none() {
        return Err(Failure(format!("there is no target {target}: nuri target list")));
    }
    if args.undo {
        let undo = TargetRetire { target, retiring: false };
        mover.cluster.ask(&undo).map_err(at("the authority refuses"))?;
        println!("new files use target {target} again; nuri target rebalance gives it its share");
        return Ok(());
    }
    let steps = empty(&map, target).map_err(|group| {
        Failure(format!(
            "no other target can take target {target}'s place in group {group}: every one that is \
             up is in it already, or on a node that is; add a target first"
        ))
    })?;
    let retire = TargetRetire { target, retiring: true };
    mover.cluster.ask(&retire).map_err(at("the authority refuses"))?;
    mover.run(&steps)?;
    println!("target {target} has no place in a redundant group any more");
    let is_clear = mover.clear(target)?;
    let left = mover.map()?.target(target).map_or(0, |t| t.used);
    if is_clear && left > 0 {
        println!(
            "it still holds {}: files of shape {} lie there; copy or remove them",
            human(left),
            Shape::Stripe
        );
    }
    Ok(())
}

pub(crate) fn remove(args: &cli::TargetRemove) -> Result<(), Failure> {
    let cluster = super::repair::connect(&Space::at(&args.dir))?;
    let target = TargetId(args.target);
    let map = cluster.map();
    let Some(known) = map.target(target) else {
        return Err(Failure(format!("there is no target {target}: nuri target list")));
    };
    // What has places or serves is refused below, whatever it holds.
    let has_places =
        |g: &nuri_proto::map::Group| g.shape.is_redundant() && g.place(target).is_some();
    let may_go = known.state != TargetState::Up && !map.groups.iter().any(has_places);
    if may_go && known.used > 0 && !args.force {
        return Err(Failure(format!(
            "target {target} held {} when it was last heard of: others have its share of mirrors \
             and parity by now, but files of shape {} that lay on it are lost with it; \
             add --force if that is meant",
            human(known.used),
            Shape::Stripe
        )));
    }
    cluster.ask(&TargetRemove { target }).map_err(|status| match status {
        Status::BUSY => Failure(format!(
            "target {target} serves: empty it first (nuri target drain {target}), then stop its \
             node or start it without the target"
        )),
        Status::NOTEMPTY => Failure(format!(
            "target {target} has places in groups: put another in its place \
             (nuri target replace {target} NEW), or start its node and drain it \
             (nuri target drain {target})"
        )),
        status => Failure(format!("the authority refuses: {status}")),
    })?;
    println!("target {target} is no part of the space any more");
    Ok(())
}

pub(crate) fn rebalance(args: &cli::TargetRebalance) -> Result<(), Failure> {
    let mover = Mover::connect(&Space::at(&args.dir))?;
    let map = mover.map()?;
    let steps = spread(&map);
    if steps.is_empty() {
        println!("every target has its share already");
    }
    mover.run(&steps)?;
    let gave = |t: TargetId| steps.iter().any(|step| step.from == t);
    let cleared = |t: &&Target| t.state == TargetState::Up || gave(t.id);
    map.targets.iter().filter(cleared).try_for_each(|t| mover.clear(t.id).map(drop))
}
