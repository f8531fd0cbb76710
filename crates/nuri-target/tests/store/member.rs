//! Chunks of redundant groups when nothing goes wrong: staged writes, commits, aborts, installs.

use nuri_proto::id::{Epoch, GroupId, SessionId};
use nuri_proto::op::data::Durability::Memory;
use nuri_proto::op::member::{Install, Purpose, Reason};
use nuri_proto::stripe::{
    Change, Covers, Earlier, Held, Members, Stage, StageReply, Version, WriteId,
};
use nuri_target::store::{MemberRead, StoreError};

use super::*;

pub const GROUP: GroupId = GroupId(4);

pub fn version(counter: u64) -> Version {
    Version::new(Epoch(1), counter)
}

pub fn covers(counter: u64) -> Covers {
    if counter == 0 { Covers::default() } else { Covers::one(version(counter)) }
}

/// A write of a copy or data chunk from version `base` to version `to`.
pub fn ask(base: u64, to: u64) -> Stage {
    Stage {
        group: GROUP,
        version: version(to),
        id: WriteId { session: SessionId(1), number: to },
        base: covers(base),
        covers: covers(to),
        participants: Members(3),
        earlier: Earlier::Unknown,
    }
}

pub fn install(to: u64, offset: usize, last: bool) -> Install {
    Install {
        group: GROUP,
        id: WriteId { session: SessionId(9), number: to },
        covers: covers(to),
        reason: Reason::Behind,
        offset: offset as u32,
        last,
    }
}

pub fn at(offset: usize) -> Change {
    Change::Bytes { offset: offset as u32 }
}

fn is_staged(reply: &StageReply) -> bool {
    matches!(reply, StageReply::Staged { .. })
}

pub fn base(store: &Store, key: ChunkKey, len: usize) -> (Vec<u8>, Covers) {
    let mut buf = vec![0xee; len];
    match store.read_member(key, 0, &mut buf, Version::NONE, Purpose::Base).unwrap() {
        MemberRead::Read(covers) => (buf, covers),
        MemberRead::Undecided => panic!("the base is always there"),
    }
}

#[test]
fn a_staged_write_is_beside_the_base_until_it_is_committed() {
    let (disk, mut store) = fresh(32 << 20);
    let (k, len) = (key(1, 0), 300_000);
    let mut model = vec![0u8; len];
    // Parts of blocks, whole blocks, long runs with and without parts at their ends.
    let cases = [(5, 10), (4096, 8192), (100, 200_000), (8192, 131_072), (0, 0), (70_000, 70_001)];
    for (i, (offset, n)) in cases.into_iter().enumerate() {
        let i = i as u64;
        let data = pattern(n, i);
        let reply = store.stage(k, &ask(i, i + 1), at(offset), &data).unwrap();
        assert!(is_staged(&reply));
        for round in 0..3 {
            assert!(base(&store, k, len) == (model.clone(), covers(i)), "case {i} {round}");
            assert_eq!(store.extents(k).is_empty(), i == 0);
            let mut buf = [0; 8];
            let read = store.read_member(k, 0, &mut buf, version(i), Purpose::Use).unwrap();
            assert_eq!(read, MemberRead::Undecided);
            match round {
                0 => store.checkpoint().unwrap(),
                _ => {
                    drop(store);
                    assert_clean(&disk);
                    store = open(&disk).unwrap();
                }
            }
        }
        model[offset..offset + n].copy_from_slice(&data);
        if i.is_multiple_of(2) {
            store.commit(k, version(i)).unwrap();
            store.commit(k, version(i + 1)).unwrap();
        }
        let mut buf = vec![0; len];
        let read = store.read_member(k, 0, &mut buf, version(i + 1), Purpose::Use).unwrap();
        assert!(read == MemberRead::Read(covers(i + 1)) && buf == model, "case {i}");
        store.flush().unwrap();
        drop(store);
        store = open(&disk).unwrap();
        assert!(base(&store, k, len) == (model.clone(), covers(i + 1)), "case {i}");
    }
    store.close().unwrap();
    assert_clean(&disk);
}

