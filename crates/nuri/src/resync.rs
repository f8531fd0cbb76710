//! Brings the targets of this node up to date where their groups went on without them.
//!
//! The map says what is left: a restart begins anew with what is still behind, and nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_client::group::{Found, Groups, Missed, RpcPort};
use nuri_client::{Cluster, DataPlane};
use nuri_proto::Status;
use nuri_proto::id::{GroupId, TargetId};
use nuri_proto::map::{Map, Standing};
use nuri_proto::op::cluster::MemberSynced;
use nuri_target::server::TargetServer;

const IDLE: Duration = Duration::from_millis(300);
/// Rest after each repaired stripe, as a multiple of the time that it took: leaves programs most
/// of the disks and the network.
const REST: f64 = 0.5;
/// A stripe that its writers keep busy is looked at again this often, then with the next round.
const TRIES: usize = 20;
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// Looks after the node's targets for as long as the process lives.
pub(crate) fn run(cluster: &Cluster, targets: &Arc<TargetServer>) {
    let data = DataPlane::new(cluster);
    loop {
        std::thread::sleep(IDLE);
        let own: Vec<_> = targets.reports().iter().map(|r| r.id).collect();
        if cluster.refresh().is_err() {
            continue;
        }
        for (group, target) in syncing(&cluster.map(), &own) {
            if let Ok(Some(missed)) = bring_up(data.groups(), group, target) {
                let epoch = missed.epoch();
                // The group may have moved on: then the next round finds what is new.
                let _ = cluster.ask(&MemberSynced { group, target, epoch });
            }
        }
    }
}

fn syncing(map: &Map, own: &[TargetId]) -> Vec<(GroupId, TargetId)> {
    let of_group = |g: &nuri_proto::map::Group| {
        let id = g.id;
        let behind = g
            .members
            .iter()
            .filter(|m| own.contains(&m.target) && matches!(m.standing, Standing::Syncing { .. }));
        behind.map(|m| (id, m.target)).collect::<Vec<_>>()
    };
    map.groups.iter().flat_map(of_group).collect()
}

fn bring_up(
    groups: &Groups<RpcPort>,
    group: GroupId,
    target: TargetId,
) -> Result<Option<Missed>, Status> {
    let Some(missed) = groups.missed(group, target)? else { return Ok(None) };
    for key in &missed.stripes {
        let began = Instant::now();
        let mut outcome = groups.bring(&missed, *key);
        for _ in 0..TRIES {
            if outcome.is_ok() {
                break;
            }
            std::thread::sleep(TRY_PAUSE);
            outcome = groups.bring(&missed, *key);
        }
        if let Found::Repaired(_) = outcome? {
            std::thread::sleep(began.elapsed().mul_f64(REST));
        }
    }
    Ok(Some(missed))
}
