//! Attributes, truncation, inline data, extended attributes, counters, stamps.

use nuri_proto::clock::SESSION;
use nuri_proto::limit::{MAX_FILE, MAX_INLINE, MAX_XATTR_VALUE};

use super::*;

const ROOT: Ino = Ino::ROOT;

#[test]
fn attributes_change_as_asked_and_nothing_else() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    let before = c.attr(f).unwrap();
    world.clock.advance(Duration::from_secs(5));
    let at = Time { sec: 77, nsec: 5 };
    let call = SetAttr {
        ino: f,
        mode: Some(0o104_755),
        uid: Some(1),
        mtime: Some(SetTime::At(at)),
        ..SetAttr::default()
    };
    let after = c.put(call).unwrap().inode.attr;
    let wanted = Attr {
        mode: 0o104_755,
        uid: 1,
        mtime: at,
        ctime: after.ctime,
        change: before.change + 1,
        ..before
    };
    assert_eq!(after, wanted);
    assert_eq!(after.ctime.sec, before.ctime.sec + 5);
    let now = SetAttr { ino: f, atime: Some(SetTime::Now), ..SetAttr::default() };
    let marked = c.put(now).unwrap().inode.attr;
    assert_eq!(marked.atime, marked.ctime);
    assert!(marked.ctime > after.ctime, "though the clock stands");
    let none = SetAttr { ino: Ino(99), ..SetAttr::default() };
    assert_eq!(c.put(none), Err(Status::STALE));
}

#[test]
fn truncation_to_zero_takes_a_new_object_and_leaves_garbage() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    let first = c.acquire(f, LeaseMode::Write).unwrap().file.unwrap();
    c.publish(f, 1 << 20).unwrap();
    let reply = c.resize(f, 0).unwrap();
    assert!(reply.object != first.object && reply.punch_from.is_none());
    assert_eq!((reply.inode.attr.size, reply.inode.attr.allocated), (0, 0));
    let now = c.acquire(f, LeaseMode::Write).unwrap().file.unwrap();
    assert!(now.object == reply.object && now.truncate_version > first.truncate_version);
    let garbage = world.server.garbage(ObjectId(0), 10).unwrap();
    assert_eq!(garbage, [(first.object, first.layout.clone())]);
    world.server.garbage_done(&[first.object]).unwrap();
    assert!(world.server.garbage(ObjectId(0), 10).unwrap().is_empty());
    // Never on the targets: nothing to delete.
    assert_eq!(c.resize(f, 0).unwrap().object, now.object);
    assert!(world.server.garbage(ObjectId(0), 10).unwrap().is_empty());
    world.fsck();
}

#[test]
fn a_shortened_file_grows_only_after_its_rest_was_punched() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    c.publish(f, 10_000).unwrap();
    assert_eq!(c.resize(f, 5000).unwrap().punch_from, Some(5000));
    assert_eq!(c.resize(f, 7000), Err(Status::RETRY));
    assert_eq!(c.resize(f, 4000).unwrap().punch_from, Some(4000));
    let record = c.acquire(f, LeaseMode::Write).unwrap().file.unwrap();
    assert_eq!(record.punch_from, Some(4000));
    c.put(TruncateDone { ino: f }).unwrap();
    assert_eq!(c.resize(f, 7000).unwrap().inode.attr.size, 7000);
    assert_eq!(c.resize(f, MAX_FILE + 1), Err(Status::FBIG));
    assert_eq!(c.resize(ROOT, 0), Err(Status::ISDIR));
    world.fsck();
}

/// Catches `broken!("cut_is_not_recorded")`.
#[test]
fn that_a_cut_is_done_is_told_with_a_publication_or_a_growth() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    c.publish(f, 10_000).unwrap();
    let mark = |c: &Client<'_>| c.acquire(f, LeaseMode::Write).unwrap().file.unwrap().punch_from;
    c.resize(f, 5000).unwrap();
    assert_eq!(mark(&c), Some(5000));
    c.publish(f, 5000).unwrap();
    assert_eq!(mark(&c), Some(5000));
    assert_eq!(c.publish(f, 5001), Err(Status::INVAL), "the next writer would cut it off");
    let (allocated, mtime, data) = (4096, None, PublishData::CutDone);
    c.put(Publish { ino: f, size: 9000, allocated, mtime, data }).unwrap();
    assert_eq!((mark(&c), c.attr(f).unwrap().size), (None, 9000));
    c.resize(f, 3000).unwrap();
    c.put(Extend { ino: f, is_cut_done: false }).unwrap();
    assert_eq!(mark(&c), Some(3000));
    c.put(Extend { ino: f, is_cut_done: true }).unwrap();
    assert_eq!(mark(&c), Some(3000), "whoever grows it may die before it tells how far");
    c.publish(f, 8000).unwrap();
    assert_eq!(mark(&c), Some(8000));
    world.fsck();
}

