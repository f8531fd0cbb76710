//! NFS: exports by commands, and every procedure beside a mount of the same space.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nfs3_types::mount::mountstat3;
use nfs3_types::nfs3::{self, Nfs3Option, createhow3, nfs_fh3, nfsstat3, sattr3, stable_how};
use nfs3_types::xdr_codec::Opaque;

use rustix::fs::{XattrFlags, setxattr};
use rustix::process::{Pid, Signal, kill_process};

use crate::nfs_client::{Client, NFS, Server, export, failed, packed, place};
use crate::support::{SetAtEnd, Space, refused, run, stop, wait};

const OK: nfsstat3 = nfsstat3::NFS3_OK;
const STALE: nfsstat3 = nfsstat3::NFS3ERR_STALE;

/// A space that exports `/home` to this machine, to write, root being root.
fn exported() -> Space {
    let space = Space::up(&["--target-size", "1G", "--shape", "stripe"]);
    fs::create_dir(space.mnt().join("home")).unwrap();
    export(&space, &["add", "/home", "127.0.0.1(rw,no_root_squash)"]);
    space
}

fn with_mode(mode: u32) -> sattr3 {
    sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() }
}

fn make_directory(client: &mut Client, dir: &nfs_fh3, name: &str) -> nfsstat3 {
    let attributes = with_mode(0o755);
    failed::<_, nfs3::MKDIR3resfail>(
        client
            .nfs::<nfs3::MKDIR3res>(9, &nfs3::MKDIR3args { where_: place(dir, name), attributes }),
    )
}

fn remove(client: &mut Client, procedure: u32, dir: &nfs_fh3, name: &str) -> nfsstat3 {
    let args = nfs3::REMOVE3args { object: place(dir, name) };
    failed::<_, nfs3::REMOVE3resfail>(client.nfs::<nfs3::REMOVE3res>(procedure, &args))
}

fn set(client: &mut Client, object: &nfs_fh3, new_attributes: sattr3) -> nfsstat3 {
    let (object, guard) = (object.clone(), Nfs3Option::None);
    let args = nfs3::SETATTR3args { object, new_attributes, guard };
    failed::<_, nfs3::SETATTR3resfail>(client.nfs::<nfs3::SETATTR3res>(2, &args))
}

fn may(client: &mut Client, object: &nfs_fh3) -> u32 {
    let args = nfs3::ACCESS3args { object: object.clone(), access: 0x3f };
    client.nfs::<nfs3::ACCESS3res>(4, &args).unwrap().access
}

