//! What clients did by themselves: all or none, once, in order, under their leases only.

use nuri_proto::clock::SESSION;
use nuri_proto::op::log::*;

use super::*;

const AT: Time = Time { sec: 2000, nsec: 7 };

fn step(change: Change) -> Step {
    Step { at: AT, change }
}

fn apply(c: &Client<'_>, steps: Vec<Change>, payload: &[u8]) -> Result<Applied, Status> {
    c.put_with(Apply { steps: steps.into_iter().map(step).collect() }, payload)
}

/// Numbers of a session, one after the other.
fn numbers(c: &Client<'_>) -> impl FnMut() -> Ino {
    let Reserved { first, count } = c.put(Reserve { count: 100 }).unwrap();
    let mut all = (0..u64::from(count)).map(move |n| Ino(first.0 + n));
    move || all.next().unwrap()
}

fn unlink(parent: Ino, name: &str, fate: Fate) -> Change {
    Change::Unlink(Unlink { parent, name: name.into(), kind: RemoveKind::File }, fate)
}

/// A session that has the root alone.
fn alone(world: &World) -> Client<'_> {
    let client = world.client();
    client.acquire(Ino::ROOT, LeaseMode::Write).unwrap();
    client
}

#[test]
fn a_tree_made_alone_is_there_for_others_and_its_leases_are_its_makers() {
    let world = World::new();
    let a = alone(&world);
    let mut next = numbers(&a);
    let (dir, file, moved) = (next(), next(), next());
    let publish = Publish {
        ino: file,
        size: 5,
        allocated: 512,
        mtime: Some(SetTime::At(AT)),
        data: PublishData::Inline,
    };
    let rename = Rename {
        parent: dir,
        name: "x".into(),
        new_parent: Ino::ROOT,
        new_name: "y".into(),
        mode: RenameMode::Replace,
    };
    let set = SetAttr { ino: file, mode: Some(0o600), ..SetAttr::default() };
    let steps = vec![
        Change::Make(dir, make(Ino::ROOT, "d", MakeKind::Directory)),
        Change::Make(file, make(dir, "f", MakeKind::File)),
        Change::Make(moved, make(dir, "x", MakeKind::File)),
        Change::Publish(publish),
        Change::Rename(rename, Fate::Dropped),
        Change::SetAttr(set),
    ];
    let applied = apply(&a, steps, b"hello").unwrap();
    let modes: Vec<_> = applied.made.iter().map(|g| g.map(|g| g.mode)).collect();
    assert_eq!(modes, [Some(LeaseMode::Write); 3]);
    let attr = a.attr(file).unwrap();
    assert_eq!((attr.size, attr.mode & 0o7777, attr.mtime, attr.change), (5, 0o600, AT, 3));
    let record = a.acquire(file, LeaseMode::Read).unwrap().file.unwrap();
    assert_eq!(record.inline.as_deref(), Some(&b"hello"[..]));
    assert_eq!(a.find(Ino::ROOT, "y").unwrap().ino, moved);
    assert_eq!(a.attr(Ino::ROOT).unwrap().size, 2);
    assert_eq!(world.fsck().inodes, 4);
}

/// Catches `broken!("apply_unleased")`.
#[test]
fn nothing_is_applied_without_the_leases() {
    let world = World::new();
    let (a, b) = (alone(&world), world.client());
    let mut next = numbers(&a);
    let own = next();
    let steps = vec![Change::Make(own, make(Ino::ROOT, "own", MakeKind::File))];
    apply(&a, steps, &[]).unwrap();
    let mine = numbers(&b)();
    let steps = vec![Change::Make(mine, make(Ino::ROOT, "b", MakeKind::File))];
    assert_eq!(apply(&b, steps, &[]), Err(Status::STALE));
    assert_eq!(apply(&b, vec![unlink(Ino::ROOT, "own", Fate::Dropped)], &[]), Err(Status::STALE));
    let set = SetAttr { ino: own, mode: Some(0), ..SetAttr::default() };
    assert_eq!(apply(&b, vec![Change::SetAttr(set)], &[]), Err(Status::STALE));
    let attribute = xattr(own, "user.a", b"1", XattrMode::Any);
    let none = XattrRemove { ino: own, name: b"user.a".into() };
    let link = Link { ino: own, parent: Ino::ROOT, name: b"l".into() };
    for change in [attribute, Change::XattrRemove(none), Change::Link(link)] {
        assert_eq!(apply(&b, vec![change], &[]), Err(Status::STALE));
    }
    assert_eq!(world.fsck().inodes, 2);
}

