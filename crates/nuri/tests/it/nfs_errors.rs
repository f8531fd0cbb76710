//! NFS calls that make no sense for what they name, and such that ask for too much.

use std::fs;
use std::time::Duration;

use nfs3_types::nfs3::{self, Nfs3Option, nfs_fh3, nfsstat3, nfstime3, sattr3, stable_how};
use nfs3_types::rpc::{auth_flavor, call_body, msg_body, opaque_auth, rpc_msg};
use nfs3_types::xdr_codec::Opaque;
use rustix::process::{Pid, Signal, kill_process};

use crate::nfs_client::{Client, NFS, Server, export, failed, packed, place};
use crate::stopwatch::Stopwatch;
use crate::support::{Space, has_ended, in_time, wait};

fn set(client: &mut Client, object: &nfs_fh3, mode: u32, guard: nfstime3) -> nfsstat3 {
    let (object, guard) = (object.clone(), Nfs3Option::Some(guard));
    let new_attributes = sattr3 { mode: Nfs3Option::Some(mode), ..sattr3::default() };
    let args = nfs3::SETATTR3args { object, new_attributes, guard };
    failed(client.nfs::<nfs3::SETATTR3res>(2, &args))
}

#[test]
fn calls_for_other_kinds_of_files_are_refused() {
    let space = Space::up(&["--target-size", "1G", "--shape", "stripe"]);
    for dir in ["home", "home/dir", "read"] {
        fs::create_dir(space.mnt().join(dir)).unwrap();
    }
    std::os::unix::fs::symlink("file", space.mnt().join("home/link")).unwrap();
    fs::write(space.mnt().join("home/file"), "bytes").unwrap();
    export(&space, &["add", "/home", "*(rw,no_root_squash)"]);
    export(&space, &["add", "/read", "*(ro,no_root_squash)"]);
    let server = Server::start(&space, "nfs");
    let mut client = Client::connect(&server);
    let root = client.mount("/home").unwrap();
    let mut find = |name| client.find(&root, name).unwrap();
    let (file, dir, link) = (find("file"), find("dir"), find("link"));

    assert_eq!(client.read(&dir, 0, 10), Err(nfsstat3::NFS3ERR_ISDIR));
    assert_eq!(client.read(&link, 0, 10), Err(nfsstat3::NFS3ERR_INVAL));
    let written = client.write(&dir, (0, b"x"), stable_how::UNSTABLE);
    assert_eq!(written, Err(nfsstat3::NFS3ERR_ISDIR));
    let args = nfs3::READLINK3args { symlink: file.clone() };
    let read = client.nfs::<nfs3::READLINK3res<'_>>(5, &args);
    assert_eq!(failed(read), nfsstat3::NFS3ERR_INVAL);
    let args = nfs3::RMDIR3args { object: place(&root, "file") };
    let removed = client.nfs::<nfs3::RMDIR3res>(13, &args);
    assert_eq!(failed(removed), nfsstat3::NFS3ERR_NOTDIR);
    assert_eq!(client.find(&file, "x"), Err(nfsstat3::NFS3ERR_NOTDIR));
    // More than can be asked for is a short read.
    assert_eq!(client.read(&file, 0, u32::MAX), Ok((b"bytes".to_vec(), true)));
    assert_eq!(client.read(&file, u64::MAX, 1), Ok((vec![], true)));
    let beyond = client.write(&file, (u64::MAX - 1, b"x"), stable_how::UNSTABLE);
    assert_eq!(beyond, Err(nfsstat3::NFS3ERR_FBIG));

    // Of any file, what holds for the space.
    let args = nfs3::FSSTAT3args { fsroot: file.clone() };
    assert!(client.nfs::<nfs3::FSSTAT3res>(18, &args).unwrap().tbytes > 0);
    let args = nfs3::PATHCONF3args { object: file.clone() };
    let limits = client.nfs::<nfs3::PATHCONF3res>(20, &args).unwrap();
    assert!(limits.chown_restricted && limits.case_preserving && !limits.case_insensitive);

    // The file changed since the client looked.
    let before = client.attributes(&file).unwrap().ctime;
    let other = nfstime3 { seconds: before.seconds, nseconds: before.nseconds ^ 1 };
    assert_eq!(set(&mut client, &file, 0o600, other), nfsstat3::NFS3ERR_NOT_SYNC);
    assert_eq!(set(&mut client, &file, 0o600, before), nfsstat3::NFS3_OK);
    assert_eq!(set(&mut client, &file, 0o644, before), nfsstat3::NFS3ERR_NOT_SYNC);

    let read_only = client.mount("/read").unwrap();
    let args = nfs3::ACCESS3args { object: read_only, access: 0x3f };
    let access = client.nfs::<nfs3::ACCESS3res>(4, &args).unwrap().access;
    assert_eq!(access, 1 | 2, "read it and look names up");
    // A failure tells of the directory, so that the client knows that there is no such name.
    let args = nfs3::LOOKUP3args { what: place(&root, "none") };
    let nfs3::LOOKUP3res::Err((status, told)) = client.nfs::<nfs3::LOOKUP3res>(3, &args) else {
        panic!("found")
    };
    assert!(status == nfsstat3::NFS3ERR_NOENT && told.dir_attributes.is_some());
    server.end();
    space.down_clean();
}