#[test]
fn names_are_made_found_moved_and_removed() {
    let space = exported();
    let server = Server::start(&space, "nfs");
    let (mut client, home) = (Client::connect(&server), space.mnt().join("home"));
    let root = client.mount("/home").unwrap();
    let file = client.make_new(&root, "file").unwrap();
    let fresh = client.attributes(&file).unwrap();
    assert_eq!((fresh.mode, fresh.nlink, fresh.size), (0o644, 1, 0));
    assert_eq!(client.make_new(&root, "file"), Err(nfsstat3::NFS3ERR_EXIST));
    let again = client.make(&root, "file", createhow3::UNCHECKED(sattr3::default()));
    assert_eq!(again.as_ref(), Ok(&file));
    assert_eq!(make_directory(&mut client, &root, "dir"), OK);
    assert_eq!(make_directory(&mut client, &root, "dir"), nfsstat3::NFS3ERR_EXIST);
    let dir = client.find(&root, "dir").unwrap();

    let link = nfs3::LINK3args { file: file.clone(), link: place(&dir, "hard") };
    client.nfs::<nfs3::LINK3res>(15, &link).unwrap();
    assert_eq!(fs::metadata(home.join("dir/hard")).unwrap().nlink(), 2);
    let symlink_data = nfs3::nfspath3(Opaque::borrowed(b"../file"));
    let symlink = nfs3::symlinkdata3 { symlink_attributes: sattr3::default(), symlink_data };
    let args = nfs3::SYMLINK3args { where_: place(&dir, "soft"), symlink };
    let soft = client.nfs::<nfs3::SYMLINK3res>(10, &args).unwrap().obj.unwrap();
    let read: nfs3::READLINK3res<'_> = client.nfs(5, &nfs3::READLINK3args { symlink: soft });
    assert_eq!(read.unwrap().data.as_ref(), b"../file");
    assert_eq!(fs::read_link(home.join("dir/soft")).unwrap().to_str(), Some("../file"));
    let what = nfs3::mknoddata3::NF3FIFO(with_mode(0o600));
    let args = nfs3::MKNOD3args { where_: place(&dir, "fifo"), what };
    client.nfs::<nfs3::MKNOD3res>(11, &args).unwrap();
    assert!(fs::metadata(home.join("dir/fifo")).unwrap().file_type().is_fifo());

    let args = nfs3::RENAME3args { from: place(&dir, "hard"), to: place(&root, "moved") };
    client.nfs::<nfs3::RENAME3res>(14, &args).unwrap();
    assert_eq!(client.find(&root, "moved"), Ok(file.clone()));
    assert_eq!(client.find(&dir, "hard"), Err(nfsstat3::NFS3ERR_NOENT));
    assert_eq!(remove(&mut client, 13, &root, "dir"), nfsstat3::NFS3ERR_NOTEMPTY);
    for name in ["soft", "fifo"] {
        assert_eq!(remove(&mut client, 12, &dir, name), OK);
    }
    assert_eq!(remove(&mut client, 12, &root, "dir"), nfsstat3::NFS3ERR_ISDIR);
    assert_eq!(remove(&mut client, 13, &root, "dir"), OK);
    assert_eq!(client.attributes(&dir).unwrap_err(), STALE);
    assert_eq!(remove(&mut client, 12, &root, "none"), nfsstat3::NFS3ERR_NOENT);
    for name in ["", "a/b", "."] {
        assert_ne!(make_directory(&mut client, &root, name), OK, "{name:?}");
    }
    let long = "x".repeat(256);
    assert_eq!(client.make_new(&root, &long), Err(nfsstat3::NFS3ERR_NAMETOOLONG));
    assert_eq!(client.find(&root, ".."), Ok(root.clone()), "above an export is nothing");
    let mut names: Vec<_> = fs::read_dir(&home).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["file", "moved"]);
    server.end();
    space.down_clean();
}

/// What one writes the other reads, at once, and the same of attributes and sizes.
#[test]
fn clients_and_mounts_see_each_others_changes_at_once() {
    let space = exported();
    let server = Server::start(&space, "nfs");
    let (mut client, home) = (Client::connect(&server), space.mnt().join("home"));
    let root = client.mount("/home").unwrap();
    let file = client.make_new(&root, "file").unwrap();
    let path = home.join("file");
    for round in 0..20u8 {
        let stable = if round % 2 == 0 { stable_how::UNSTABLE } else { stable_how::FILE_SYNC };
        let data = vec![round; 10_000 * usize::from(round) + 1];
        client.write(&file, (0, &data), stable).unwrap();
        assert_eq!(fs::read(&path).unwrap()[..data.len()], data, "{round}");
        fs::write(&path, vec![round + 100; 5000]).unwrap();
        let (found, is_end) = client.read(&file, 0, 1 << 20).unwrap();
        assert!(is_end && found == vec![round + 100; 5000], "{round}: {}", found.len());
        assert_eq!(client.attributes(&file).unwrap().size, 5000);
    }
    let (part, is_end) = client.read(&file, 1000, 4000).unwrap();
    assert_eq!((part.len(), is_end), (4000, true));
    assert!(!client.read(&file, 1000, 10).unwrap().1);
    assert_eq!(client.read(&file, 9000, 10), Ok((vec![], true)));
    client.commit(&file).unwrap();
    let size = sattr3 { size: Nfs3Option::Some(100), ..with_mode(0o600) };
    assert_eq!(set(&mut client, &file, size), OK);
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.len(), found.mode() & 0o7777), (100, 0o600));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(client.attributes(&file).unwrap().mode, 0o640);
    fs::rename(&path, home.join("other")).unwrap();
    assert_eq!(client.find(&root, "file"), Err(nfsstat3::NFS3ERR_NOENT));
    assert_eq!(client.find(&root, "other"), Ok(file.clone()));
    fs::remove_file(home.join("other")).unwrap();
    assert_eq!(client.attributes(&file).unwrap_err(), STALE);
    assert_eq!(client.read(&file, 0, 10).unwrap_err(), STALE);
    assert_eq!(client.write(&file, (0, b"x"), stable_how::UNSTABLE).unwrap_err(), STALE);
    server.end();
    space.down_clean();
}

