//! Names: making, finding, moving, removing, listing.

use std::collections::BTreeSet;

use super::*;
use RenameMode::{Exchange, NoReplace, Replace};

const ROOT: Ino = Ino::ROOT;

#[test]
fn made_names_are_found_and_removed_ones_are_not() {
    let world = World::new();
    let c = world.client();
    let (d, f) = (c.dir(ROOT, "d"), c.file(ROOT, "f"));
    assert_eq!(c.make(ROOT, "f", MakeKind::File), Err(Status::EXIST));
    assert_eq!(c.make(ROOT, "f", MakeKind::Directory), Err(Status::EXIST));
    let open = Make { exclusive: Exclusive::No, ..make(ROOT, "f", MakeKind::File) };
    let reply = c.put(open).unwrap();
    assert!(reply.existed && reply.entry.inode.attr.ino == f);
    let link = c.make(d, "l", MakeKind::Symlink(b"to/there".to_vec())).unwrap();
    assert_eq!(c.acquire(link, LeaseMode::Read).unwrap().symlink.unwrap(), b"to/there");
    assert_eq!(c.find(d, "l").unwrap().size, 8);
    assert_eq!(c.find(ROOT, "none"), None);
    assert_eq!(c.unlink(ROOT, "none"), Err(Status::NOENT));
    assert_eq!(c.unlink(ROOT, "d"), Err(Status::ISDIR));
    assert_eq!(c.rmdir(ROOT, "f"), Err(Status::NOTDIR));
    assert_eq!(c.rmdir(ROOT, "d"), Err(Status::NOTEMPTY));
    c.unlink(d, "l").unwrap();
    c.rmdir(ROOT, "d").unwrap();
    assert_eq!(c.make(d, "late", MakeKind::File), Err(Status::NOENT), "a removed directory");
    c.unlink(ROOT, "f").unwrap();
    assert_eq!((c.find(ROOT, "f"), c.attr(ROOT).unwrap().nlink), (None, 2));
    world.fsck();
}

#[test]
fn names_that_no_directory_may_hold_are_refused() {
    let world = World::new();
    let c = world.client();
    let long = "x".repeat(256);
    for (name, status) in [
        ("", Status::INVAL),
        (".", Status::INVAL),
        ("..", Status::INVAL),
        ("a/b", Status::INVAL),
        ("a\0", Status::INVAL),
        (&long, Status::NAMETOOLONG),
    ] {
        assert_eq!(c.make(ROOT, name, MakeKind::File), Err(status), "{name:?}");
        let f = c.file(ROOT, "f");
        assert_eq!(c.rename((ROOT, "f"), (ROOT, name), Replace), Err(status));
        let link = Link { ino: f, parent: ROOT, name: name.into() };
        assert_eq!(c.put(link), Err(status));
        c.unlink(ROOT, "f").unwrap();
    }
    c.file(ROOT, &"x".repeat(255));
    let empty = c.make(ROOT, "s", MakeKind::Symlink(Vec::new()));
    let long = c.make(ROOT, "s", MakeKind::Symlink(vec![b'x'; 4096]));
    assert_eq!((empty, long), (Err(Status::NOENT), Err(Status::NAMETOOLONG)));
    world.fsck();
}

