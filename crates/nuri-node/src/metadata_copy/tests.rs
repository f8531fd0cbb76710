//! A keeper and a restore in directories of their own, without processes.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use nuri_cluster::store::{FileStore, MapStore};
use nuri_io::buf::BufPool;
use nuri_kv::embedded::{Embedded, KvConfig};
use nuri_kv::engine::{Batch, Engine};
use nuri_proto::id::{ClusterId, Epoch, NodeId};
use nuri_proto::limit::MAX_PAYLOAD;
use nuri_proto::map::Map;
use nuri_proto::op::Call;
use nuri_proto::op::copy::{
    Change, CopyBegin, CopyFile, CopyLatest, CopyMap, CopyWhole, CopyWrite, Origin,
};
use nuri_proto::op::data::Durability;
use nuri_proto::{Status, codec};
use nuri_rpc::{CallContext, Request};

use super::keeper::Keeper;
use super::restore::{Overwrite, newest, refuse_unfinished, restore};
use super::{WHOLE, copies, copy_path};
use crate::directory::{MAP, META_LOG, META_TABLES, open_engine, store_disks};

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn ask<C: Call>(keeper: &Keeper, call: &C, payload: &[u8]) -> Result<C::Reply, Status> {
    let args = codec::encode(call).unwrap();
    let buffers = BufPool::new(4096, 1);
    let context = CallContext::default();
    let request = Request { op: C::OP, context, args: &args, payload, buffers: &buffers };
    let reply = keeper.serve(&request);
    if reply.status == Status::OK { codec::decode(&reply.args) } else { Err(reply.status) }
}

fn origin(generation: u64) -> Origin {
    Origin { cluster: CLUSTER, generation, node: NodeId(1), address: "127.0.0.1:7000".into() }
}

fn begin(keeper: &Keeper, generation: u64) -> Result<(), Status> {
    ask(keeper, &CopyBegin { origin: origin(generation) }, &[])
}

fn send(keeper: &Keeper, generation: u64, file: CopyFile, data: &[u8]) -> Result<(), Status> {
    for (i, part) in data.chunks(1 << 20).enumerate() {
        let at = (i << 20) as u64;
        let changes = vec![Change::Write { at, len: part.len() as u32 }];
        let call = CopyWrite { generation, file, changes, durability: Durability::Memory };
        ask(keeper, &call, part)?;
    }
    Ok(())
}

/// A metadata store whose only key says which generation it is.
fn fill(keeper: &Keeper, generation: u64) {
    let dir = tempfile::tempdir().unwrap();
    {
        let [log, tables] = store_disks(dir.path()).unwrap();
        let engine = Embedded::open(log, tables, KvConfig::default()).unwrap();
        let mut batch = Batch::new();
        batch.put(b"generation".to_vec(), generation.to_le_bytes().to_vec());
        engine.wait_durable(engine.commit(batch).unwrap()).unwrap();
    }
    for (file, name) in [(CopyFile::Log, META_LOG), (CopyFile::Tables, META_TABLES)] {
        send(keeper, generation, file, &fs::read(dir.path().join(name)).unwrap()).unwrap();
    }
    let map = Map { cluster: CLUSTER, epoch: Epoch(generation), ..Map::default() };
    ask(keeper, &CopyMap { generation, map }, &[]).unwrap();
}

fn whole(keeper: &Keeper, generation: u64) -> Result<(), Status> {
    ask(keeper, &CopyWhole { generation }, &[])
}

fn generations(dir: &Path) -> Vec<u64> {
    let mut out: Vec<_> = copies(dir).unwrap().iter().map(|c| c.generation).collect();
    out.sort_unstable();
    out
}

#[test]
fn a_whole_copy_stays_until_the_next_one_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = Keeper::new(dir.path(), CLUSTER);
    assert_eq!(ask(&keeper, &CopyLatest {}, &[]), Ok(0));
    begin(&keeper, 3).unwrap();
    assert_eq!(whole(&keeper, 3), Err(Status::IO), "nothing was sent");
    fill(&keeper, 3);
    whole(&keeper, 3).unwrap();
    begin(&keeper, 5).unwrap();
    assert_eq!(send(&keeper, 3, CopyFile::Log, &[1]), Err(Status::NOENT), "no longer followed");
    assert_eq!(begin(&keeper, 5), Err(Status::EXIST), "a generation is begun once");
    assert_eq!((begin(&keeper, 4), ask(&keeper, &CopyLatest {}, &[])), (Err(Status::EXIST), Ok(5)));
    // The node ends here and starts again: the half made one is not used, and goes.
    let keeper = Keeper::new(dir.path(), CLUSTER);
    assert_eq!(whole(&keeper, 5), Err(Status::NOENT));
    assert_eq!(newest(&[dir.path().into()]).unwrap().generation, 3);
    begin(&keeper, 6).unwrap();
    assert_eq!(generations(dir.path()), [3, 6]);
    fill(&keeper, 6);
    whole(&keeper, 6).unwrap();
    assert_eq!(generations(dir.path()), [6]);
    let other = Keeper::new(dir.path(), ClusterId([8; 16]));
    assert_eq!(begin(&other, 9), Err(Status::WRONG_PEER));
}