/// Catches `broken!("nfs_any_handle")`.
#[test]
fn handles_mean_the_same_at_every_server_and_nothing_can_be_guessed() {
    let space = exported();
    fs::create_dir_all(space.mnt().join("private")).unwrap();
    fs::write(space.mnt().join("private/secret"), "secret").unwrap();
    let (first, second) = (Server::start(&space, "first"), Server::start(&space, "second"));
    let mut client = Client::connect(&first);
    let root = client.mount("/home").unwrap();
    let file = client.make_new(&root, "file").unwrap();
    client.write(&file, (0, b"bytes"), stable_how::FILE_SYNC).unwrap();
    let mut other = Client::connect(&second);
    assert_eq!(other.read(&file, 0, 10), Ok((b"bytes".to_vec(), true)));
    assert_eq!(other.find(&root, "file"), Ok(file.clone()));
    first.end();
    drop(client);
    // As after a restart of all: the handle is as good as before.
    space.down();
    second.kill();
    space.again();
    let server = Server::start(&space, "third");
    let mut client = Client::connect(&server);
    assert_eq!(client.read(&file, 0, 10), Ok((b"bytes".to_vec(), true)));

    // The inode of another directory, put in place of this one's.
    let secret = fs::metadata(space.mnt().join("private/secret")).unwrap().ino();
    let mut guessed = file.data.to_vec();
    guessed[12..20].copy_from_slice(&secret.to_be_bytes());
    let guessed = nfs_fh3 { data: Opaque::owned(guessed) };
    assert_eq!(client.read(&guessed, 0, 10), Err(nfsstat3::NFS3ERR_BADHANDLE));
    for bad in [vec![], vec![0; 32], vec![0xff; 64], file.data[..31].to_vec()] {
        let bad = nfs_fh3 { data: Opaque::owned(bad) };
        assert_eq!(client.attributes(&bad).unwrap_err(), nfsstat3::NFS3ERR_BADHANDLE);
    }
    // What is exported again under the same name is another export.
    export(&space, &["rm", "/home"]);
    export(&space, &["add", "/home", "*"]);
    wait("the server knows it", Duration::from_secs(5), || {
        client.mount("/home").is_ok_and(|now| now != root)
    });
    assert_eq!(client.attributes(&file).unwrap_err(), STALE);
    server.end();
    space.down_clean();
}

/// The owner may all, the group and others may read, and one user may write too (acl(5)).
fn list_for_user(uid: u32) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let lines = [(1, 7, NONE), (2, 6, uid), (4, 4, NONE), (0x10, 6, NONE), (0x20, 4, NONE)];
    let line = |(tag, bits, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [vec![2, 0, 0, 0], lines.into_iter().flat_map(line).collect()].concat()
}