#[test]
fn added_bytes_are_added_to_the_base() {
    let (_disk, store) = fresh(32 << 20);
    let (k, len) = (key(1, 0), 300_000);
    let mut model = vec![0u8; len];
    for (i, (offset, n)) in [(7, 100), (100, 200_000), (4096, 65536), (0, 9)].iter().enumerate() {
        let (i, data) = (i as u64, pattern(*n, i as u64));
        let change = Change::Xor { offset: *offset as u32 };
        assert!(is_staged(&store.stage(k, &ask(i, i + 1), change, &data).unwrap()));
        store.commit(k, version(i + 1)).unwrap();
        model[*offset..offset + n].iter_mut().zip(&data).for_each(|(a, b)| *a ^= b);
        assert!(base(&store, k, len) == (model.clone(), covers(i + 1)), "case {i}");
    }
}

#[test]
fn the_rules_decide_and_a_writer_may_know_what_became_of_the_write_before() {
    let (_disk, store) = fresh(16 << 20);
    let k = key(1, 0);
    let told = |n| Ok::<_, StoreError>(StageReply::Staged { allocated: n });
    let stage = |ask: &Stage, fill: u8| store.stage(k, ask, at(0), &[fill; 5000]);
    assert_eq!(stage(&ask(0, 1), 1).unwrap(), told(8192).unwrap());
    assert_eq!(stage(&ask(0, 1), 1).unwrap(), told(8192).unwrap(), "the same again");
    let held = store.held(k).unwrap();
    assert_eq!((held.group, held.staged.as_ref().unwrap().version), (GROUP, version(1)));
    assert_eq!(stage(&ask(1, 2), 2).unwrap(), StageReply::Refused(held));
    let decided = Stage { earlier: Earlier::Decided(version(1)), ..ask(1, 2) };
    assert_eq!(stage(&decided, 2).unwrap(), told(0).unwrap());
    assert_eq!(base(&store, k, 5000), (vec![1; 5000], covers(1)));
    assert_eq!(stage(&ask(0, 1), 1).unwrap(), told(0).unwrap(), "committed already");
    assert_eq!(stage(&ask(0, 3), 1).unwrap(), StageReply::Refused(store.held(k).unwrap()));
    let aborted = Stage { earlier: Earlier::Aborted(version(2)), ..ask(1, 3) };
    assert_eq!(stage(&aborted, 3).unwrap(), told(0).unwrap());
    store.commit(k, version(2)).unwrap();
    assert_eq!(base(&store, k, 1).1, covers(1), "that was dropped");
    store.commit(k, version(3)).unwrap();
    assert_eq!(base(&store, k, 5000), (vec![3; 5000], covers(3)));
    assert_eq!(stage(&aborted, 3).unwrap(), told(0).unwrap(), "the same again, committed");
}

#[test]
fn an_abort_is_a_promise_also_where_nothing_was_written() {
    let (disk, store) = fresh(16 << 20);
    let (k, never) = (key(1, 0), key(2, 0));
    let empty = store.usage();
    store.stage(k, &ask(0, 1), at(0), &pattern(200_001, 1)).unwrap();
    let held = store.abort(k, GROUP, version(1)).unwrap();
    assert_eq!(held, Held { group: GROUP, floor: version(1), ..Held::default() });
    store.abort(never, GROUP, version(7)).unwrap();
    store.checkpoint().unwrap();
    for counter in [1, 7] {
        drop(open(&disk).unwrap());
        let store = open(&disk).unwrap();
        let k = if counter == 1 { k } else { never };
        let late = store.stage(k, &ask(0, counter), at(0), &[1; 10]).unwrap();
        assert!(matches!(late, StageReply::Refused(held) if held.floor == version(counter)));
        assert_eq!(base(&store, k, 10), (vec![0; 10], Covers::default()));
        assert!(store.usage().used <= empty.used + 4 * 4096, "{:?}", store.usage());
    }
}