#[test]
fn a_made_inode_is_given_back_by_the_number_that_was_told() {
    let world = World::new();
    let a = alone(&world);
    let ino = numbers(&a)();
    let (mtime, data) = (None, PublishData::Inline);
    let publish = Publish { ino, size: 1, allocated: 512, mtime, data };
    let set = SetAttr { ino, mode: Some(0o600), ..SetAttr::default() };
    let steps = vec![
        Change::Make(ino, make(Ino::ROOT, "f", MakeKind::File)),
        Change::Publish(publish),
        Change::SetAttr(set.clone()),
    ];
    let number = apply(&a, steps, b"x").unwrap().made[0].unwrap().number;
    apply(&a, vec![Change::SetAttr(set)], &[]).unwrap();
    let before = world.server.core.lock().leases.len();
    a.put(Release { leases: vec![(ino, number)] }).unwrap();
    assert_eq!(world.server.core.lock().leases.len(), before - 1);
}

#[test]
fn all_steps_or_none() {
    let world = World::new();
    let a = alone(&world);
    let mut next = numbers(&a);
    let (one, two) = (next(), next());
    let steps = vec![
        Change::Make(one, make(Ino::ROOT, "same", MakeKind::File)),
        Change::Make(two, make(Ino::ROOT, "same", MakeKind::File)),
    ];
    assert_eq!(apply(&a, steps, &[]), Err(Status::EXIST));
    assert_eq!(a.find(Ino::ROOT, "same"), None);
    assert_eq!(world.fsck().inodes, 1);
}

/// A step gives up the lease on what it removes. Catches `broken!("forgotten_for_good")`.
#[test]
fn a_batch_that_fails_leaves_the_leases_as_they_were() {
    let world = World::new();
    let a = alone(&world);
    let mut next = numbers(&a);
    let (one, two, three) = (next(), next(), next());
    let made = |ino, name: &str| Change::Make(ino, make(Ino::ROOT, name, MakeKind::File));
    apply(&a, vec![made(one, "one"), made(two, "two")], &[]).unwrap();
    let removed = || unlink(Ino::ROOT, "one", Fate::Dropped);
    assert_eq!(apply(&a, vec![removed(), made(three, "two")], &[]), Err(Status::EXIST));
    apply(&a, vec![removed(), made(three, "three")], &[]).unwrap();
    assert_eq!(a.find(Ino::ROOT, "one"), None);
    assert_eq!(world.fsck().inodes, 3);
}

#[test]
fn a_number_makes_one_inode_and_only_a_reserved_one() {
    let world = World::new();
    let a = alone(&world);
    let ino = numbers(&a)();
    let steps = |ino, name: &str| vec![Change::Make(ino, make(Ino::ROOT, name, MakeKind::File))];
    apply(&a, steps(ino, "one"), &[]).unwrap();
    for other in [ino, Ino::ROOT, Ino(ino.0 + 100), Ino(0)] {
        assert_eq!(apply(&a, steps(other, "two"), &[]), Err(Status::INVAL), "{other}");
    }
    assert!(a.file(Ino::ROOT, "three").0 > ino.0 + 99, "numbers are given once");
}

#[test]
fn a_removed_inode_goes_at_once_unless_somebody_has_it_open() {
    let world = World::new();
    let a = alone(&world);
    let mut next = numbers(&a);
    let (gone, open) = (next(), next());
    let steps = vec![
        Change::Make(gone, make(Ino::ROOT, "gone", MakeKind::File)),
        Change::Make(open, make(Ino::ROOT, "open", MakeKind::File)),
        unlink(Ino::ROOT, "gone", Fate::Dropped),
        unlink(Ino::ROOT, "open", Fate::Open),
    ];
    apply(&a, steps, &[]).unwrap();
    assert_eq!(a.attr(gone), Err(Status::STALE));
    assert_eq!(a.attr(open).unwrap().nlink, 0);
    a.put(OrphanRelease { inos: vec![open] }).unwrap();
    assert_eq!(a.attr(open), Err(Status::STALE));
    assert_eq!(world.fsck().inodes, 1);
}