/// Catches `broken!("grow_unannounced")`.
#[test]
fn what_a_dead_writer_pushed_is_punched_by_the_next() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    a.publish(f, 5000).unwrap();
    a.put(Extend { ino: f, is_cut_done: false }).unwrap();
    world.pass(SESSION / 2);
    b.get(StatFs {}).unwrap();
    world.pass(SESSION / 2 + std::time::Duration::from_secs(1));
    assert_eq!(world.server.sessions().len(), 1);
    let record = b.acquire(f, LeaseMode::Write).unwrap().file.unwrap();
    assert_eq!(record.punch_from, Some(5000), "the size that was published");
    b.put(TruncateDone { ino: f }).unwrap();
    assert_eq!(b.acquire(f, LeaseMode::Write).unwrap().file.unwrap().punch_from, None);
    b.put(Extend { ino: f, is_cut_done: false }).unwrap();
    b.publish(f, 9000).unwrap();
    assert_eq!(b.resize(f, 12_000).unwrap().punch_from, None, "its own growth is no obstacle");
    let g = b.file(ROOT, "g");
    b.put(Extend { ino: g, is_cut_done: false }).unwrap();
    b.unlink(ROOT, "g").unwrap();
    b.put(OrphanRelease { inos: vec![g] }).unwrap();
    assert_eq!(
        world.server.garbage(ObjectId(0), 10).unwrap().len(),
        1,
        "pushed and never published"
    );
    assert_eq!(a.put(Extend { ino: f, is_cut_done: false }), Err(Status::SESSION_GONE));
    world.fsck();
}

/// Catches `broken!("sparse_has_nothing")`. Below a size that was set before, bytes are pushed
/// without a word.
#[test]
fn a_large_file_that_is_cut_to_nothing_takes_a_new_object() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    let object = |c: &Client<'_>| c.acquire(f, LeaseMode::Write).unwrap().file.unwrap().object;
    let first = object(&c);
    c.resize(f, MAX_INLINE).unwrap();
    c.resize(f, 0).unwrap();
    assert_eq!(object(&c), first, "what fits into the inode is announced first");
    c.resize(f, MAX_INLINE + 1).unwrap();
    c.resize(f, 0).unwrap();
    assert_ne!(object(&c), first);
    assert_eq!(world.server.garbage(ObjectId(0), 10).unwrap().len(), 1);
    c.resize(f, MAX_INLINE + 1).unwrap();
    assert_eq!(c.resize(f, 10).unwrap().punch_from, Some(10));
    assert_eq!(c.resize(f, 0).unwrap().punch_from, None, "the mark goes with the object");
    assert_eq!(world.server.garbage(ObjectId(0), 10).unwrap().len(), 2);
    c.resize(f, 10).unwrap();
    world.fsck();
}

#[test]
fn small_files_live_in_the_inode() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    let data = |c: &Client<'_>| c.acquire(f, LeaseMode::Write).unwrap().file.unwrap().inline;
    assert_eq!(data(&c).unwrap(), b"", "it was never on the targets");
    assert_eq!(c.publish_inline(f, b"hello").unwrap().attr.size, 5);
    assert_eq!(data(&c).unwrap(), b"hello");
    c.resize(f, 2).unwrap();
    assert_eq!(data(&c).unwrap(), b"he");
    assert_eq!(c.publish_inline(f, &vec![1; MAX_INLINE as usize + 1]), Err(Status::INVAL));
    c.publish_inline(f, &vec![1; MAX_INLINE as usize]).unwrap();
    let publish = Publish { ino: f, size: 9, allocated: 0, mtime: None, data: PublishData::Inline };
    assert_eq!(c.put_with(publish, b"short"), Err(Status::INVAL));
    c.publish(f, 100_000).unwrap();
    assert_eq!(data(&c), None);
    assert_eq!(c.publish_inline(f, b"back"), Err(Status::INVAL), "the targets have it");
    c.resize(f, 0).unwrap();
    c.publish_inline(f, b"back").unwrap();
    world.fsck();
    c.resize(f, 0).unwrap();
    assert_eq!(data(&c).unwrap(), b"");
    world.fsck();
}