#[test]
fn rename_moves_and_replaces() {
    let world = World::new();
    let c = world.client();
    let (a, b) = (c.dir(ROOT, "a"), c.dir(ROOT, "b"));
    let (f, g, d) = (c.file(a, "f"), c.file(b, "g"), c.dir(a, "d"));
    assert_eq!(c.rename((a, "none"), (b, "x"), Replace), Err(Status::NOENT));
    assert_eq!(c.rename((a, "f"), (b, "g"), NoReplace), Err(Status::EXIST));
    let reply = c.rename((a, "f"), (b, "g"), Replace).unwrap();
    assert_eq!((reply.moved, reply.replaced.unwrap().ino), (f, g));
    assert_eq!(c.find(b, "g").unwrap().ino, f);
    assert_eq!(c.rename((b, "g"), (a, "d"), Replace), Err(Status::ISDIR));
    assert_eq!(c.rename((a, "d"), (b, "g"), Replace), Err(Status::NOTDIR));
    let e = c.dir(b, "e");
    c.rename((a, "d"), (b, "e"), Replace).unwrap();
    assert_eq!(c.find(b, "e").unwrap().ino, d);
    assert_eq!(c.attr(e).unwrap().nlink, 0, "open elsewhere perhaps: an orphan");
    let listing = c.get(ReadDir { ino: d, cookie: 0, max: 9, attrs: WithAttrs::No }).unwrap();
    assert_eq!(listing.parent, b);
    c.file(d, "inside");
    c.dir(ROOT, "other");
    assert_eq!(c.rename((ROOT, "other"), (b, "e"), Replace), Err(Status::NOTEMPTY));
    assert_eq!((c.attr(a).unwrap().nlink, c.attr(b).unwrap().nlink), (2, 3));
    world.fsck();
}

#[test]
fn rename_refuses_loops() {
    let world = World::new();
    let c = world.client();
    let a = c.dir(ROOT, "a");
    let b = c.dir(a, "b");
    let d = c.dir(b, "d");
    c.file(ROOT, "f");
    for into in [a, b, d] {
        assert_eq!(c.rename((ROOT, "a"), (into, "x"), Replace), Err(Status::INVAL));
    }
    assert_eq!(c.rename((b, "d"), (ROOT, "a"), Exchange), Err(Status::INVAL), "a below itself");
    assert_eq!(c.rename((ROOT, "a"), (b, "d"), Exchange), Err(Status::INVAL));
    assert_eq!(c.rename((b, "d"), (ROOT, "a"), Replace), Err(Status::NOTEMPTY));
    assert_eq!(c.rename((ROOT, "a"), (ROOT, "a"), Replace).unwrap().replaced, None);
    world.fsck();
}

#[test]
fn exchange_swaps_files_and_directories() {
    let world = World::new();
    let c = world.client();
    let (a, f) = (c.dir(ROOT, "a"), c.file(ROOT, "f"));
    let d = c.dir(a, "d");
    assert_eq!(c.rename((ROOT, "f"), (a, "none"), Exchange), Err(Status::NOENT));
    c.rename((ROOT, "f"), (a, "d"), Exchange).unwrap();
    assert_eq!((c.find(ROOT, "f").unwrap().ino, c.find(a, "d").unwrap().ino), (d, f));
    let root = c.attr(ROOT).unwrap();
    assert_eq!((root.nlink, root.size, c.attr(a).unwrap().nlink), (4, 2, 2));
    let listing = c.get(ReadDir { ino: d, cookie: 0, max: 9, attrs: WithAttrs::No }).unwrap();
    assert_eq!(listing.parent, ROOT);
    world.fsck();
}

#[test]
fn links_count_and_one_inode_has_several_names() {
    let world = World::new();
    let c = world.client();
    let (d, f) = (c.dir(ROOT, "d"), c.file(ROOT, "f"));
    let link = |ino, name: &str| c.put(Link { ino, parent: d, name: name.into() });
    assert_eq!(link(f, "g").unwrap().inode.attr.nlink, 2);
    assert_eq!(link(f, "g"), Err(Status::EXIST));
    assert_eq!(link(d, "self"), Err(Status::PERM));
    assert_eq!(link(Ino(999), "x"), Err(Status::STALE));
    // Two names of one inode: nothing happens, both stay.
    c.rename((ROOT, "f"), (d, "g"), Replace).unwrap();
    assert_eq!(c.find(ROOT, "f").unwrap().ino, f);
    assert_eq!(c.unlink(ROOT, "f").unwrap(), RemoveReply { ino: f, orphan: false });
    assert_eq!(c.attr(f).unwrap().nlink, 1);
    assert!(c.unlink(d, "g").unwrap().orphan);
    assert_eq!(link(f, "again"), Err(Status::NOENT), "an orphan gets no name again");
    c.put(OrphanRelease { inos: vec![f] }).unwrap();
    assert_eq!(c.attr(f), Err(Status::STALE));
    assert_eq!(world.fsck().inodes, 2);
}