#[test]
fn applied_steps_survive_a_crash_and_are_not_done_again() {
    let mut world = World::new();
    let (id, ino, sequence) = {
        let a = alone(&world);
        let ino = numbers(&a)();
        let steps = vec![Change::Make(ino, make(Ino::ROOT, "f", MakeKind::File))];
        apply(&a, steps, &[]).unwrap();
        (a.id, ino, a.sequence.load(Ordering::SeqCst))
    };
    world = world.crash(5);
    let a = Client::known(&world, id);
    let leases = vec![(Ino::ROOT, LeaseMode::Write), (ino, LeaseMode::Write)];
    a.reclaim(Reclaim { leases, ..Reclaim::default() }).unwrap();
    let change = Change::Make(ino, make(Ino::ROOT, "f", MakeKind::File));
    let again = a.repeat(sequence, Apply { steps: vec![step(change)] }, &[]).unwrap();
    assert_eq!(again.made.len(), 1);
    a.sequence.store(sequence, Ordering::SeqCst);
    apply(&a, vec![unlink(Ino::ROOT, "f", Fate::Dropped)], &[]).unwrap();
    assert_eq!(world.fsck().inodes, 1);
}

#[test]
fn who_looks_into_a_directory_waits_for_what_its_holder_did_there() {
    let world = World::new();
    let (a, b) = (alone(&world), world.client());
    let ino = numbers(&a)();
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| b.find(Ino::ROOT, "f"));
        let recall = a.recalled(&mut 0);
        assert_eq!((recall.ino, recall.keep), (Ino::ROOT, Some(LeaseMode::Read)));
        let steps = vec![Change::Make(ino, make(Ino::ROOT, "f", MakeKind::File))];
        let number = apply(&a, steps, &[]).unwrap().made[0].unwrap().number;
        a.obey(recall);
        let recall = a.recalled(&mut 1);
        assert_eq!((recall.ino, recall.number), (ino, number));
        a.obey(recall);
        assert_eq!(looks.join().unwrap().unwrap().ino, ino);
    });
}

/// Catches `broken!("full_store_grows")`.
#[test]
fn a_full_store_refuses_what_grows_and_takes_what_was_answered() {
    let world = World::new();
    let a = alone(&world);
    a.put(make(Ino::ROOT, "old", MakeKind::File)).unwrap();
    let mut next = numbers(&a);
    world.server.set_full(true);
    assert_eq!(a.put(make(Ino::ROOT, "new", MakeKind::File)).err(), Some(Status::NOSPC));
    assert_eq!(a.put(Reserve { count: 1 }).err(), Some(Status::NOSPC));
    let answered = Change::Make(next(), make(Ino::ROOT, "answered", MakeKind::File));
    apply(&a, vec![answered], &[]).unwrap();
    let old = Unlink { parent: Ino::ROOT, name: "old".into(), kind: RemoveKind::File };
    a.put(old).unwrap();
    world.server.set_full(false);
    a.put(make(Ino::ROOT, "new", MakeKind::File)).unwrap();
}

#[test]
fn a_file_that_grows_in_the_log_gets_its_place_and_is_cleaned_behind_a_dead_writer() {
    let world = World::new();
    let a = alone(&world);
    let mut next = numbers(&a);
    let (short, long) = (next(), next());
    let steps = vec![
        Change::Make(short, make(Ino::ROOT, "short", MakeKind::File)),
        Change::Make(long, make(Ino::ROOT, "long", MakeKind::File)),
        Change::Extend(Extend { ino: long, is_cut_done: false }),
    ];
    let applied = apply(&a, steps, &[]).unwrap();
    let [record] = &applied.placed[..] else { panic!("one place: {:?}", applied.placed) };
    assert!(!record.layout.components.is_empty());
    let b = world.client();
    let grows = vec![Change::Extend(Extend { ino: long, is_cut_done: false })];
    assert_eq!(apply(&b, grows, &[]), Err(Status::STALE));
    world.pass(SESSION / 2);
    b.get(StatFs {}).unwrap();
    world.pass(SESSION / 2 + std::time::Duration::from_secs(1));
    assert_eq!(world.server.sessions().len(), 1);
    let left = |ino| b.acquire(ino, LeaseMode::Write).unwrap().file.unwrap();
    assert_eq!((left(long).punch_from, left(long).object), (Some(0), record.object));
    assert_eq!(left(short).punch_from, None);
}