/// Catches `broken!("nfs_any_client")`.
#[test]
fn who_may_not_is_refused_at_every_call() {
    let space = exported();
    let home = space.mnt().join("home");
    let server = Server::start(&space, "nfs");
    let mut client = Client::connect(&server);
    let root = client.mount("/home").unwrap();
    let file = client.make_new(&root, "file").unwrap();
    client.write(&file, (0, b"bytes"), stable_how::FILE_SYNC).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();

    client.be(1000, 1000);
    assert_eq!(client.make_new(&root, "no"), Err(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(client.write(&file, (0, b"x"), stable_how::UNSTABLE), Err(nfsstat3::NFS3ERR_ACCES));
    assert_eq!(client.read(&file, 0, 5).unwrap().0, b"bytes");
    assert_eq!(set(&mut client, &file, with_mode(0o777)), nfsstat3::NFS3ERR_PERM);
    assert_eq!(may(&mut client, &file), 1, "read it, and nothing else");
    let path = home.join("file");
    setxattr(&path, "system.posix_acl_access", &list_for_user(1000), XattrFlags::empty()).unwrap();
    assert_eq!(may(&mut client, &file), 1 | 4 | 8);
    client.write(&file, (0, b"x"), stable_how::UNSTABLE).unwrap();
    client.be(1001, 1001);
    assert_eq!(may(&mut client, &file), 1);
    // NFS-5: an owner goes on although the mode was taken away.
    client.be(0, 0);
    let owned = sattr3 { uid: Nfs3Option::Some(1001), ..with_mode(0) };
    assert_eq!(set(&mut client, &file, owned), OK);
    client.be(1001, 1001);
    client.write(&file, (0, b"y"), stable_how::FILE_SYNC).unwrap();
    assert_eq!(client.read(&file, 0, 1).unwrap().0, b"y");

    // A sticky directory: others' names stay.
    fs::set_permissions(&home, fs::Permissions::from_mode(0o1777)).unwrap();
    client.be(1000, 1000);
    assert_eq!(remove(&mut client, 12, &root, "file"), nfsstat3::NFS3ERR_ACCES);
    client.make_new(&root, "own").unwrap();
    assert_eq!(fs::metadata(home.join("own")).unwrap().uid(), 1000);
    assert_eq!(remove(&mut client, 12, &root, "own"), OK);

    squashed_users_and_other_clients(&space, &server, &mut client);
    server.end();
    space.down_clean();
}

fn squashed_users_and_other_clients(space: &Space, server: &Server, client: &mut Client) {
    for name in ["read", "squash", "elsewhere"] {
        let dir = space.mnt().join(name);
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    }
    export(space, &["add", "/read", "192.0.2.0/24(rw)", "127.0.0.0/8"]);
    export(space, &["add", "/squash", "localhost(rw,anonuid=77,anongid=78)"]);
    export(space, &["add", "/elsewhere", "192.0.2.1(rw)"]);
    client.be(0, 0);
    let mut read = None;
    wait("the server knows them", Duration::from_secs(5), || {
        read = client.mount("/read").ok();
        read.is_some()
    });
    let (read, squash) = (read.unwrap(), client.mount("/squash").unwrap());
    let refusal = client.mount("/elsewhere").unwrap_err();
    assert!(matches!(refusal, mountstat3::MNT3ERR_ACCES), "{refusal}");
    assert!(matches!(client.mount("/none").unwrap_err(), mountstat3::MNT3ERR_NOENT));
    assert_eq!(client.make_new(&read, "no"), Err(nfsstat3::NFS3ERR_ROFS));
    client.make_new(&squash, "made").unwrap();
    let made = fs::metadata(space.mnt().join("squash/made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (77, 78));
    // From one export to another nothing is moved.
    let args = nfs3::RENAME3args { from: place(&squash, "made"), to: place(&read, "made") };
    let moved = client.nfs::<nfs3::RENAME3res>(14, &args);
    assert_eq!(failed(moved), nfsstat3::NFS3ERR_ROFS);

    // The client loses its right while it has the directory mounted.
    export(space, &["rm", "/squash"]);
    wait("the server knows it", Duration::from_secs(5), || {
        client.attributes(&squash).err() == Some(STALE)
    });
    assert!(server.said().contains("/squash is not exported any more"), "{}", server.said());
    // From another address the same handle is refused; and from this one when it loses its right.
    let mut other = Client::connect_from(server, [127, 0, 0, 2]);
    export(space, &["add", "/squash", "127.0.0.1(rw)"]);
    wait("the server knows it", Duration::from_secs(5), || client.mount("/squash").is_ok());
    let squash = client.mount("/squash").unwrap();
    assert!(matches!(other.mount("/squash").unwrap_err(), mountstat3::MNT3ERR_ACCES));
    assert_eq!(other.attributes(&squash).unwrap_err(), nfsstat3::NFS3ERR_ACCES);
    client.attributes(&squash).unwrap();
    export(space, &["set", "/squash", "127.0.0.2(rw)"]);
    wait("the server knows it", Duration::from_secs(5), || {
        client.attributes(&squash).err() == Some(nfsstat3::NFS3ERR_ACCES)
    });
    other.attributes(&squash).unwrap();
}

/// What was answered is there after the server and all nodes were killed.
/// Catches `broken!("nfs_answered_early")`.
#[test]
fn what_was_answered_is_durable() {
    let space = exported();
    let server = Server::start(&space, "nfs");
    let mut client = Client::connect(&server);
    let root = client.mount("/home").unwrap();
    assert_eq!(make_directory(&mut client, &root, "dir"), OK);
    let dir = client.find(&root, "dir").unwrap();
    for i in 0..20 {
        let file = client.make_new(&dir, &format!("file{i}")).unwrap();
        client.write(&file, (0, &[i; 30_000]), stable_how::UNSTABLE).unwrap();
        client.commit(&file).unwrap();
    }
    let args = nfs3::RENAME3args { from: place(&dir, "file7"), to: place(&root, "moved") };
    client.nfs::<nfs3::RENAME3res>(14, &args).unwrap();
    let moved = client.find(&root, "moved").unwrap();
    assert_eq!(set(&mut client, &moved, with_mode(0o600)), OK);
    client.make(&root, "once", createhow3::EXCLUSIVE(nfs3::createverf3([0xfe; 8]))).unwrap();
    server.kill();
    crate::support::kill_all(&space, &["node0"]);
    space.again();
    let home = space.mnt().join("home");
    assert_eq!(fs::read_dir(home.join("dir")).unwrap().count(), 19);
    for i in (0..20).filter(|i| *i != 7) {
        assert_eq!(fs::read(home.join(format!("dir/file{i}"))).unwrap(), [i; 30_000]);
    }
    assert_eq!(fs::metadata(home.join("moved")).unwrap().mode() & 0o7777, 0o600);
    // The same exclusive create, said again to the next server.
    let server = Server::start(&space, "next");
    let mut client = Client::connect(&server);
    let root = client.mount("/home").unwrap();
    let mut once =
        |verifier| client.make(&root, "once", createhow3::EXCLUSIVE(nfs3::createverf3(verifier)));
    assert!(once([0xfe; 8]).is_ok());
    let mut other = [0xfe; 8];
    for at in 0..8 {
        other[at] ^= 1;
        assert_eq!(once(other), Err(nfsstat3::NFS3ERR_EXIST), "byte {at} counts");
        other[at] ^= 1;
    }
    server.end();
    space.down_clean();
}

/// Uncommitted bytes that are lost: the client hears of it by another verifier.
/// Catches `broken!("nfs_one_verifier")`.
#[test]
fn lost_bytes_are_told_by_another_verifier() {
    let space = exported();
    let server = Server::start(&space, "nfs");
    let mut client = Client::connect(&server);
    let root = client.mount("/home").unwrap();
    let file = client.make_new(&root, "file").unwrap();
    let data = vec![7; 1 << 20];
    let first = client.write(&file, (0, &data), stable_how::UNSTABLE).unwrap();
    assert_eq!(client.commit(&file), Ok(first));
    // It is silent until its session is over, with bytes that nobody committed.
    client.write(&file, (0, &data), stable_how::UNSTABLE).unwrap();
    let pid = Pid::from_raw(server.pid()).unwrap();
    stop(pid);
    fs::write(space.mnt().join("home/file"), "others go on").unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    // An error says it too; what is answered after it is of another verifier.
    let mut later = client.commit(&file);
    wait("the server is back", Duration::from_secs(60), || {
        later = client.commit(&file);
        later.is_ok()
    });
    let later = later.unwrap();
    assert_ne!(later, first, "what was written before is lost");
    assert_eq!(fs::read(space.mnt().join("home/file")).unwrap(), b"others go on");
    assert_eq!(client.write(&file, (0, &data), stable_how::UNSTABLE), Ok(later));
    assert_eq!(client.commit(&file), Ok(later));
    server.kill();
    let server = Server::start(&space, "next");
    let mut client = Client::connect(&server);
    assert_ne!(client.commit(&file).unwrap(), later, "of another server");
    server.end();
    space.down_clean();
}

/// Catches `broken!("nfs_call_twice")`.
#[test]
fn a_call_that_is_repeated_is_carried_out_once() {
    let space = exported();
    let server = Server::start(&space, "nfs");
    let mut client = Client::connect(&server);
    let root = client.mount("/home").unwrap();
    let args = nfs3::MKDIR3args { where_: place(&root, "dir"), attributes: with_mode(0o755) };
    let args = packed(&args);
    client.xid += 1;
    client.send((NFS, 9), &args);
    let answer = client.receive();
    assert_eq!(answer[24..28], [0; 4], "it is made");
    // The answer was lost; the client asks again, here and by another connection.
    client.send((NFS, 9), &args);
    assert_eq!(client.receive(), answer);
    let xid = client.xid;
    drop(client);
    let mut client = Client::connect(&server);
    client.xid = xid;
    client.send((NFS, 9), &args);
    assert_eq!(client.receive(), answer);
    client.xid += 1;
    client.send((NFS, 9), &args);
    assert_eq!(client.receive()[24..28], [0, 0, 0, 17], "another call finds it there");
    server.end();
    space.down_clean();
}

/// All names of a directory, by READDIR or READDIRPLUS, with answers of so many bytes.
fn listed(client: &mut Client, dir: &nfs_fh3, plus: bool, most: u32) -> Vec<(String, bool)> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let (dir, cookieverf) = (dir.clone(), nfs3::cookieverf3::default());
        let name = |name: &nfs3::filename3<'_>| String::from_utf8(name.0.to_vec()).unwrap();
        let is_end = if plus {
            let (dircount, maxcount) = (most, most);
            let args = nfs3::READDIRPLUS3args { dir, cookie, cookieverf, dircount, maxcount };
            let page = client.nfs::<nfs3::READDIRPLUS3res<'_>>(17, &args).unwrap().reply;
            for entry in &page.entries.0 {
                let has_all = entry.name_attributes.is_some() && entry.name_handle.is_some();
                all.push((name(&entry.name), has_all));
                cookie = entry.cookie;
            }
            page.eof
        } else {
            let args = nfs3::READDIR3args { dir, cookie, cookieverf, count: most };
            let page = client.nfs::<nfs3::READDIR3res<'_>>(16, &args).unwrap().reply;
            for entry in &page.entries.0 {
                all.push((name(&entry.name), true));
                cookie = entry.cookie;
            }
            page.eof
        };
        if is_end {
            return all;
        }
    }
}

#[test]
fn listings_name_each_file_once_while_others_come_and_go() {
    let space = exported();
    let server = Server::start(&space, "nfs");
    let dir = space.mnt().join("home/many");
    fs::create_dir(&dir).unwrap();
    for i in 0..3000 {
        fs::write(dir.join(format!("stays-{i}")), "").unwrap();
    }
    let mut client = Client::connect(&server);
    let root = client.mount("/home/many").unwrap();
    let expected: BTreeSet<String> = (0..3000).map(|i| format!("stays-{i}")).collect();
    let check = |all: Vec<(String, bool)>| {
        let stays = |(name, has_all): &(String, bool)| name.starts_with("stays-") && *has_all;
        let found: Vec<&String> = all.iter().filter(|e| stays(e)).map(|(name, _)| name).collect();
        assert_eq!(found.len(), 3000, "each once");
        assert_eq!(found.into_iter().cloned().collect::<BTreeSet<_>>(), expected);
        assert_eq!(all[..2].iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), [".", ".."]);
    };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&is_done);
        let (done, dir) = (&is_done, &dir);
        scope.spawn(move || {
            for i in 0.. {
                fs::write(dir.join(format!("goes-{i}")), "").unwrap();
                fs::remove_file(dir.join(format!("goes-{i}"))).unwrap();
                if done.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        for (plus, most) in [(false, 512), (false, 65_536), (true, 4096), (true, 1 << 20)] {
            check(listed(&mut client, &root, plus, most));
        }
        drop(ending);
    });
    let (dir, cookieverf) = (root.clone(), nfs3::cookieverf3::default());
    let args = nfs3::READDIR3args { dir, cookie: 0, cookieverf, count: 100 };
    let small = client.nfs::<nfs3::READDIR3res<'_>>(16, &args);
    assert_eq!(failed(small), nfsstat3::NFS3ERR_TOOSMALL);
    server.end();
    space.down_clean();
}

/// The tools of libnfs, and the numbers of the space.
#[test]
fn tools_that_people_use_find_what_is_there() {
    let space = exported();
    let server = Server::start(&space, "nfs");
    let port = server.port;
    let uri = |path: &str| {
        format!("nfs://127.0.0.1/home/{path}?nfsport={port}&mountport={port}&version=3")
    };
    let data: Vec<u8> = (0..5_000_000u32).map(|i| (i >> 8 ^ i) as u8).collect();
    fs::write(space.path("data"), &data).unwrap();
    run("nfs-cp", &[&space.str("data"), &uri("copy")]);
    assert!(fs::read(space.mnt().join("home/copy")).unwrap() == data);
    run("nfs-cp", &[&uri("copy"), &space.str("back")]);
    assert!(fs::read(space.path("back")).unwrap() == data);
    symlink("copy", space.mnt().join("home/link")).unwrap();
    assert!(run("nfs-ls", &[&uri("")]).contains(" 5000000 copy"));
    assert_eq!(run("nfs-cat", &[&uri("link")]).len(), String::from_utf8_lossy(&data).len());

    let mut client = Client::connect(&server);
    let root = client.mount("/home").unwrap();
    let fsroot = root.clone();
    let space_wide = client.nfs::<nfs3::FSSTAT3res>(18, &nfs3::FSSTAT3args { fsroot }).unwrap();
    let known = rustix::fs::statvfs(space.mnt()).unwrap();
    assert_eq!(space_wide.tbytes, known.f_blocks * known.f_frsize);
    assert!((1..=space_wide.tbytes).contains(&space_wide.fbytes));
    let fsroot = root.clone();
    let limits = client.nfs::<nfs3::FSINFO3res>(19, &nfs3::FSINFO3args { fsroot }).unwrap();
    assert_eq!((limits.rtmax, limits.wtmax, limits.properties), (1 << 20, 1 << 20, 27));
    let limits = client.nfs::<nfs3::PATHCONF3res>(20, &nfs3::PATHCONF3args { object: root });
    assert_eq!(limits.unwrap().name_max, 255);
    server.end();
    space.down_clean();
}

#[test]
fn a_full_space_is_told_at_the_write_and_nothing_is_torn() {
    let space = Space::up(&["--targets", "1", "--target-size", "64M", "--shape", "stripe"]);
    export(&space, &["add", "/", "*(rw,no_root_squash)"]);
    let server = Server::start(&space, "nfs");
    let mut client = Client::connect(&server);
    let root = client.mount("/").unwrap();
    let file = client.make_new(&root, "file").unwrap();
    let (piece, mut accepted) = (vec![7; 1 << 20], 0);
    let refusal = loop {
        match client.write_some(&file, (accepted, &piece), stable_how::UNSTABLE) {
            Ok((len, _)) => accepted += u64::from(len),
            Err(status) => break status,
        }
        assert!(accepted < 64 << 20, "more than there is room for");
    };
    assert_eq!(refusal, nfsstat3::NFS3ERR_NOSPC);
    client.commit(&file).unwrap();
    let found = fs::read(space.mnt().join("file")).unwrap();
    assert!(found.len() as u64 == accepted && found.iter().all(|byte| *byte == 7));
    assert_eq!(remove(&mut client, 12, &root, "file"), OK);
    wait("the space comes back", Duration::from_secs(30), || {
        let again = client.make(&root, "again", createhow3::UNCHECKED(sattr3::default()));
        let again =
            again.and_then(|file| client.write_some(&file, (0, &piece), stable_how::FILE_SYNC));
        again.map(drop).map_err(|status| status.to_string())
    });
    server.end();
    space.down_clean();
}

/// Clients that send half a call, or none, and such that connect by the thousand.
#[test]
fn strangers_stop_nobody() {
    let space = exported();
    let server = Server::start(&space, "nfs");
    let connect = || TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let idle: Vec<TcpStream> = (0..1000).map(|_| connect()).collect();
    for (i, mut stream) in idle.iter().enumerate() {
        let half = [&(1_000_000u32 | 1 << 31).to_be_bytes()[..], &[0; 100]].concat();
        std::io::Write::write_all(&mut stream, &half[..i % half.len()]).unwrap();
    }
    for nonsense in [&[0xff; 64][..], b"GET / HTTP/1.1\r\n\r\n", &[0x80, 0, 0, 4, 1, 2, 3, 4]] {
        let mut stream = connect();
        std::io::Write::write_all(&mut stream, nonsense).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert!(matches!(std::io::Read::read(&mut stream, &mut [0; 100]), Ok(0) | Err(_)));
    }
    let mut client = Client::connect(&server);
    let root = client.mount("/home").unwrap();
    client.make_new(&root, "file").unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kib < 64 << 10, "{kib} KiB for 1000 clients");
    drop(idle);
    server.end();
    space.down_clean();
}

