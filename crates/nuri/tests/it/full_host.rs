//! The file system under a target is really full: refusals, nothing lost, service goes on.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{Space, nuri, refused, run, text, wait};

/// A small ext4 on a loop device; gone with the test, however it ends.
struct Host {
    point: PathBuf,
    _tmp: tempfile::TempDir,
}

impl Host {
    fn new(mib: u64) -> Host {
        let tmp = tempfile::Builder::new().prefix("nuri-host-").tempdir().unwrap();
        let (image, point) = (tmp.path().join("image"), tmp.path().join("mnt"));
        fs::create_dir(&point).unwrap();
        fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        let (image, mnt) = (image.display().to_string(), point.display().to_string());
        run("mkfs.ext4", &["-q", "-F", "-m", "0", &image]);
        run("mount", &["-o", "loop", &image, &mnt]);
        Host { point, _tmp: tmp }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    fn str(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A foreign file takes all that is left.
    fn fill(&self) {
        let mut file = fs::File::create(self.path("other")).unwrap();
        for part in [1 << 20, 4096] {
            while file.write_all(&vec![9; part]).is_ok() {}
        }
        file.sync_all().unwrap();
    }

    /// Another file takes what was given back meanwhile, to the last block.
    fn fill_rest(&self) {
        let mut file = fs::File::create(self.path("rest")).unwrap();
        while file.write_all(&[9; 4096]).is_ok() {}
        file.sync_all().unwrap();
    }

    fn make_room(&self) {
        fs::remove_file(self.path("other")).unwrap();
        let _ = fs::remove_file(self.path("rest"));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The space's processes may need a moment to end.
        for _ in 0..50 {
            let out = std::process::Command::new("umount").arg(&self.point).output();
            if out.is_ok_and(|out| out.status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn write_synced(path: &Path, data: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(data)?;
    file.sync_all()
}

/// Writes files of so many bytes until one is refused for want of space.
fn fill_with(dir: &Path, bytes: usize) -> usize {
    fill_slowly(dir, bytes, || Duration::ZERO)
}

/// The same, with a pause before each file.
fn fill_slowly(dir: &Path, bytes: usize, pause: impl Fn() -> Duration) -> usize {
    for i in 0..4000 {
        std::thread::sleep(pause());
        if let Err(error) = write_synced(&dir.join(format!("{bytes}-{i}")), &vec![i as u8; bytes]) {
            assert_eq!(error.raw_os_error(), Some(28), "{error}");
            let _ = fs::remove_file(dir.join(format!("{bytes}-{i}")));
            return i;
        }
    }
    panic!("never full");
}

fn check_filled(dir: &Path, bytes: usize, count: usize) {
    for i in 0..count {
        let got = fs::read(dir.join(format!("{bytes}-{i}"))).unwrap();
        assert!(got == vec![i as u8; bytes], "file {i} of {bytes} bytes");
    }
}

fn assert_up(space: &Space) {
    let status = space.status().to_string();
    assert!(!status.contains("failed"), "{status}");
}

#[test]
fn full_disk_under_a_target_refuses_and_recovers() {
    let host = Host::new(256);
    let space = Space::up(&["--target", &host.str("t"), "--target-size", "2G"]);
    let m = space.mnt();
    write_synced(&m.join("keep"), &vec![1; 20 << 20]).unwrap();
    host.fill();
    let large = fill_with(&m, 1 << 20);
    let small = fill_with(&m, 20_000);
    assert_up(&space);
    // What needs no new room goes on: small writes in place, and deleting.
    for round in 0..3000u64 {
        use std::os::unix::fs::FileExt;
        let file = fs::OpenOptions::new().write(true).open(m.join("keep")).unwrap();
        file.write_all_at(&[2; 4096], round % 100 * 4096).unwrap();
        if round % 100 == 99 {
            file.sync_all().unwrap();
        }
    }
    assert_up(&space);
    let check = |large| {
        let keep = fs::read(m.join("keep")).unwrap();
        assert!(keep[..100 * 4096].iter().all(|b| *b == 2), "overwritten in place");
        assert!(keep.len() == 20 << 20 && keep[100 * 4096..].iter().all(|b| *b == 1));
        check_filled(&m, 1 << 20, large);
        check_filled(&m, 20_000, small);
    };
    check(large);
    // What is deleted makes room for other data, though the disk stays full.
    for i in large / 2..large {
        fs::remove_file(m.join(format!("{}-{i}", 1 << 20))).unwrap();
    }
    wait("room of what was deleted", Duration::from_secs(10), || {
        write_synced(&m.join("instead"), &vec![5; (large / 4) << 20]).is_ok()
    });
    let large = large / 2;
    // A crash on a full disk: the log is replayed and applied all the same.
    space.kill("node0");
    wait("the node is back", Duration::from_secs(20), || fs::metadata(m.join("keep")).is_ok());
    check(large);
    host.make_room();
    write_synced(&m.join("again"), &vec![3; 40 << 20]).unwrap();
    write_synced(&m.join("little"), &[4; 20_000]).unwrap();
    check(large);
    assert_up(&space);
    space.down_clean();
}

#[test]
fn too_little_room_for_a_new_target_is_told() {
    let (host, space) = (Host::new(48), Space::bare());
    let (dir, target) = (space.dir(), host.str("t"));
    let up = ["up", "--create", "--dir", &dir, "--target", &target, "--target-size", "8G"];
    refused(&up, "too little room");
    let said = text(&nuri(&up).stderr);
    assert!(said.contains("make room") && said.contains(&target), "{said}");
    assert!(!host.path("t/store").exists(), "nothing is left behind");
}

#[test]
fn deleted_data_is_given_back_to_the_disk() {
    use std::os::unix::fs::MetadataExt;
    let space = Space::up(&["--targets", "1", "--target-size", "1G"]);
    let m = space.mnt();
    let store = Path::new(&space.dir()).join("target0/store");
    let du = || fs::metadata(&store).unwrap().blocks() / 2048;
    let empty = du();
    write_synced(&m.join("keep"), &vec![1; 10 << 20]).unwrap();
    write_synced(&m.join("large"), &vec![2; 200 << 20]).unwrap();
    let full = du();
    assert!(full >= empty + 210, "{empty} {full}");
    fs::remove_file(m.join("large")).unwrap();
    wait("the room is given back", Duration::from_secs(20), || du() <= empty + 14);
    assert!(fs::read(m.join("keep")).unwrap() == vec![1; 10 << 20]);
    space.down_clean();
}

#[test]
fn a_full_disk_under_the_metadata_refuses_new_files_at_once_and_recovers() {
    let host = Host::new(320);
    fs::create_dir(host.path("space")).unwrap();
    let mut space = Space::bare();
    std::os::unix::fs::symlink(host.path("space"), space.path("space")).unwrap();
    space.start(&["--target", &space.str("elsewhere")]);
    let own = space.mnt().join("own");
    fs::create_dir(&own).unwrap();
    let make = |i: u32| fs::write(own.join(i.to_string()), i.to_string());
    (0..200).for_each(|i| make(i).unwrap());
    host.fill();
    // A mount has numbers for so many; then creating is refused, and not the sync after it.
    let made = (200..20_000).find(|i| {
        let refused = make(*i).err();
        assert!(refused.as_ref().is_none_or(|e| e.raw_os_error() == Some(28)), "{refused:?}");
        refused.is_some()
    });
    let made = made.expect("refused in the end");
    let short = || space.status().to_string().contains("the disk of the metadata is nearly full");
    wait("the status tells it", Duration::from_secs(10), short);
    fs::File::open(&own).unwrap().sync_all().expect("what was made is told");
    fs::write(own.join("7"), "seven").unwrap();
    fs::rename(own.join("8"), own.join("eight")).unwrap();
    fs::remove_file(own.join("9")).unwrap();
    fs::File::open(&own).unwrap().sync_all().unwrap();
    let check = || {
        assert_eq!(fs::read_to_string(own.join("7")).unwrap(), "seven");
        assert_eq!(fs::read_to_string(own.join("eight")).unwrap(), "8");
        assert!(!own.join("9").exists());
        for i in 10..made {
            assert_eq!(fs::read_to_string(own.join(i.to_string())).unwrap(), i.to_string());
        }
    };
    check();
    // A crash on the full disk: what the log has needs the room that was kept for it, and so does
    // the map that a start writes.
    host.fill_rest();
    space.kill("node0");
    wait("the node is back", Duration::from_secs(20), || fs::metadata(own.join("7")).is_ok());
    check();
    host.make_room();
    wait("room again", Duration::from_secs(10), || make(made).is_ok());
    wait("the status knows", Duration::from_secs(10), || !short());
    check();
    space.down_clean();
}

/// Bytes that `df` shows as free.
fn free(dir: &Path) -> u64 {
    let shown = rustix::fs::statvfs(dir).unwrap();
    shown.f_bavail * shown.f_frsize
}

/// Fills disks of such sizes with files and compares what there was room for with what `df` said.
fn df_is_true(sizes: &[u64], shape: &[&str]) {
    let hosts: Vec<Host> = sizes.iter().map(|mib| Host::new(*mib)).collect();
    let mut space = Space::bare();
    let (point, dir) = (space.make_dir("mnt").display().to_string(), space.dir());
    let targets: Vec<String> = hosts.iter().map(|host| host.str("target")).collect();
    let mut words = vec!["up", "--create", "--dir", &dir, "--mount", &point];
    words.extend(shape);
    words.extend(targets.iter().flat_map(|target| ["--target", target]));
    let out = nuri(&words);
    assert!(out.status.success(), "{}", text(&out.stderr));
    space.own_mount(space.mnt());
    let said = free(&space.mnt());
    // New files go where targets had room when they last said so, twice a second. On disks so small
    // that is much, so the end is slow.
    let pause = || match free(&space.mnt()) < said / 20 {
        true => Duration::from_millis(300),
        false => Duration::from_millis(30),
    };
    let count = fill_slowly(&space.mnt(), 1 << 20, pause);
    let took = (count as u64) << 20;
    let off = said.abs_diff(took) as f64 / said as f64;
    assert!(off < 0.01, "df said {said}, there was room for {took}: {off:.3} off");
    // What is left is less than a file.
    assert!(free(&space.mnt()) < said / 100, "{} of {said}", free(&space.mnt()));
    check_filled(&space.mnt(), 1 << 20, count);
    space.down_clean();
    drop(space);
}

#[test]
fn df_is_true_of_unequal_disks() {
    df_is_true(&[300, 600], &["--shape", "stripe"]);
}

#[test]
fn df_is_true_of_two_mirrors_on_unequal_disks() {
    df_is_true(&[300, 600], &[]);
}

#[test]
fn df_is_true_of_mirrors_on_unequal_disks() {
    df_is_true(&[250, 300, 400], &["--shape", "mirror:2"]);
}