fn rename(from: (Ino, &str), to: (Ino, &str)) -> Change {
    let (parent, name) = (from.0, from.1.into());
    let (new_parent, new_name) = (to.0, to.1.into());
    let mode = RenameMode::Replace;
    Change::Rename(Rename { parent, name, new_parent, new_name, mode }, Fate::Dropped)
}

fn xattr(ino: Ino, name: &str, value: &[u8], mode: XattrMode) -> Change {
    let (name, value, group_id) = (name.into(), value.to_vec(), SetGroupId::Keep);
    Change::XattrSet(XattrSet { ino, name, value, mode, group_id })
}

#[test]
fn links_special_files_and_attributes_of_one_log_are_as_if_the_server_had_made_them() {
    let world = World::new();
    let a = alone(&world);
    let mut next = numbers(&a);
    let (file, pipe) = (next(), next());
    let link = |name: &str| Change::Link(Link { ino: file, parent: Ino::ROOT, name: name.into() });
    let fifo = Make { mode: 0o010_644, ..make(Ino::ROOT, "p", MakeKind::Special { rdev: 0 }) };
    let steps = vec![
        Change::Make(file, make(Ino::ROOT, "f", MakeKind::File)),
        Change::Make(pipe, fifo),
        link("g"),
        link("h"),
        xattr(file, "user.a", b"1", XattrMode::Create),
        Change::XattrRemove(XattrRemove { ino: file, name: b"user.a".into() }),
        xattr(file, "user.a", b"2", XattrMode::Create),
        xattr(file, "user.b", b"3", XattrMode::Any),
        unlink(Ino::ROOT, "f", Fate::Dropped),
    ];
    apply(&a, steps, &[]).unwrap();
    let attr = a.attr(file).unwrap();
    assert_eq!((attr.nlink, a.attr(pipe).unwrap().mode), (2, 0o010_644));
    let all = a.get(XattrAll { ino: file }).unwrap();
    assert_eq!(all, [(b"user.a".into(), b"2".into()), (b"user.b".into(), b"3".into())]);
    assert_eq!(world.fsck().inodes, 3);
    let rest = ["g", "h"].map(|name| unlink(Ino::ROOT, name, Fate::Dropped));
    apply(&a, rest.into(), &[]).unwrap();
    assert_eq!((a.attr(file), world.fsck().inodes), (Err(Status::STALE), 2));
}

/// Owner, user 12, group, this mask, others.
fn list(mask: u8) -> Vec<u8> {
    let entry = |(tag, rights): (u8, u8)| [tag, 0, rights, 0, 12, 0, 0, 0];
    let entries = [(1, 7), (2, 7), (4, 5), (16, mask), (32, 0)];
    [&[2, 0, 0, 0][..], entries.map(entry).as_flattened()].concat()
}

#[test]
fn lists_of_one_log_are_inherited_in_its_order() {
    let world = World::new();
    let a = alone(&world);
    let mut next = numbers(&a);
    let (dir, before, after, gone) = (next(), next(), next(), next());
    let file = |name: &str| Make { mode: 0o640, umask: 0o077, ..make(dir, name, MakeKind::File) };
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    let mode = SetAttr { ino: after, mode: Some(0o710), ..SetAttr::default() };
    let steps = vec![
        Change::Make(dir, make(Ino::ROOT, "d", MakeKind::Directory)),
        Change::Make(before, file("before")),
        xattr(dir, default, &list(7), XattrMode::Any),
        Change::Make(after, file("after")),
        Change::SetAttr(mode),
        Change::Make(gone, file("gone")),
        unlink(dir, "gone", Fate::Dropped),
        xattr(before, access, &list(6), XattrMode::Any),
    ];
    apply(&a, steps, &[]).unwrap();
    let attr = |ino| a.attr(ino).unwrap();
    assert_eq!((attr(before).mode & 0o777, attr(after).mode & 0o777), (0o760, 0o710));
    assert_eq!((attr(before).change, attr(after).change), (2, 3), "it was made with a list");
    let lists = |ino| a.get(XattrAll { ino }).unwrap();
    assert_eq!(lists(before), [(access.into(), list(6))]);
    assert_eq!(lists(after), [(access.into(), list(1))]);
    assert_eq!(world.fsck().inodes, 4);
    // A default list is for directories.
    let refused = apply(&a, vec![xattr(after, default, &list(7), XattrMode::Any)], &[]);
    assert_eq!(refused.unwrap_err(), Status::NOTDIR);
}

