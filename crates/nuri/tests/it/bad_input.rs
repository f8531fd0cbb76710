//! Wrong input: one clear sentence, exit status not zero, nothing lost.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::support::{Space, nuri, refused, text};

#[test]
fn mount_points_flags_and_ports() {
    let space = Space::bare();
    let (dir, full) = (space.dir(), space.make_dir("full"));
    fs::write(full.join("x"), "x").unwrap();
    let below = full.join("x/below").display().to_string();
    refused(&["up", "--create", "--dir", &dir, "--mount", &below], "cannot be made");
    refused(&["fs", "mount", "localhost:1", &below], "needs --token-file");
    assert!(!Path::new(&dir).exists());
    refused(&["up", "--dir", &dir, "--mount", &full.display().to_string()], "is not empty");
    refused(&["up", "--dir", &full.display().to_string()], "is not empty and holds no space");
    refused(&["up", "--dir", &dir, "--colour", "red"], "unexpected argument");
    refused(&["up", "--dir", &dir, "--targets", "0"], "0");
    refused(&["up", "--dir", &dir, "--nodes", "5", "--targets", "2"], "need at least 5 targets");
    refused(&["status", "--dir", &dir], "there is no space");
    refused(&["down", "--dir", &dir], "there is no space");
    refused(&["fs", "umount", &full.display().to_string()], "is not a mount point");
    refused(&["fs", "mount", "nowhere", &space.make_dir("m").display().to_string()], "neither");
    refused(&["fs", "layout", "get", &full.display().to_string()], "not on a mounted space");
    refused(&["target", "check", &full.display().to_string()], "is no target");
    assert!(full.join("x").exists(), "nothing was touched");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let small = ["up", "--create", "--dir", &dir, "--target-size", "64M", "--listen"];
    refused(&[&small[..], &[&address]].concat(), "is taken");
    let any = "0.0.0.0:0";
    refused(&[&small[..], &[any]].concat(), "no address that others can reach");
    let out = nuri(&[&small[..], &["127.0.0.1:0"]].concat());
    assert!(out.status.success(), "a better address is taken: {}", text(&out.stderr));
    refused(&["up", "--dir", &dir, "--listen", &address], "was made to listen on");
    space.down_clean();
}

#[test]
fn one_daemon_per_directory_and_no_foreign_targets() {
    let space = Space::up(&["--targets", "2", "--target-size", "64M"]);
    let node = format!("{}/node0", space.dir());
    refused(&["node", "run", "--dir", &node], "in use by another process");
    refused(&["target", "check", &format!("{}/target0", space.dir())], "in use by another process");
    refused(&["up", "--dir", &space.dir(), "--targets", "3"], "has 2 targets, not 3");
    space.down();
    // A second space must not take the first one's target, nor a directory with other files.
    let other = Space::bare();
    let (dir, foreign) = (other.dir(), format!("{}/target0", space.dir()));
    refused(&["up", "--create", "--dir", &dir, "--target", &foreign], "belongs to another space");
    let docs = other.make_dir("docs");
    fs::write(docs.join("letter"), "dear").unwrap();
    let third = other.str("third");
    let docs_too = ["--target", &docs.display().to_string()];
    refused(&[&["up", "--create", "--dir", &third][..], &docs_too].concat(), "is not empty");
    assert_eq!(fs::read_to_string(docs.join("letter")).unwrap(), "dear");
    space.again();
    space.down_clean();
}

fn flip(path: &Path, offset: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

#[test]
fn damaged_stores_are_told_and_left_alone() {
    let space = Space::up(&["--targets", "1", "--target-size", "96M"]);
    fs::write(space.mnt().join("f"), vec![8; 4 << 20]).unwrap();
    space.down_clean();
    let store = Path::new(&space.dir()).join("target0/store");
    let whole = fs::read(&store).unwrap();
    let dir = space.dir();

    flip(&store, 100);
    let one = nuri(&["target", "check", &format!("{dir}/target0")]);
    assert!(text(&one.stdout).contains("superblock"), "{}", text(&one.stdout));
    flip(&store, 4096 + 100);
    refused(&["up", "--dir", &dir], "superblocks");
    let after = fs::read(&store).unwrap();
    assert_eq!(after.len(), whole.len());
    fs::write(&store, &whole).unwrap();

    fs::OpenOptions::new().write(true).open(&store).unwrap().set_len(20 << 20).unwrap();
    refused(&["up", "--dir", &dir], "cut short");
    fs::write(&store, &whole).unwrap();
    space.again();
    assert_eq!(fs::read(space.mnt().join("f")).unwrap(), vec![8; 4 << 20]);
    space.down_clean();

    // A flipped bit in data is an error of that block, never wrong bytes.
    let mut bytes = fs::read(&store).unwrap();
    let at = bytes.windows(4096).rposition(|w| w.iter().all(|b| *b == 8)).unwrap();
    bytes[at + 7] ^= 1;
    fs::write(&store, &bytes).unwrap();
    let check = nuri(&["target", "check", &format!("{dir}/target0")]);
    assert!(!check.status.success(), "{}", text(&check.stdout));
    space.again();
    assert_eq!(fs::read(space.mnt().join("f")).unwrap_err().raw_os_error(), Some(5));
    // The log says which file, which bytes, where they lie and why.
    let ino = fs::metadata(space.mnt().join("f")).unwrap().ino();
    let log = fs::read_to_string(space.path("space/log/mount.log")).unwrap();
    let line = log.lines().find(|line| line.contains("cannot be read")).unwrap();
    assert!(line.contains(&format!("bytes of inode {ino} from ")), "{line}");
    assert!(line.contains(", target 1: ") && line.contains("failed its checksum"), "{line}");
    space.down();
}

#[test]
fn damaged_metadata_and_settings_are_told() {
    let space = Space::up(&["--targets", "1", "--target-size", "64M"]);
    fs::write(space.mnt().join("f"), "x").unwrap();
    space.down_clean();
    let dir = space.dir();
    let map = Path::new(&dir).join("node0/map.json");
    let good = fs::read_to_string(&map).unwrap();
    fs::write(&map, good.replace("default", "defaulT")).unwrap();
    refused(&["up", "--dir", &dir], "is damaged");
    fs::write(&map, &good).unwrap();
    let settings = Path::new(&dir).join("space.json");
    let good = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, good.replace("\"format\": 1", "\"format\": 9")).unwrap();
    refused(&["up", "--dir", &dir], "format 9");
    fs::write(&settings, &good).unwrap();
    let token = Path::new(&dir).join("token");
    crate::support::run("chmod", &["644", &token.display().to_string()]);
    refused(&["up", "--dir", &dir], "readable by others");
    crate::support::run("chmod", &["600", &token.display().to_string()]);
    space.again();
    assert_eq!(fs::read_to_string(space.mnt().join("f")).unwrap(), "x");
    space.down_clean();
}