#[test]
fn an_install_replaces_the_whole_base_at_its_last_part() {
    let (disk, store) = fresh(32 << 20);
    let (k, len) = (key(1, 0), 500_000);
    store.stage(k, &ask(0, 1), at(0), &pattern(len, 1)).unwrap();
    store.commit(k, version(1)).unwrap();
    store.stage(k, &ask(1, 2), at(70), &[9; 70]).unwrap();
    let mut new = pattern(len, 2);
    new[8192..20_480].fill(0);
    new[300_000..].fill(0);
    let part = |from: usize, to: usize| &new[from..to];
    let before = store.held(k).unwrap();
    assert_eq!(store.install(k, &install(3, 0, false), part(0, 131_072)).unwrap(), before);
    let other = store.install(k, &install(4, 131_072, true), part(131_072, 300_000)).unwrap();
    assert_eq!(other, before, "of another install");
    assert_eq!(base(&store, k, len), (pattern(len, 1), covers(1)));
    store.checkpoint().unwrap();
    let held = store.install(k, &install(3, 131_072, true), part(131_072, 300_000)).unwrap();
    assert_eq!((held.covers.clone(), held.staged.clone()), (covers(3), None));
    let extents = store.extents(k);
    assert_eq!(extents, [(0, 8192), (20_480, 303_104 - 20_480)]);
    let again = store.install(k, &install(3, 131_072, true), part(131_072, 300_000)).unwrap();
    assert_eq!(again, held, "sent again");
    let older = store.install(k, &install(2, 0, true), &[7; 100]).unwrap();
    assert_eq!(older, held);
    let store = open(&Arc::new(disk.crash_image(&mut nuri_io::rng::Rng::new(3)))).unwrap();
    assert!(base(&store, k, len) == (new.clone(), covers(3)));
    let damaged = Install { reason: Reason::Damaged, ..install(3, 0, true) };
    store.install(k, &damaged, &[7; 100]).unwrap();
    assert_eq!(base(&store, k, 200).0[99..101], [7, 0]);
}

#[test]
fn parts_that_nobody_completed_are_dropped() {
    let (disk, store) = fresh(16 << 20);
    let k = key(1, 0);
    let empty = store.usage().used;
    store.install(k, &install(3, 0, false), &pattern(1 << 20, 1)).unwrap();
    store.install(k, &install(3, 0, false), &pattern(5000, 1)).unwrap();
    store.checkpoint().unwrap();
    assert!(store.usage().used <= empty + 4 * 4096, "begun anew: {:?}", store.usage());
    store.truncate(nuri_proto::id::ObjectId(1), 0).unwrap();
    let held = store.install(k, &install(3, 8192, true), &[1; 10]).unwrap();
    assert_eq!(held, Held::default(), "parts before are gone");
    store.install(k, &install(3, 0, false), &pattern(1 << 20, 1)).unwrap();
    for _ in 0..2 {
        store.checkpoint().unwrap();
        let store = open(&disk).unwrap();
        assert!(store.usage().used <= empty + 4 * 4096, "{:?}", store.usage());
        assert_clean(&disk);
    }
}

#[test]
fn truncate_and_delete_forget_what_is_held() {
    let (disk, store) = fresh(16 << 20);
    let empty = store.usage().used;
    for stripe in 0..4 {
        let k = key(1, stripe);
        store.stage(k, &ask(0, 1), at(0), &[1; 70_000]).unwrap();
        if stripe % 2 == 0 {
            store.commit(k, version(1)).unwrap();
            store.stage(k, &ask(1, 2), at(0), &[1; 80_000]).unwrap();
        }
        store.abort(key(2, stripe), GROUP, version(9)).unwrap();
    }
    let blocks = |bytes: u64| bytes.next_multiple_of(4096);
    let freed = store.truncate(nuri_proto::id::ObjectId(1), 2).unwrap();
    assert_eq!(freed, blocks(80_000) + blocks(70_000), "as much as was told");
    assert_eq!(store.held(key(1, 1)).unwrap().newest(), version(1));
    store.delete(&[nuri_proto::id::ObjectId(2)]).unwrap();
    drop(store);
    let store = open(&disk).unwrap();
    for k in [key(2, 0), key(2, 3)] {
        assert_eq!(store.held(k).unwrap(), Held::default());
    }
    for (k, went) in [(key(1, 2), 2), (key(1, 3), 1)] {
        let floor = version(went);
        assert_eq!(store.held(k).unwrap(), Held { group: GROUP, floor, ..Held::default() });
        // What is written there now goes above it.
        assert!(matches!(store.stage(k, &ask(0, went), at(0), &[1]), Ok(StageReply::Refused(_))));
    }
    assert_eq!(store.truncate(nuri_proto::id::ObjectId(1), 2).unwrap(), 0, "once is enough");
    store.delete(&[nuri_proto::id::ObjectId(1)]).unwrap();
    store.checkpoint().unwrap();
    assert!(store.usage().used <= empty + 4 * 4096, "{:?}", store.usage());
}

