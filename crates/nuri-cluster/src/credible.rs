//! Bounds on what nodes and mounts report of themselves. Pure.
//!
//! The reports are kept in memory, stored in the map and shown to people. So no reporter may say
//! more than fits, or values that nothing real would have.

use nuri_proto::Status;
use nuri_proto::limit::{MAX_NODES, MAX_TARGETS};
use nuri_proto::op::cluster::{Heartbeat, Join, MountReport};

/// Bytes of a program's version.
const LONGEST_VERSION: usize = 64;
/// Bytes of an address or a host's name, and of a path.
const LONGEST_NAME: usize = 255;
pub(crate) const LONGEST_PATH: usize = 4096;
/// Bytes of a target: more than any disk of today has, by far.
pub(crate) const LARGEST: u64 = 1 << 60;
/// A mount has one link, or two for a while, to each node.
const MOST_LINKS: usize = 4 * MAX_NODES;
/// Mounts that are listed at once.
pub const MOST_MOUNTS: usize = 4096;
/// Bytes of mounts in one answer: it must fit a frame beside the map.
const LISTED: usize = 96 << 10;

fn check(is_credible: bool) -> Result<(), Status> {
    if is_credible { Ok(()) } else { Err(Status::INVAL) }
}

/// `HOST:PORT`, as others will be told it.
pub(crate) fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_plain = |c: char| c.is_ascii_graphic();
    let has_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    !host.is_empty() && text.len() <= LONGEST_NAME && host.chars().all(is_plain) && has_port
}

/// Whether a node may join so.
///
/// # Errors
/// [`Status::INVAL`]
pub fn join(join: &Join) -> Result<(), Status> {
    let is_target = |t: &nuri_proto::op::cluster::JoinTarget| {
        t.path.len() <= LONGEST_PATH && t.size <= LARGEST && t.used <= LARGEST
    };
    check(is_address(&join.address) && join.run.version.len() <= LONGEST_VERSION)?;
    check(join.targets.len() <= MAX_TARGETS && join.targets.iter().all(is_target))
}

/// Whether a node may report so.
///
/// # Errors
/// [`Status::INVAL`]
pub fn heartbeat(beat: &Heartbeat) -> Result<(), Status> {
    check(beat.targets.len() <= MAX_TARGETS && beat.resyncs.len() <= MAX_TARGETS)?;
    check(beat.targets.iter().all(|t| t.size <= LARGEST && t.used <= LARGEST))
}

/// Whether a mount may report so.
///
/// # Errors
/// [`Status::INVAL`]
pub fn mount(report: &MountReport) -> Result<(), Status> {
    check(report.host.len() <= LONGEST_NAME && report.mountpoint.len() <= LONGEST_PATH)?;
    check(report.links.len() <= MOST_LINKS)?;
    check(report.links.iter().all(|link| link.address.len() <= LONGEST_NAME))
}

/// As many of the reports as one answer holds.
pub fn listed(reports: Vec<MountReport>) -> Vec<MountReport> {
    let mut left = LISTED;
    let bytes = |report: &MountReport| {
        let links: usize = report.links.iter().map(|link| link.address.len() + 32).sum();
        report.host.len() + report.mountpoint.len() + links + 64
    };
    let fits = |report: &MountReport| {
        left = left.saturating_sub(bytes(report));
        left > 0
    };
    reports.into_iter().take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use nuri_proto::codec;
    use nuri_proto::id::{BootId, Epoch, Incarnation, NodeId, TargetId};
    use nuri_proto::limit::MAX_ARGS;
    use nuri_proto::map::{Run, TargetState};
    use nuri_proto::op::cluster::{JoinTarget, Link, MetaRole, Path, Scrub, TargetReport};

    use super::*;

    fn of(address: &str, targets: usize) -> Join {
        let target = |i: usize| JoinTarget {
            id: None,
            incarnation: Incarnation(i as u64),
            sequence: 1,
            boot: BootId(1),
            is_doubted: false,
            map_epoch: Epoch(0),
            path: "/t".into(),
            size: 1 << 40,
            used: 0,
        };
        Join {
            node: None,
            address: address.into(),
            pid: 1,
            serves_meta: MetaRole::None,
            run: Run::default(),
            instance: 1,
            machine: BootId(1),
            targets: (0..targets).map(target).collect(),
        }
    }

    #[test]
    fn addresses_are_a_host_and_a_port() {
        for good in ["10.0.0.1:7000", "[fe80::1]:7000", "n3:1"] {
            assert_eq!(join(&of(good, 2)), Ok(()), "{good}");
        }
        let long = format!("{}:1", "x".repeat(150_000));
        for bad in ["", ":1", "host", "host:", "host:0", "host:70000", "a b:1", "a\x1b[2J:1", &long]
        {
            assert_eq!(join(&of(bad, 2)), Err(Status::INVAL), "{}", bad.len());
        }
    }

    #[test]
    fn targets_are_as_many_and_as_large_as_there_can_be() {
        assert_eq!(join(&of("h:1", MAX_TARGETS)), Ok(()));
        assert_eq!(join(&of("h:1", MAX_TARGETS + 1)), Err(Status::INVAL));
        let with = |change: fn(&mut JoinTarget)| {
            let mut join = of("h:1", 1);
            change(&mut join.targets[0]);
            super::join(&join)
        };
        assert_eq!(with(|t| t.size = u64::MAX), Err(Status::INVAL));
        assert_eq!(with(|t| t.path = "x".repeat(5000)), Err(Status::INVAL));
    }

    fn beat(size: u64) -> Heartbeat {
        let (id, state, why) = (TargetId(1), TargetState::Up, String::new());
        let report = TargetReport { id, state, size, used: 0, sequence: 1, why };
        let (resyncs, scrub) = (Vec::new(), Scrub::default());
        let targets = vec![report];
        Heartbeat { node: NodeId(1), instance: 1, targets, admitted: 0, resyncs, scrub }
    }

    #[test]
    fn heartbeats_tell_of_real_targets() {
        assert_eq!(heartbeat(&beat(1 << 40)), Ok(()));
        assert_eq!(heartbeat(&beat(u64::MAX)), Err(Status::INVAL));
    }

    fn report(links: usize, mountpoint: &str) -> MountReport {
        let link = |i: usize| Link {
            address: format!("10.0.0.{}:7000", i % 256),
            path: Path::Tcp,
            bytes: u64::MAX,
            copied: u64::MAX,
        };
        MountReport {
            host: "host".into(),
            pid: 1,
            mountpoint: mountpoint.into(),
            session: 1,
            inodes: 1,
            links: (0..links).map(link).collect(),
            programs: Default::default(),
        }
    }

    #[test]
    fn mounts_are_short_and_an_answer_holds_those_that_fit() {
        assert_eq!(mount(&report(2, "/mnt")), Ok(()));
        assert_eq!(mount(&report(MOST_LINKS + 1, "/mnt")), Err(Status::INVAL));
        assert_eq!(mount(&report(2, &"x".repeat(5000))), Err(Status::INVAL));
        let many = vec![report(64, &"x".repeat(4000)); 100];
        let fitting = listed(many);
        assert!((5..100).contains(&fitting.len()), "{}", fitting.len());
        assert!(codec::encode(&fitting).unwrap().len() < MAX_ARGS / 2);
        assert_eq!(listed(vec![report(4, "/mnt"); 64]).len(), 64, "a space of 64 machines");
    }
}
