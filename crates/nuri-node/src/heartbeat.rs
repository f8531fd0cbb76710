//! The node's heartbeat. It tells the authority that the node lives and how its targets are. It
//! also renews the node's service lease and admission list, and fetches a new map.

use nuri_proto::Status;
use nuri_proto::clock::HEARTBEAT;
use nuri_proto::id::NodeId;
use nuri_proto::op::cluster::{Heartbeat, Join, MapGet};
use nuri_rpc::Peer;

use crate::news::Told;
use crate::services::Services;

/// Beats until the process ends; joins again where the authority forgot this node.
pub fn heartbeat(services: &Services, node: NodeId, join: Join, authority: &Peer) {
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
