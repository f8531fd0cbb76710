//! Namespaces that were damaged at random are told of, put in order, and served again.

use std::collections::BTreeSet;

use nuri_kv::engine::{Batch, Engine};

use super::*;
use crate::fsck::Problem;
use crate::namespace::schema::{
    self, Body, CookieEntry, Counters, Entry, Family, Inode, cookie_key, entry_key, inode_key,
};

/// Volumes, directories, files with inline and other data, links, attributes.
fn fill(world: &World) {
    let client = world.client();
    let mut dirs = vec![Ino::ROOT];
    for i in 0..12u64 {
        let parent = dirs[(i * 7 % dirs.len() as u64) as usize];
        dirs.push(client.dir(parent, &format!("dir{i}")));
        let file = client.file(parent, &format!("file{i}"));
        match i % 3 {
            0 => drop(client.publish_inline(file, &[i as u8; 100]).unwrap()),
            1 => drop(client.publish(file, 100_000 * i).unwrap()),
            _ => {
                let link = Link { ino: file, parent: dirs[1], name: format!("link{i}").into() };
                client.put(link).unwrap();
            }
        }
    }
    let volume = client.file(Ino::VOLUMES, "volume");
    client.publish(volume, 5_000_000).unwrap();
    client.file(Ino::VOLUMES, "other");
    client.make(dirs[1], "symlink", MakeKind::Symlink(b"target".to_vec())).unwrap();
    let (name, value) = (b"user.a".to_vec(), b"value".to_vec());
    let (mode, group_id) = (XattrMode::Any, SetGroupId::Keep);
    client.put(XattrSet { ino: dirs[2], name, value, mode, group_id }).unwrap();
}

/// Longer than old sessions are waited for.
const GRACE: Duration = Duration::from_secs(60);

type Records = Vec<(Vec<u8>, Vec<u8>)>;

fn records(engine: &dyn Engine, family: Family) -> Records {
    let prefix = schema::family_prefix(family);
    engine.scan(&prefix, &[], usize::MAX).unwrap()
}

fn put<T: serde::Serialize>(engine: &dyn Engine, key: Vec<u8>, value: &T) {
    change(engine, key, Some(schema::encode(value).unwrap()));
}

fn change(engine: &dyn Engine, key: Vec<u8>, value: Option<Vec<u8>>) {
    let mut batch = Batch::new();
    match value {
        Some(value) => batch.put(key, value),
        None => batch.delete(key),
    }
    engine.wait_durable(engine.commit(batch).unwrap()).unwrap();
}

fn inodes(engine: &dyn Engine) -> BTreeSet<u64> {
    let readable = |value: &Vec<u8>| schema::decode::<Inode>(value).is_ok();
    let all = records(engine, Family::Inode);
    all.iter()
        .filter(|(_, value)| readable(value))
        .filter_map(|(key, _)| schema::key_id(key))
        .collect()
}

fn picked<'a>(rng: &mut Rng, records: &'a Records) -> Option<&'a (Vec<u8>, Vec<u8>)> {
    (!records.is_empty()).then(|| &records[rng.below(records.len() as u64) as usize])
}

/// A record that is gone, or cannot be read.
fn lose_a_record(engine: &dyn Engine, rng: &mut Rng) {
    let families = [
        Family::Inode,
        Family::Inline,
        Family::Entry,
        Family::Cookie,
        Family::Counters,
        Family::Session,
        Family::Slot,
        Family::Done,
    ];
    let all = records(engine, families[rng.below(families.len() as u64) as usize]);
    if let Some((key, value)) = picked(rng, &all) {
        let garbage = [&[9], &value[1..]].concat();
        change(engine, key.clone(), (rng.below(2) == 0).then_some(garbage));
    }
}

/// An inode that says something else.
fn distort_an_inode(engine: &dyn Engine, rng: &mut Rng) {
    let all = records(engine, Family::Inode);
    let Some((key, value)) = picked(rng, &all) else { return };
    let Ok(mut inode) = schema::decode::<Inode>(value) else { return };
    match rng.below(5) {
        0 => inode.attr.nlink = rng.below(4) as u32,
        1 => inode.attr.ino = Ino(rng.below(20)),
        2 => inode.attr.allocated += 7,
        _ => match &mut inode.body {
            Body::Directory(dir) if rng.below(2) == 0 => dir.next_cookie = 3,
            Body::Directory(dir) => dir.parent = Ino(rng.below(20)),
            Body::File(file) if rng.below(2) == 0 => file.inline = !file.inline,
            Body::File(file) => file.on_targets = true,
            _ => {}
        },
    }
    put(engine, key.clone(), &inode);
}