/// The whole answer to a call with these credentials.
fn answer(
    client: &mut Client,
    (program, vers, proc): (u32, u32, u32),
    flavor: auth_flavor,
) -> Vec<u8> {
    let cred = opaque_auth { flavor, body: Opaque::owned(vec![0; 8]) };
    let verf = opaque_auth::default();
    let call = call_body { rpcvers: 2, prog: program, vers, proc, cred, verf };
    client.send_raw(&packed(&rpc_msg { xid: 7, body: msg_body::CALL(call) }));
    client.receive()
}

#[test]
fn programs_versions_and_credentials_that_are_not_known_are_refused() {
    let space = Space::up(&["--target-size", "1G", "--shape", "stripe"]);
    export(&space, &["add", "/", "*"]);
    let server = Server::start(&space, "nfs");
    let mut client = Client::connect(&server);
    let words =
        |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let none = auth_flavor::AUTH_NULL;
    let mut says = |of, flavor| answer(&mut client, of, flavor);
    assert_eq!(says((NFS, 3, 0), none), words(&[7, 1, 0, 0, 0, 0]), "nothing, and well");
    assert_eq!(says((NFS, 3, 22), none), words(&[7, 1, 0, 0, 0, 3]), "no such procedure");
    assert_eq!(says((NFS, 4, 0), none), words(&[7, 1, 0, 0, 0, 2, 3, 3]), "no such version");
    assert_eq!(says((100_021, 4, 0), none), words(&[7, 1, 0, 0, 0, 1]), "no locks");
    assert_eq!(says((NFS, 3, 1), none), words(&[7, 1, 0, 0, 0, 4]), "no handle");
    assert_eq!(says((100_000, 9, 0), none), words(&[7, 1, 0, 0, 0, 2, 2, 4]));
    let args = packed(&nfs3::GETATTR3args { object: client.mount("/").unwrap() });
    let cred = opaque_auth { flavor: auth_flavor::AUTH_DES, body: Opaque::owned(vec![0; 8]) };
    let verf = opaque_auth::default();
    let call = call_body { rpcvers: 2, prog: NFS, vers: 3, proc: 1, cred, verf };
    let head = packed(&rpc_msg { xid: 7, body: msg_body::CALL(call) });
    client.send_raw(&[head, args].concat());
    assert_eq!(client.receive(), words(&[7, 1, 1, 1, 5]), "too weak");
    server.end();
    space.down_clean();
}

/// The space is gone, so an end in order takes long.
#[test]
fn a_second_signal_ends_a_server_at_once() {
    let space = Space::up(&[]);
    let server = Server::start(&space, "nfs");
    for role in ["supervisor", "node0"] {
        space.kill(role);
    }
    let pid = Pid::from_raw(server.pid()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    wait("the first signal is heard", Duration::from_secs(5), || {
        server.said().contains("is finished first")
    });
    kill_process(pid, Signal::TERM).unwrap();
    let ended = Stopwatch::start();
    wait("the server ended", Duration::from_secs(5), || has_ended(server.pid()));
    in_time(ended.elapsed(), 2.0, "the end");
    assert!(server.said().contains("a second signal ends it at once"), "{}", server.said());
    space.again();
    space.down_clean();
}