#[test]
fn only_the_writer_publishes() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    let number = c.acquire(f, LeaseMode::Write).unwrap().inode.lease.unwrap().number;
    c.get(Release { leases: vec![(f, number)] }).unwrap();
    assert_eq!(c.publish(f, 5), Err(Status::STALE));
    c.acquire(f, LeaseMode::Read).unwrap();
    assert_eq!(c.publish(f, 5), Err(Status::STALE));
    assert_eq!(c.attr(f).unwrap().size, 0);
}

#[test]
fn setgid_directories_give_their_group_on() {
    let world = World::new();
    let c = world.client();
    let d = c.dir(ROOT, "d");
    let group = SetAttr { ino: d, mode: Some(0o2775), gid: Some(7), ..SetAttr::default() };
    c.put(group).unwrap();
    let (sub, f) = (c.dir(d, "sub"), c.file(d, "f"));
    let (sub, f) = (c.attr(sub).unwrap(), c.attr(f).unwrap());
    assert_eq!((sub.gid, sub.mode), (7, 0o042_755));
    assert_eq!((f.gid, f.mode), (7, 0o100_644));
    let plain = c.file(ROOT, "plain");
    assert_eq!(c.attr(plain).unwrap().gid, 20);
}

#[test]
fn layouts_are_inherited_at_creation() {
    let world = World::new();
    let c = world.client();
    let d = c.dir(ROOT, "d");
    let policy = nuri_proto::layout::LayoutPolicy { width: 2, ..Default::default() };
    c.put(LayoutSet { ino: d, policy }).unwrap();
    let sub = c.dir(d, "sub");
    assert_eq!(c.get(LayoutGet { ino: sub }).unwrap(), LayoutReply::Directory(policy));
    let f = c.file(sub, "f");
    let LayoutReply::File(_, layout, _) = c.get(LayoutGet { ino: f }).unwrap() else { panic!() };
    assert_eq!(layout.components[0].groups.len(), 2);
    let wide = nuri_proto::layout::LayoutPolicy { width: 300, ..policy };
    assert_eq!(c.put(LayoutSet { ino: d, policy: wide }), Err(Status::INVAL));
}

#[test]
fn a_file_without_data_gets_the_layout_that_is_asked_for() {
    let world = World::new();
    let c = world.client();
    let policy = nuri_proto::layout::LayoutPolicy { width: 1, ..Default::default() };
    let groups = |ino| match c.get(LayoutGet { ino }).unwrap() {
        LayoutReply::File(_, layout, _) => layout.components[0].groups.len(),
        LayoutReply::Directory(_) => panic!(),
    };
    let (f, full) = (c.file(ROOT, "f"), c.file(ROOT, "full"));
    c.publish(full, 100_000).unwrap();
    [f, full].iter().for_each(|ino| c.let_go(*ino));
    assert!(groups(f) > 1);
    c.put(LayoutSet { ino: f, policy }).unwrap();
    assert_eq!(groups(f), 1);
    assert_eq!(c.put(LayoutSet { ino: full, policy }), Err(Status::NOTDIR));
}

/// Catches `broken!("swap_whatever_was_written")`.
#[test]
fn what_two_files_hold_is_exchanged_unless_one_was_written() {
    let world = World::new();
    let c = world.client();
    let [a, b] = ["a", "b"].map(|name| c.file(ROOT, name));
    let policy = nuri_proto::layout::LayoutPolicy { width: 1, ..Default::default() };
    c.let_go(b);
    c.put(LayoutSet { ino: b, policy }).unwrap();
    let held = |ino| c.get(LayoutGet { ino }).unwrap();
    let publish = |ino| {
        c.acquire(ino, LeaseMode::Write).unwrap();
        c.publish(ino, 100_000).unwrap();
    };
    let swap = |change| {
        [a, b].iter().for_each(|ino| c.let_go(*ino));
        c.put(SwapData { ino: a, with: b, change })
    };
    publish(a);
    let change = c.attr(a).unwrap().change;
    assert_eq!(swap(change), Err(Status::INVAL), "of another size");
    publish(b);
    let before = [held(a), held(b)];
    assert_ne!(before[0], before[1]);
    swap(change).unwrap();
    assert_eq!([held(b), held(a)], before);
    world.fsck();
    assert_eq!(swap(change), Err(Status::BUSY), "it was exchanged");
    let change = c.attr(a).unwrap().change;
    publish(a);
    assert_eq!(swap(change), Err(Status::BUSY), "it was written");
    c.let_go(a);
    assert_eq!(c.put(SwapData { ino: a, with: a, change }), Err(Status::INVAL));
    // Also where the data lie with the metadata.
    let [a, b] = ["c", "d"].map(|name| c.file(ROOT, name));
    for ino in [a, b] {
        c.publish_inline(ino, &[7; 100]).unwrap();
    }
    let change = c.attr(a).unwrap().change;
    [a, b].iter().for_each(|ino| c.let_go(*ino));
    c.put(SwapData { ino: a, with: b, change }).unwrap();
    assert_eq!(world.fsck().inodes, 5);
}