/// Pages of a changing directory: what was there all the time comes exactly once.
#[test]
fn a_listing_with_changes_between_pages_is_complete_and_without_duplicates() {
    for seed in 0..6 {
        let world = World::new();
        let c = world.client();
        let mut rng = Rng::new(seed);
        let mut stable = BTreeSet::new();
        let mut here: Vec<String> = Vec::new();
        for i in 0..60 {
            let name = format!("n{i}");
            c.file(ROOT, &name);
            if rng.one_in(2) {
                stable.insert(name);
            } else {
                here.push(name);
            }
        }
        let (mut cookie, mut made) = (0, 0);
        let (mut seen, mut cookies) = (Vec::new(), BTreeSet::new());
        loop {
            let max = 1 + rng.below(9) as u32;
            let attrs = if rng.one_in(2) { WithAttrs::Yes } else { WithAttrs::No };
            let page = c.get(ReadDir { ino: ROOT, cookie, max, attrs }).unwrap();
            assert!(page.entries.len() <= max as usize);
            for entry in page.entries {
                assert!(entry.cookie > cookie && cookies.insert(entry.cookie));
                assert_eq!(entry.inode.is_some(), attrs == WithAttrs::Yes);
                cookie = entry.cookie;
                seen.push(String::from_utf8(entry.name).unwrap());
            }
            if page.end {
                break;
            }
            for _ in 0..rng.below(4) {
                if rng.one_in(3) && made < 20 {
                    made += 1;
                    c.file(ROOT, &format!("new{made}"));
                } else if rng.one_in(3) {
                    replace(&c, stable.iter().nth(rng.below(stable.len() as u64) as usize));
                } else if let Some(name) = here.pop() {
                    if rng.one_in(2) {
                        c.unlink(ROOT, &name).unwrap();
                    } else {
                        let to = format!("moved-{name}");
                        c.rename((ROOT, &name), (ROOT, &to), Replace).unwrap();
                    }
                }
            }
        }
        let unique: BTreeSet<_> = seen.iter().cloned().collect();
        assert_eq!(unique.len(), seen.len(), "seed {seed}: a name came twice");
        assert!(stable.is_subset(&unique), "seed {seed}: a name is missing");
        world.fsck();
    }
}

/// Catches `broken!("renamed_to_the_end")`. A listing would meet the first file again, and the last
/// one never, were it moved on each time before the listing comes to it.
#[test]
fn a_name_that_changes_within_its_directory_keeps_its_position() {
    let world = World::new();
    let c = world.client();
    for name in ["a", "b", "c"] {
        c.file(ROOT, name);
    }
    let page = |cookie| {
        let attrs = WithAttrs::No;
        c.get(ReadDir { ino: ROOT, cookie, max: 1, attrs }).unwrap().entries.pop()
    };
    let mut at = page(0).unwrap().cookie;
    c.rename((ROOT, "a"), (ROOT, "z"), Replace).unwrap();
    c.rename((ROOT, "c"), (ROOT, "y"), Replace).unwrap();
    for name in ["b", "y"] {
        let entry = page(at).unwrap();
        assert_eq!(entry.name, name.as_bytes());
        at = entry.cookie;
    }
    assert!(page(at).is_none(), "all were listed");
    world.fsck();
}

/// Writes a name anew as programs do: beside it, then over it.
fn replace(c: &Client<'_>, name: Option<&String>) {
    if let Some(name) = name {
        c.file(ROOT, "beside");
        c.rename((ROOT, "beside"), (ROOT, name), Replace).unwrap();
    }
}

