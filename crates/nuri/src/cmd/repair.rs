//! `nuri target replace` and `nuri target resync`.

use nuri_proto::Status;
use nuri_proto::id::TargetId;
use nuri_proto::layout::Shape;
use nuri_proto::map::{Group, Map, Pace, Standing, TargetState};
use nuri_proto::op::cluster::{ResyncSet, TargetReplace};
use nuri_volume::Cluster;

use crate::show::human;
use crate::space::Space;
use crate::{Failure, at, cli};

pub(super) fn connect(space: &Space) -> Result<Cluster, Failure> {
    let (address, secret) = space.way()?;
    Cluster::connect(&address, &secret).map_err(Failure::new)
}

pub(crate) fn replace(args: &cli::TargetReplace) -> Result<(), Failure> {
    let space = Space::at(&args.dir);
    let cluster = connect(&space)?;
    let (old, new) = (TargetId(args.old), TargetId(args.new));
    check(&cluster.map(), old, new)?;
    if !args.force {
        check_gone(&cluster.map(), old)?;
    }
    cluster.ask(&TargetReplace { old, new }).map_err(|status| match status {
        Status::BUSY => Failure(format!(
            "target {old} holds data that too few others hold now; \
             wait until the other targets are up to date: nuri status"
        )),
        Status::EXIST => Failure(format!(
            "targets {old} and {new} hold parts of the same stripes; \
             replace {old} by a target that has none of its groups, best a new one"
        )),
        status => Failure(format!("the authority refuses: {status}")),
    })?;
    println!("target {new} takes the place of target {old}; progress: nuri status");
    tell_of_waiting(&connect(&space)?.map(), old, new);
    Ok(())
}

/// Groups that need the old target keep it for now.
fn tell_of_waiting(map: &Map, old: TargetId, new: TargetId) {
    let is_old = |g: &&Group| g.shape.is_redundant() && g.place(old).is_some();
    let waiting = map.groups.iter().filter(is_old).count();
    if waiting > 0 {
        println!(
            "{waiting} groups still need target {old}, since too few other members are up to \
             date; once they are: nuri target replace {old} {new}"
        );
    }
}

fn check(map: &Map, old: TargetId, new: TargetId) -> Result<(), Failure> {
    let find = |id| {
        let none = || Failure(format!("there is no target {id}: nuri target list"));
        map.target(id).ok_or_else(none)
    };
    let (from, to) = (find(old)?, find(new)?);
    if old == new {
        return Err(Failure(format!("{old} is the same target")));
    }
    if to.state != TargetState::Up {
        return Err(Failure(format!("target {new} is not up: start its node first")));
    }
    if to.size - to.used.min(to.size) < from.used {
        let (used, free) = (human(from.used), human(to.size - to.used.min(to.size)));
        return Err(Failure(format!(
            "target {old} holds {used} and target {new} has room for {free}; choose a larger one"
        )));
    }
    let own = |g: &&Group| g.place(old).is_some();
    if !map.groups.iter().filter(own).any(|g| g.shape != Shape::Stripe) {
        return Err(Failure(format!(
            "target {old} has no redundant data: files of shape stripe cannot be rebuilt elsewhere"
        )));
    }
    Ok(())
}

/// Who serves and is up to date is emptied, not replaced: so nothing loses redundancy.
fn check_gone(map: &Map, old: TargetId) -> Result<(), Failure> {
    let serves = map.target(old).is_some_and(|t| t.state == TargetState::Up);
    let own = |g: &Group| g.shape.is_redundant() && g.place(old).is_some();
    let is_live =
        |g: &Group| g.members.iter().any(|m| m.target == old && m.standing == Standing::Live);
    if serves && map.groups.iter().any(|g| own(g) && is_live(g)) {
        return Err(Failure(format!(
            "target {old} serves: nuri target drain {old} moves what it holds without a loss of \
             redundancy; add --force to give it up at once"
        )));
    }
    Ok(())
}

pub(crate) fn set_pace(args: &cli::TargetResync) -> Result<(), Failure> {
    let pace = match (&args.pace.rate, args.pace.pause) {
        (Some(0), _) => return Err(Failure("a rate of 0 never ends: use --pause".into())),
        (Some(rate), _) => Pace::Rate(*rate),
        (None, true) => Pace::Paused,
        (None, false) => Pace::Gentle,
    };
    let cluster = connect(&Space::at(&args.dir))?;
    cluster.ask(&ResyncSet { pace }).map_err(at("the authority refuses"))
}
