//! Calls to the server of a node's targets.

use nuri_io::buf::BufPool;
use nuri_io::clock::ManualClock;
use nuri_io::disk::Disk;
use nuri_proto::Status;
use nuri_proto::codec::encode;
use nuri_proto::id::Epoch;
use nuri_proto::layout::Shape;
use nuri_proto::map::{Group, Map, Member, Standing};
use nuri_proto::op::Call;
use nuri_proto::op::member::{MemberAbort, MemberChanged};
use nuri_proto::stripe::Version;
use nuri_rpc::{CallContext, Request};
use nuri_target::server::TargetServer;
use nuri_target::target::Target;

use super::member::GROUP;
use super::*;

fn status<C: Call>(server: &TargetServer, call: &C) -> Status {
    let (args, buffers) = (encode(call).unwrap(), BufPool::new(4096, 1));
    let context = CallContext::default();
    let request = Request { op: C::OP, context, args: &args, payload: &[], buffers: &buffers };
    server.serve(&request).status
}

/// A server that has adopted epoch 5 of its only group.
fn at_epoch_5() -> TargetServer {
    let disk = Arc::new(MemDisk::new());
    ChunkStore::format(&disk, options(16 << 20)).unwrap();
    let disk: Arc<dyn Disk> = disk;
    let store = ChunkStore::open(disk, BootId(1), config()).unwrap();
    let server = TargetServer::new(vec![Target::over(store)], Arc::new(ManualClock::default()));
    let members = vec![Member::new(TargetId(3), Standing::Live)];
    let group = Group { id: GROUP, epoch: Epoch(5), shape: Shape::Mirror(2), members };
    server.adopt(&Map { epoch: Epoch(5), groups: vec![group], ..Map::default() }).unwrap();
    server
}

/// Catches `broken!("list_any_epoch")`.
#[test]
fn what_a_member_holds_is_told_in_the_adopted_epoch_only() {
    let server = at_epoch_5();
    let ask = |epoch| {
        let (target, group, epoch) = (TargetId(3), GROUP, Epoch(epoch));
        let (since, after, limit) = (Epoch(0), None, 10);
        status(&server, &MemberChanged { target, group, epoch, since, after, limit })
    };
    assert_eq!(ask(5), Status::OK);
    // Whoever asks in a later one must not hear the answer before the last write of this one.
    assert_eq!(ask(6), Status::EPOCH);
    assert_eq!(ask(4), Status::EPOCH);
}

/// Such a version would be newer than all that is ever written: the stripe could not be written.
#[test]
fn versions_of_epochs_to_come_are_refused() {
    let server = at_epoch_5();
    let abort = |version| {
        let (target, key, epoch) = (TargetId(3), key(1, 0), Epoch(5));
        status(&server, &MemberAbort { target, key, epoch, group: GROUP, version, drops: false })
    };
    assert_eq!(abort(Version::new(Epoch(5), 9)), Status::OK);
    assert_eq!(abort(Version::new(Epoch(6), 0)), Status::RETRY);
    assert_eq!(abort(Version(u64::MAX)), Status::RETRY);
    assert_eq!(abort(Version::new(Epoch(5), 10)), Status::OK);
}