#[test]
fn a_file_without_a_name_may_be_given_one() {
    let world = World::new();
    let c = world.client();
    let make = |c: &Client<'_>| {
        let call = MakeUnnamed { parent: ROOT, mode: 0o640, umask: 0, uid: 1, gid: 2 };
        c.put(call).unwrap().inode.attr
    };
    let (kept, gone) = (make(&c), make(&c));
    assert_eq!((kept.nlink, kept.mode), (0, 0o100_640));
    world.fsck();
    let link = |ino, name: &str| c.put(Link { ino, parent: ROOT, name: name.into() });
    assert_eq!(link(kept.ino, "f").unwrap().inode.attr.nlink, 1);
    c.put(OrphanRelease { inos: vec![kept.ino, gone.ino] }).unwrap();
    assert_eq!(c.find(ROOT, "f").unwrap().ino, kept.ino, "it has a name");
    assert_eq!(c.attr(gone.ino), Err(Status::STALE), "it had none");
    world.fsck();
    c.unlink(ROOT, "f").unwrap();
    assert_eq!(link(kept.ino, "g"), Err(Status::NOENT), "what lost its name gets no other");
    c.put(OrphanRelease { inos: vec![kept.ino] }).unwrap();
    assert_eq!(c.attr(kept.ino), Err(Status::STALE));
    world.fsck();
}

#[test]
fn a_file_has_65000_links_and_no_more() {
    use crate::namespace::schema::{Inode, decode, encode, inode_key};
    use nuri_kv::engine::{Batch, Engine};
    let world = World::new();
    let c = world.client();
    let f = c.file(ROOT, "f");
    // As if they had been made one by one.
    let engine = &world.server.engine;
    let mut inode: Inode = decode(&engine.get(&inode_key(f)).unwrap().unwrap()).unwrap();
    inode.attr.nlink = 64_999;
    let mut batch = Batch::new();
    batch.put(inode_key(f), encode(&inode).unwrap());
    engine.commit(batch).unwrap();
    let link = |name: &str| c.put(Link { ino: f, parent: ROOT, name: name.into() });
    assert_eq!(link("last").unwrap().inode.attr.nlink, 65_000);
    assert_eq!(link("more"), Err(Status::MLINK));
    c.unlink(ROOT, "last").unwrap();
    assert!(link("more").is_ok());
}

/// Catches `broken!("volumes_get_names")`.
#[test]
fn volumes_are_hidden_and_stay_so() {
    let world = World::new();
    let c = world.client();
    let before = c.get(StatFs {}).unwrap().inodes;
    assert_eq!(c.attr(Ino::VOLUMES), Err(Status::STALE), "made when the first volume is");
    let (volume, other) = (c.file(Ino::VOLUMES, "a"), c.file(Ino::VOLUMES, "b"));
    assert!(volume.is_hidden() && other.is_hidden() && volume.counter() != other.counter());
    assert!(!c.file(ROOT, "a").is_hidden());
    assert_eq!(c.get(StatFs {}).unwrap().inodes, before + 4);
    assert_eq!(c.attr(Ino::VOLUMES).unwrap().size, 2);
    let link = Link { ino: volume, parent: ROOT, name: b"link".to_vec() };
    assert_eq!(c.put(link), Err(Status::XDEV));
    for (from, to) in [((Ino::VOLUMES, "b"), (ROOT, "c")), ((ROOT, "a"), (Ino::VOLUMES, "c"))] {
        assert_eq!(c.rename(from, to, Replace).map(drop), Err(Status::XDEV));
    }
    c.rename((Ino::VOLUMES, "b"), (Ino::VOLUMES, "c"), NoReplace).unwrap();
    assert_eq!(c.make(Ino::VOLUMES, "a", MakeKind::File), Err(Status::EXIST));
    c.unlink(Ino::VOLUMES, "a").unwrap();
    assert_eq!(c.find(Ino::VOLUMES, "c").unwrap().ino, other);
    world.fsck();
    let world = world.crash(3);
    world.pass(std::time::Duration::from_secs(60));
    let (c, report) = (world.client(), world.fsck());
    assert!(c.find(Ino::VOLUMES, "c").is_some() && report.problems.is_empty());
}