#[test]
fn attributes_that_come_and_go_with_their_inode_in_one_log_leave_nothing() {
    let world = World::new();
    let a = alone(&world);
    let file = numbers(&a)();
    let steps = vec![
        Change::Make(file, make(Ino::ROOT, "f", MakeKind::File)),
        xattr(file, "user.a", b"1", XattrMode::Any),
        unlink(Ino::ROOT, "f", Fate::Dropped),
    ];
    apply(&a, steps, &[]).unwrap();
    assert_eq!(world.fsck().inodes, 1);
}

/// Catches `broken!("log_moves_trees")`: another client may just move the new parent below it.
#[test]
fn a_directory_with_directories_in_it_leaves_its_parent_by_the_server_only() {
    let world = World::new();
    let a = alone(&world);
    let mut next = numbers(&a);
    let dir = |ino, parent, name: &str| Change::Make(ino, make(parent, name, MakeKind::Directory));
    let (tree, below, other) = (next(), next(), next());
    let made =
        vec![dir(tree, Ino::ROOT, "tree"), dir(below, tree, "below"), dir(other, Ino::ROOT, "o")];
    apply(&a, made, &[]).unwrap();
    let away = rename((Ino::ROOT, "tree"), (other, "tree"));
    assert_eq!(apply(&a, vec![away], &[]), Err(Status::INVAL));
    apply(&a, vec![rename((Ino::ROOT, "tree"), (Ino::ROOT, "named"))], &[]).unwrap();
    apply(&a, vec![rename((tree, "below"), (other, "leaf"))], &[]).unwrap();
    apply(&a, vec![rename((Ino::ROOT, "named"), (other, "leaf"))], &[]).unwrap();
    let links = |ino| a.attr(ino).unwrap().nlink;
    assert_eq!((links(Ino::ROOT), links(other), a.find(other, "leaf").unwrap().ino), (3, 3, tree));
    assert_eq!(world.fsck().inodes, 3);
}

#[test]
fn a_file_that_is_cut_to_nothing_gets_another_object_when_it_grows_again() {
    let world = World::new();
    let a = alone(&world);
    let file = numbers(&a)();
    let extend = || Change::Extend(Extend { ino: file, is_cut_done: false });
    let cut = |size| Change::SetAttr(SetAttr { ino: file, size: Some(size), ..SetAttr::default() });
    let steps = vec![Change::Make(file, make(Ino::ROOT, "f", MakeKind::File)), extend()];
    let first = apply(&a, steps, &[]).unwrap().placed[0].object;
    assert_eq!(apply(&a, vec![cut(1)], &[]), Err(Status::INVAL), "nobody punched the rest");
    let (size, allocated, mtime) = (10_000, 12_288, None);
    let (ino, data) = (file, PublishData::OnTargets);
    a.put(Publish { ino, size, allocated, mtime, data }).unwrap();
    let second = apply(&a, vec![cut(0), extend()], &[]).unwrap().placed[0].object;
    let attr = a.attr(file).unwrap();
    assert!(second != first && (attr.size, attr.allocated) == (0, 0));
    assert_eq!(world.fsck().inodes, 2);
}

/// Else the places of some dozens of small files would not fit into one answer.
#[test]
fn the_place_of_a_small_file_comes_without_its_bytes() {
    let world = World::new();
    let a = alone(&world);
    let ino = numbers(&a)();
    let (size, allocated, mtime, data) = (8000, 8192, None, PublishData::Inline);
    let steps = vec![
        Change::Make(ino, make(Ino::ROOT, "f", MakeKind::File)),
        Change::Publish(Publish { ino, size, allocated, mtime, data }),
        Change::Extend(Extend { ino, is_cut_done: false }),
    ];
    let applied = apply(&a, steps, &[7; 8000]).unwrap();
    assert!(applied.placed.len() == 1 && applied.placed[0].inline.is_none());
}