#[test]
fn extended_attributes_have_modes_and_limits() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    let set = |name: &str, value: &[u8], mode| {
        let (value, group_id) = (value.to_vec(), SetGroupId::Keep);
        c.put(XattrSet { ino: f, name: name.into(), value, mode, group_id })
    };
    let get = |name: &str| c.get(XattrGet { ino: f, name: name.into() });
    assert_eq!(get("user.a"), Err(Status::NODATA));
    assert_eq!(set("user.a", b"1", XattrMode::Replace), Err(Status::NODATA));
    set("user.a", b"1", XattrMode::Create).unwrap();
    assert_eq!(set("user.a", b"2", XattrMode::Create), Err(Status::EXIST));
    set("user.a", b"3", XattrMode::Any).unwrap();
    set("user.b", &vec![9; MAX_XATTR_VALUE], XattrMode::Any).unwrap();
    assert_eq!((get("user.a").unwrap(), get("user.b").unwrap().len()), (b"3".to_vec(), 65536));
    assert_eq!(set("user.c", &vec![9; MAX_XATTR_VALUE + 1], XattrMode::Any), Err(Status::TOOBIG));
    assert_eq!(set(&"n".repeat(256), b"", XattrMode::Any), Err(Status::RANGE));
    assert_eq!(c.get(XattrList { ino: f }).unwrap(), [b"user.a", b"user.b"]);
    c.put(XattrRemove { ino: f, name: b"user.a".to_vec() }).unwrap();
    let again = c.put(XattrRemove { ino: f, name: b"user.a".to_vec() });
    assert_eq!(again, Err(Status::NODATA));
    // The list of names is bounded, so that it always fits into one reply.
    let full = (0..400).find_map(|i| set(&format!("{i:0250}"), b"", XattrMode::Any).err());
    assert_eq!(full, Some(Status::NOSPC));
    assert!(c.get(XattrList { ino: f }).is_ok());
    let (mode, group_id) = (XattrMode::Any, SetGroupId::Keep);
    let none = XattrSet { ino: Ino(99), name: b"x".into(), value: vec![], mode, group_id };
    assert_eq!(c.put(none), Err(Status::STALE));
    c.unlink(ROOT, "f").unwrap();
    c.put(OrphanRelease { inos: vec![f] }).unwrap();
    world.fsck();
}

#[test]
fn counters_follow_and_survive() {
    let world = World::new();
    let c = world.client();
    let (f, g) = (c.file(ROOT, "f"), c.file(ROOT, "g"));
    c.publish(f, 8192).unwrap();
    c.publish(g, 4096).unwrap();
    c.publish(f, 12288).unwrap();
    assert_eq!(c.make(ROOT, "f", MakeKind::File), Err(Status::EXIST));
    let counts = c.get(StatFs {}).unwrap();
    assert_eq!(counts, StatFsReply { inodes: 3, allocated: 16384 });
    c.resize(g, 0).unwrap();
    let data = PublishData::Inline;
    let publish = Publish { ino: g, size: 5000, allocated: 5120, mtime: None, data };
    c.put_with(publish, &[1; 5000]).unwrap();
    c.resize(g, 10).unwrap();
    assert_eq!(c.attr(g).unwrap().allocated, 512, "of what lies with the metadata");
    c.resize(g, 0).unwrap();
    c.unlink(ROOT, "f").unwrap();
    c.put(OrphanRelease { inos: vec![f] }).unwrap();
    assert_eq!(c.get(StatFs {}).unwrap(), StatFsReply { inodes: 2, allocated: 0 });
    let id = c.id;
    let world = world.crash(1);
    let c = Client::known(&world, id);
    c.reclaim(Reclaim::default()).unwrap();
    assert_eq!(c.get(StatFs {}).unwrap(), StatFsReply { inodes: 2, allocated: 0 });
    let h = c.make(ROOT, "h", MakeKind::File);
    assert_eq!(h, Err(Status::MALFORMED), "the slot remembers later sequences");
    c.sequence.store(100, Ordering::SeqCst);
    assert!(c.file(ROOT, "h") > g, "numbers are not given twice");
    world.fsck();
}