#[test]
fn what_makes_no_sense_is_refused_in_a_sentence() {
    let space = exported();
    fs::write(space.mnt().join("file"), "").unwrap();
    let dir = space.dir();
    let server = Server::start(&space, "nfs");
    let taken = format!("127.0.0.1:{}", server.port);
    for (args, words) in [
        (&["export", "add", "home", "*"][..], "is no path of the space: it begins with /"),
        (&["export", "add", "/none", "*"], "and is one of its directories"),
        (&["export", "add", "/file", "*"], "and is one of its directories"),
        (&["export", "add", "/../etc", "*"], "is no path of the space"),
        (&["export", "add", "/home", "*"], "/home is exported already"),
        (&["export", "rm", "/none"], "/none is not exported: nuri nfs export list"),
        (&["export", "set", "/none", "*"], "/none is not exported: nuri nfs export list"),
        (&["serve", "--listen", "127.0.0.1:0", "--export", "/none"], "/none is not exported"),
        (&["serve", "--listen", &taken], "Address already in use"),
    ] {
        refused(&[&["nfs"], args, &["--dir", &dir]].concat(), words);
    }
    for (client, words) in [
        ("10.0.0.0/33", "names no client"),
        ("*(rx)", "is no option of an export"),
        ("*(rw", "a bracket is missing"),
        ("a b", "names no client"),
    ] {
        refused(&["nfs", "export", "add", "/home", client, "--dir", &dir], words);
    }
    let list: serde_json::Value =
        serde_json::from_str(&export(&space, &["list", "--json"])).unwrap();
    assert_eq!(list["exports"][0]["path"], "/home");
    assert_eq!(list["exports"][0]["clients"][0]["host"], "127.0.0.1");
    // Volumes are beside them, and neither sees the other.
    let volumes = crate::support::nuri(&["volume", "list", "--dir", &dir]);
    assert_eq!(crate::support::text(&volumes.stdout).lines().count(), 1, "its heading");
    server.end();
    space.down_clean();
}
