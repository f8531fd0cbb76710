//! One line per packet, to find the reason of a failure: set `NURI_SIM_TRACE`.

use std::fmt::Debug;

use nuri_proto::Status;
use nuri_proto::codec::decode;
use nuri_proto::map::Group;
use nuri_proto::op::cluster::{HeartbeatReply, JoinReply, MapGet, MemberSynced};
use nuri_proto::op::data::DataTruncate;
use nuri_proto::op::member::{
    MemberAbort, MemberChanged, MemberCommit, MemberForget, MemberHeld, MemberInstall, MemberRead,
    MemberStage,
};
use nuri_proto::op::{Call, Op};

use super::baton::{Answer, Packet};

/// Whether somebody looks.
pub(super) fn is_wanted() -> bool {
    std::env::var_os("NURI_SIM_TRACE").is_some()
}

/// The packet and its answer in words.
pub(super) fn line(packet: &Packet, answer: Option<&Answer>) -> String {
    match packet.op {
        Op::MemberStage => both::<MemberStage>(packet, answer),
        Op::MemberCommit => both::<MemberCommit>(packet, answer),
        Op::MemberAbort => both::<MemberAbort>(packet, answer),
        Op::MemberHeld => both::<MemberHeld>(packet, answer),
        Op::MemberRead => both::<MemberRead>(packet, answer),
        Op::MemberInstall => both::<MemberInstall>(packet, answer),
        Op::MemberChanged => both::<MemberChanged>(packet, answer),
        Op::MemberForget => both::<MemberForget>(packet, answer),
        Op::DataTruncate => both::<DataTruncate>(packet, answer),
        Op::MemberSynced => both::<MemberSynced>(packet, answer),
        Op::MapGet => {
            let map = answer.and_then(|a| a.as_ref().ok()).map(|a| decode::<_>(&a.0));
            let groups = |m: <MapGet as Call>::Reply| m.groups.iter().map(standing).collect();
            let groups: Option<Vec<_>> = map.and_then(Result::ok).map(groups);
            format!("MapGet {}", groups.unwrap_or_default().join(" "))
        }
        Op::Heartbeat => {
            let reply = answer.and_then(|a| a.as_ref().ok()).map(|a| decode(&a.0));
            let reply: Option<Result<HeartbeatReply, Status>> = reply;
            format!("Heartbeat {:?}", reply.map(|r| r.map(|r| r.map_epoch)))
        }
        Op::Join => {
            let reply = answer.and_then(|a| a.as_ref().ok()).map(|a| decode::<JoinReply>(&a.0));
            format!("Join {:?}", reply.map(|r| r.map(|r| r.targets)))
        }
        op => format!("{op:?}"),
    }
}

fn both<C: Call + Debug>(packet: &Packet, answer: Option<&Answer>) -> String
where
    C::Reply: Debug,
{
    let call = decode::<C>(&packet.args);
    let reply = answer.map(|a| a.as_ref().map(|(args, _)| decode::<C::Reply>(args)));
    format!("{:?} {call:?} -> {reply:?}", packet.session)
}

/// Only groups that miss somebody.
fn standing(group: &Group) -> String {
    let members: Vec<_> =
        group.members.iter().map(|m| format!("{}:{:?}", m.target, m.standing)).collect();
    if group.live().iter().count() == group.members.len() {
        return String::new();
    }
    format!("{}@{} [{}]", group.id, group.epoch, members.join(" "))
}