#[test]
fn stamps_advance_while_the_clock_goes_back() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    let first = c.attr(f).unwrap().ctime;
    world.clock.set_wall(Duration::from_secs(first.sec as u64 - 5));
    let g = c.file(ROOT, "g");
    let second = c.attr(g).unwrap().ctime;
    assert!(second > first);
    let (id, clock) = (c.id, world.clock.clone());
    let world = world.crash(1);
    clock.set_wall(Duration::from_secs(first.sec as u64 - 9));
    let c = Client::known(&world, id);
    c.sequence.store(100, Ordering::SeqCst);
    c.reclaim(Reclaim::default()).unwrap();
    let h = c.file(ROOT, "h");
    assert!(c.attr(h).unwrap().btime >= second, "also over a restart");
    clock.set_wall(Duration::from_secs(5000));
    let i = c.file(ROOT, "i");
    assert_eq!(c.attr(i).unwrap().btime.sec, 5000);
}

/// Catches `broken!("wrong_clock_stays")`.
#[test]
fn a_clock_that_was_ten_days_ahead_is_followed_back() {
    const DAYS: u64 = 10 * 86_400;
    let world = World::new();
    let c = world.client();
    let first = c.attr(c.file(ROOT, "f")).unwrap().ctime;
    let right = Duration::from_secs(first.sec as u64 + 2);
    world.clock.set_wall(right + Duration::from_secs(DAYS));
    let ahead = c.attr(c.file(ROOT, "g")).unwrap().ctime;
    assert_eq!(ahead.sec as u64, right.as_secs() + DAYS);
    world.clock.set_wall(right);
    let after = c.attr(c.file(ROOT, "h")).unwrap().ctime;
    assert!(after.sec as u64 == right.as_secs() && after > first, "{after:?}");
}

/// Whoever looked at a file saw the times that its writer gave it.
#[test]
fn times_stay_where_data_is_published() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    let before = c.attr(f).unwrap();
    world.clock.advance(Duration::from_secs(5));
    let publish = |mtime| {
        let (size, data) = (5, PublishData::Inline);
        c.put_with(Publish { ino: f, size, allocated: 0, mtime, data }, b"hello").unwrap().attr
    };
    let stamp = Time { sec: before.ctime.sec + 1, nsec: 7 };
    let after = publish(Some(SetTime::At(stamp)));
    assert_eq!((after.mtime, after.ctime, after.change), (stamp, stamp, before.change + 1));
    let again = publish(None);
    assert_eq!((again.mtime, again.ctime), (stamp, stamp));
    let later = Time { sec: before.ctime.sec + 9, nsec: 0 };
    publish(Some(SetTime::At(later)));
    let g = c.attr(c.file(ROOT, "g")).unwrap();
    assert!(g.ctime > later, "the writer's clock is a little ahead");
}

/// An access control list: owner, user 12, group, mask, others.
fn list(rights: [u8; 5]) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    for (tag, rights) in [1, 2, 4, 16, 32].into_iter().zip(rights) {
        let id: u32 = if tag == 2 { 12 } else { u32::MAX };
        out.extend([tag, 0, rights, 0]);
        out.extend(id.to_le_bytes());
    }
    out
}