#[test]
fn changes_that_do_not_fit_their_bytes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = Keeper::new(dir.path(), CLUSTER);
    begin(&keeper, 1).unwrap();
    let write = |changes: Vec<Change>| {
        let (file, durability) = (CopyFile::Log, Durability::Stable);
        ask(&keeper, &CopyWrite { generation: 1, file, changes, durability }, &[1; 10])
    };
    assert_eq!(write(vec![Change::Write { at: 0, len: 11 }]), Err(Status::INVAL));
    assert_eq!(write(vec![Change::Write { at: u64::MAX - 3, len: 10 }]), Err(Status::IO));
    assert_eq!(write(vec![Change::SetLen(u64::MAX)]), Err(Status::IO));
    let (half, most) = (MAX_PAYLOAD as u32 / 2, MAX_PAYLOAD as u32);
    let zeros = |lens: &[u32]| lens.iter().map(|len| Change::Zero { at: 0, len: *len }).collect();
    assert_eq!(write(zeros(&[most + 1])), Err(Status::INVAL));
    assert_eq!(write(zeros(&[half, half, 1])), Err(Status::INVAL));
    assert_eq!(write(vec![Change::SetLen(9), Change::Write { at: 9, len: 10 }]), Ok(()));
    assert_eq!(fs::read(copy_path(dir.path(), 1).join(META_LOG)).unwrap().len(), 19);
}

#[test]
fn the_newest_whole_copy_is_restored() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let sources = dirs.each_ref().map(|d| d.path().to_owned());
    let keepers = sources.each_ref().map(|d| Arc::new(Keeper::new(d, CLUSTER)));
    let first = tempfile::tempdir().unwrap();
    let into = first.path();
    let refused = restore(into, &sources, Overwrite::Refuse).err().unwrap();
    assert!(refused.0.contains("no whole copy"), "{refused}");
    // Whole are 2 and 4; 7 is the newest and half made.
    for (keeper, generation) in keepers.iter().zip([2, 4, 7]) {
        begin(keeper, generation).unwrap();
        fill(keeper, generation);
    }
    whole(&keepers[0], 2).unwrap();
    whole(&keepers[1], 4).unwrap();
    let done = restore(into, &sources, Overwrite::Refuse).unwrap();
    assert_eq!((done.whole.generation, done.whole.node), (4, 1));
    let read = |key: &[u8]| open_engine(into).unwrap().get(key).unwrap().unwrap();
    assert_eq!(read(b"generation"), 4u64.to_le_bytes());
    let map = FileStore::new(&into.join(MAP)).load().unwrap().unwrap();
    assert_eq!((map.epoch, map.cluster), (Epoch(4), CLUSTER));
    let settings: serde_json::Value =
        serde_json::from_slice(&fs::read(into.join("node.json")).unwrap()).unwrap();
    assert_eq!((&settings["id"], &settings["address"]), (&1.into(), &"127.0.0.1:7000".into()));
    // Metadata that is there is not overwritten, unless that is said.
    let refused = restore(into, &sources, Overwrite::Refuse).err().unwrap();
    assert!(refused.0.contains("--force"), "{refused}");
    whole(&keepers[2], 7).unwrap();
    restore(into, &[copy_path(&sources[2], 7)], Overwrite::Force).unwrap();
    assert_eq!(read(b"generation"), 7u64.to_le_bytes());
    assert!(open_engine(into).unwrap().epoch() > 1000, "above all owners since");
}

#[test]
fn a_restore_that_did_not_end_is_seen() {
    let (dir, first) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keeper = Keeper::new(dir.path(), CLUSTER);
    begin(&keeper, 1).unwrap();
    fill(&keeper, 1);
    whole(&keeper, 1).unwrap();
    let tables = copy_path(dir.path(), 1).join(META_TABLES);
    let kept = fs::read(&tables).unwrap();
    fs::remove_file(&tables).unwrap();
    let sources = [dir.path().to_owned()];
    assert!(restore(first.path(), &sources, Overwrite::Refuse).is_err());
    fs::write(&tables, &kept[..kept.len() / 2]).unwrap();
    assert!(restore(first.path(), &sources, Overwrite::Refuse).is_err());
    let words = refuse_unfinished(first.path()).unwrap_err().0;
    assert!(words.contains("did not end"), "{words}");
    assert!(open_engine(first.path()).is_err());
    fs::write(&tables, kept).unwrap();
    restore(first.path(), &sources, Overwrite::Refuse).unwrap();
    refuse_unfinished(first.path()).unwrap();
}

#[test]
fn copies_of_two_spaces_are_not_mixed() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let sources = dirs.each_ref().map(|d| d.path().to_owned());
    for (dir, id) in sources.iter().zip(["aa", "bb"]) {
        let path = copy_path(dir, 1);
        fs::create_dir(&path).unwrap();
        let text = format!(
            r#"{{"format":1,"cluster":"{id}","generation":1,"node":1,"address":"a:1","since":5}}"#
        );
        fs::write(path.join(WHOLE), text).unwrap();
    }
    assert!(newest(&sources).unwrap_err().0.contains("two spaces"));
    assert_eq!(newest(&sources[..1]).unwrap().generation, 1);
}