/// A name that leads elsewhere: directories may come to lie in themselves.
fn distort_a_name(engine: &dyn Engine, rng: &mut Rng) {
    let all = records(engine, Family::Entry);
    let Some((key, value)) = picked(rng, &all) else { return };
    let Ok(mut entry) = schema::decode::<Entry>(value) else { return };
    let other = Ino(2 + rng.below(20));
    match rng.below(3) {
        0 => entry.ino = other,
        1 => entry.cookie = 3 + rng.below(4),
        _ => entry.kind = 1,
    }
    let (parent, name) = (Ino(schema::key_id(key).unwrap()), schema::key_tail(key).to_vec());
    if rng.below(2) == 0 {
        let position = CookieEntry { ino: entry.ino, kind: entry.kind, name };
        put(engine, cookie_key(parent, entry.cookie), &position);
    }
    put(engine, key.clone(), &entry);
}

/// Two directories lie in one another.
fn tie_a_circle(engine: &dyn Engine) {
    let inode =
        |ino| -> Inode { schema::decode(&engine.get(&inode_key(ino)).unwrap().unwrap()).unwrap() };
    let all = records(engine, Family::Entry);
    let find = |name: &[u8]| {
        let (key, value) = all.iter().find(|(key, _)| schema::key_tail(key) == name).unwrap();
        (key.clone(), schema::decode::<Entry>(value).unwrap())
    };
    let ((from, first), (_, second)) = (find(b"dir0"), find(b"dir1"));
    change(engine, from, None);
    change(engine, cookie_key(Ino::ROOT, first.cookie), None);
    let cookie = inode(second.ino).as_dir().unwrap().next_cookie;
    let entry = Entry { cookie, ..first };
    put(engine, entry_key(second.ino, b"dir0"), &entry);
    let position = CookieEntry { ino: entry.ino, kind: entry.kind, name: b"dir0".to_vec() };
    put(engine, cookie_key(second.ino, cookie), &position);
}

fn repaired(world: &World, what: &str) -> Vec<Problem> {
    let engine = &*world.server.engine;
    let before = inodes(engine);
    let found = fsck::check(engine).unwrap().problems;
    let now = Time { sec: 1000, nsec: 0 };
    let mended = fsck::repair::repair(engine, now).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(found.is_empty(), mended.is_empty(), "{what}: {found:?}");
    let left = fsck::check(engine).unwrap().problems;
    assert!(left.is_empty(), "{what}: {left:?} after {mended:?}");
    let lost: Vec<_> = before.difference(&inodes(engine)).copied().collect();
    assert!(lost.is_empty(), "{what}: inodes {lost:?} are gone after {mended:?}");
    mended
}

#[test]
fn what_was_damaged_is_put_in_order() {
    for seed in 0..400 {
        let world = World::new();
        fill(&world);
        let (engine, mut rng) = (world.server.engine.clone(), Rng::new(seed));
        let engine = &*engine;
        for _ in 0..=rng.below(6) {
            match rng.below(4) {
                0 => lose_a_record(engine, &mut rng),
                1 => distort_an_inode(engine, &mut rng),
                2 => distort_a_name(engine, &mut rng),
                _ => change(engine, schema::orphan_key(Ino(2 + rng.below(20))), Some(vec![])),
            }
        }
        let mended = repaired(&world, &format!("seed {seed}"));
        let world = world.crash(seed);
        world.pass(GRACE);
        let client = world.client();
        assert!(client.find(Ino::ROOT, "new").is_none(), "seed {seed}");
        client.file(Ino::ROOT, "new");
        let left = fsck::check(&*world.server.engine).unwrap().problems;
        assert!(left.is_empty(), "seed {seed}: {left:?} after {mended:?}");
    }
}

#[test]
fn directories_in_a_circle_are_found_again() {
    let world = World::new();
    fill(&world);
    tie_a_circle(&*world.server.engine);
    let mended = repaired(&world, "a circle");
    let is_circle = |problem: &Problem| matches!(problem, Problem::Unreachable { .. });
    assert_eq!(mended.iter().filter(|problem| is_circle(problem)).count(), 1, "{mended:?}");
    let world = world.crash(1);
    world.pass(GRACE);
    let client = world.client();
    let place = client.find(Ino::ROOT, "lost+found").unwrap();
    assert_eq!((place.mode & 0o777, place.size), (0o700, 1));
}

#[test]
fn a_space_without_its_root_has_everything_in_one_place() {
    let world = World::new();
    fill(&world);
    let engine = &*world.server.engine;
    for (key, _) in records(engine, Family::Entry) {
        change(engine, key, None);
    }
    change(engine, inode_key(Ino::ROOT), None);
    change(engine, schema::counters_key(), None);
    repaired(&world, "no root");
    let counters: Counters =
        schema::decode(&engine.get(&schema::counters_key()).unwrap().unwrap()).unwrap();
    assert_eq!(counters.inodes, inodes(engine).len() as u64);
    assert!(counters.next_object > crate::restored::SKIP, "targets may know more objects");
}