#[test]
fn lists_and_modes_keep_in_step() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    let name = b"system.posix_acl_access".to_vec();
    let set = |value: Vec<u8>, group_id| {
        let mode = XattrMode::Any;
        c.put(XattrSet { ino: f, name: name.clone(), value, mode, group_id })
    };
    let get = || c.get(XattrGet { ino: f, name: name.clone() });
    c.put(SetAttr { ino: f, mode: Some(0o2755), ..SetAttr::default() }).unwrap();
    set(list([6, 7, 5, 7, 0]), SetGroupId::Keep).unwrap();
    assert_eq!(c.attr(f).unwrap().mode & 0o7777, 0o2670);
    set(list([6, 7, 5, 7, 0]), SetGroupId::Drop).unwrap();
    assert_eq!(c.attr(f).unwrap().mode & 0o7777, 0o670);
    c.put(SetAttr { ino: f, mode: Some(0o741), ..SetAttr::default() }).unwrap();
    assert_eq!(get().unwrap(), list([7, 7, 5, 4, 1]), "chmod changes the mask");
    assert_eq!(set(b"broken".to_vec(), SetGroupId::Keep), Err(Status::INVAL));
    let mut plain = list([6, 7, 4, 7, 0]);
    plain.drain(28..36);
    plain.drain(12..20);
    set(plain, SetGroupId::Keep).unwrap();
    assert_eq!(get(), Err(Status::NODATA), "the mode says it all");
    assert_eq!(c.attr(f).unwrap().mode & 0o7777, 0o640);
    world.fsck();
}

#[test]
fn default_lists_are_inherited_and_replace_the_mask() {
    let world = World::new();
    let c = world.client();
    let d = c.dir(ROOT, "d");
    let (access, default) = (&b"system.posix_acl_access"[..], &b"system.posix_acl_default"[..]);
    let name = default.to_vec();
    let (value, mode, group_id) = (list([7, 7, 5, 7, 0]), XattrMode::Any, SetGroupId::Keep);
    c.put(XattrSet { ino: d, name, value, mode, group_id }).unwrap();
    let get = |ino, name: &[u8]| c.get(XattrGet { ino, name: name.to_vec() });
    let of = |kind, name| Make { mode: 0o640, umask: 0o077, ..make(d, name, kind) };
    let f = c.put(of(MakeKind::File, "f")).unwrap().entry.inode.attr;
    assert_eq!((f.mode & 0o777, f.change), (0o640, 2), "not bare: it has attributes");
    assert_eq!(get(f.ino, access).unwrap(), list([6, 7, 5, 4, 0]));
    assert_eq!(get(f.ino, default), Err(Status::NODATA));
    let s = c.put(of(MakeKind::Directory, "s")).unwrap().entry.inode.attr.ino;
    assert_eq!(get(s, default).unwrap(), list([7, 7, 5, 7, 0]));
    let l = c.put(of(MakeKind::Symlink(b"x".to_vec()), "l")).unwrap().entry.inode.attr;
    assert_eq!((l.mode & 0o777, get(l.ino, access)), (0o777, Err(Status::NODATA)));
    let call = Make { mode: 0o666, umask: 0o027, ..make(ROOT, "masked", MakeKind::File) };
    assert_eq!(c.put(call).unwrap().entry.inode.attr.mode & 0o777, 0o640);
    world.fsck();
}

#[test]
fn access_times_only_rise_and_are_no_change() {
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    let before = c.attr(f).unwrap();
    world.clock.advance(Duration::from_secs(5));
    let later = Time { sec: before.ctime.sec + 3, nsec: 7 };
    c.get(Accessed { at: vec![(f, later), (Ino(99), later)] }).unwrap();
    assert_eq!(c.attr(f).unwrap(), Attr { atime: later, ..before });
    let earlier = Time { sec: before.ctime.sec + 1, nsec: 0 };
    c.get(Accessed { at: vec![(f, earlier)] }).unwrap();
    assert_eq!(c.attr(f).unwrap().atime, later);
    let old = SetAttr { ino: f, atime: Some(SetTime::At(Time::default())), ..SetAttr::default() };
    c.put(old).unwrap();
    c.get(Accessed { at: vec![(f, later)] }).unwrap();
    assert_eq!(c.attr(f).unwrap().atime, Time::default(), "it was read before that");
}

#[test]
fn special_files_are_of_kinds_that_there_are() {
    let world = World::new();
    let c = world.client();
    let special = |name: &str, mode| {
        c.put(Make { mode, ..make(ROOT, name, MakeKind::Special { rdev: 0 }) }).map(drop)
    };
    for (name, mode) in
        [("fifo", 0o010_644), ("char", 0o020_644), ("block", 0o060_644), ("socket", 0o140_644)]
    {
        assert_eq!(special(name, mode), Ok(()), "{name}");
    }
    for mode in [0o644, 0o040_755, 0o100_644, 0o120_777, 0o170_644, 0o030_644] {
        assert_eq!(special("impossible", mode), Err(Status::INVAL), "{mode:o}");
    }
    world.fsck();
}