#[test]
fn changed_tells_written_and_staged_stripes_of_the_group_in_order() {
    let (_disk, store) = fresh(16 << 20);
    for stripe in 0..10u32 {
        let k = key(1, stripe);
        let epoch = Epoch(1 + u64::from(stripe % 2));
        let to = Version::new(epoch, 5);
        let group = GroupId(4 + u32::from(stripe == 9));
        let ask = Stage { group, version: to, covers: Covers::one(to), ..ask(0, 1) };
        store.stage(k, &ask, at(0), &[1; 10]).unwrap();
        if stripe != 3 {
            store.commit(k, to).unwrap();
        }
    }
    store.abort(key(1, 20), GROUP, version(1)).unwrap();
    let stripes = |since, after, limit| {
        let all = store.changed(GROUP, Epoch(since), after, limit);
        let committed = all.iter().filter(|(key, _)| key.stripe != 3);
        assert!(committed.map(|(_, covers)| covers.newest().epoch()).all(|e| e >= Epoch(since)));
        all.iter().map(|(key, _)| key.stripe).collect::<Vec<_>>()
    };
    assert_eq!(stripes(0, None, 100), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(stripes(2, None, 100), [1, 3, 5, 7]);
    assert_eq!(stripes(1, Some(key(1, 2)), 3), [3, 4, 5]);
    assert_eq!(stripes(3, None, 100), []);
}

#[test]
fn a_small_stage_is_one_write_and_one_sync_and_a_large_one_two_more() {
    let (disk, store) = fresh(16 << 20);
    let ops = |f: &dyn Fn()| {
        let before = disk.counters();
        f();
        let after = disk.counters();
        (after.writes - before.writes, after.syncs - before.syncs)
    };
    let k = key(1, 0);
    store.stage(k, &ask(0, 1), at(0), &[1; 1 << 17]).unwrap();
    let next = |base| Stage { earlier: Earlier::Decided(version(base)), ..ask(base, base + 1) };
    let small = ops(&|| drop(store.stage(k, &next(1), at(4096), &[1; 4096]).unwrap()));
    assert_eq!(small, (1, 1));
    let large = ops(&|| drop(store.stage(k, &next(2), at(100), &[1; 1 << 17]).unwrap()));
    assert_eq!(large, (2, 2));
    assert_eq!(ops(&|| store.commit(k, version(3)).unwrap()), (0, 0));
    assert_eq!(ops(&|| drop(store.abort(k, GROUP, version(3)).unwrap())), (1, 1));
}

#[test]
fn words_out_of_bounds_are_refused() {
    let (_disk, store) = fresh(8 << 20);
    let beside = ChunkKey { component: 1 << 15, ..key(1, 0) };
    assert!(store.stage(beside, &ask(0, 1), at(0), &[1]).is_err());
    assert!(store.abort(beside, GROUP, version(1)).is_err());
    assert!(store.stage(key(1, 0), &ask(0, 1), at((64 << 20) - 1), &[1; 2]).is_err());
    let many = Stage { covers: Covers(vec![version(1); 21]), ..ask(0, 1) };
    assert!(store.stage(key(1, 0), &many, at(0), &[1]).is_err());
    assert!(store.install(key(1, 0), &install(1, 5, true), &[1]).is_err());
    store.write(key(1, 0), 0, &[1; 10], Memory).unwrap();
    assert_eq!(store.held(key(1, 0)).unwrap(), Held::default());
}
