//! Processes that stay: what they take over from whoever started them, where their files are and
//! who may read them, and mounts at places with any name.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{NURI, Space, freeze, is_mounted, nuri, run, text, wait};

fn proc(pid: i32, name: &str) -> String {
    text(&fs::read(format!("/proc/{pid}/{name}")).unwrap())
}

fn field(pid: i32, file: &str, name: &str) -> String {
    let all = proc(pid, file);
    let line = all.lines().find(|line| line.starts_with(name));
    line.unwrap_or_else(|| panic!("{name} in {all}"))[name.len()..].trim().to_string()
}

/// A shell starts the space, with a lock and a low limit, from a directory that goes away.
#[test]
fn daemons_take_nothing_over() {
    let mut space = Space::bare();
    let (lock, away, mnt) = (space.str("lock"), space.make_dir("away"), space.path("mnt"));
    let script = format!(
        "cd {} && ulimit -Sn 1024 && exec 9>{lock} && flock 9 && {NURI} up --create --dir {} \
         --target-size 64M --targets 1 --mount {}",
        away.display(),
        space.dir(),
        mnt.display()
    );
    run("sh", &["-c", &script]);
    space.own_mount(mnt.clone());
    run("flock", &["--nonblock", &lock, "true"]);
    fs::remove_dir(&away).unwrap();
    let own = rustix::process::getsid(None).unwrap().as_raw_nonzero().get().to_string();
    for role in ["supervisor", "node0", "mount"] {
        let pid = space.pid(role);
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let open: Vec<_> = open.filter_map(|e| fs::read_link(e.path()).ok()).collect();
        assert!(!open.contains(&PathBuf::from(&lock)), "{role}: {open:?}");
        assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"), "{role}");
        assert_eq!(field(pid, "status", "Umask:"), "0077", "{role}");
        let files = field(pid, "limits", "Max open files");
        let limits: Vec<_> = files.split_whitespace().collect();
        assert_eq!(limits[0], limits[1], "{role}: soft and hard limit");
        let stat = proc(pid, "stat");
        let session = stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap();
        assert_ne!(session, own, "{role}");
    }
    space.down();
    assert!(!mnt.exists(), "what `up` made");
}

#[test]
fn too_few_descriptors_are_told() {
    let space = Space::bare();
    let script = format!("ulimit -n 256; {NURI} up --create --dir {}", space.dir());
    let out = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = text(&out.stderr);
    assert!(!out.status.success() && said.contains("only 256 files"), "{said}");
    assert!(!Path::new(&space.dir()).exists());
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_space_is_for_its_owner_alone() {
    let mut space = Space::bare();
    // Made by hand, for everybody.
    let dir = space.make_dir("space");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    space.start(&["--targets", "1", "--target-size", "64M"]);
    for name in ["", "run", "log", "node0", "target0"] {
        assert_eq!(mode(&dir.join(name)), 0o700, "{name}");
    }
    for name in ["space.json", "token", "node0/node.json", "node0/map.json", "node0/meta.log"] {
        assert_eq!(mode(&dir.join(name)), 0o600, "{name}");
    }
    for entry in fs::read_dir(dir.join("log")).unwrap().flatten() {
        assert_eq!(mode(&entry.path()), 0o600, "{entry:?}");
    }
    let lock = dir.join("run/node0.lock").display().to_string();
    let out = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args(["flock", "--nonblock", &lock, "true"])
        .output()
        .unwrap();
    assert!(text(&out.stderr).contains("Permission denied"), "{}", text(&out.stderr));
    space.down_clean();
}

/// Options of a mount, as the kernel has them.
fn options(point: &Path) -> String {
    let all = text(&fs::read("/proc/self/mountinfo").unwrap());
    let point = point.display().to_string();
    let line = all.lines().rfind(|l| l.split(' ').nth(4) == Some(&point)).unwrap().to_string();
    line.split(' ').nth(5).unwrap().to_string()
}

#[test]
fn mounts_give_no_rights_unless_told() {
    let mut space = Space::up(&["--targets", "1", "--target-size", "64M"]);
    let plain = options(&space.mnt());
    assert!(plain.contains("nosuid") && plain.contains("nodev"), "{plain}");
    let (dir, point) = (space.dir(), space.path("told"));
    let told = point.display().to_string();
    let out = nuri(&["fs", "mount", &dir, &told, "--suid", "--dev"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    space.own_mount(point.clone());
    let shown = options(&point);
    assert!(!shown.contains("nosuid") && !shown.contains("nodev"), "{shown}");
    run("mknod", &[&format!("{told}/null"), "c", "1", "3"]);
    fs::write(point.join("null"), "nothing").unwrap();
    let refused = fs::write(space.mnt().join("null"), "nothing").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(13));
    // Its log is where only root gets, not in the shared temporary directory.
    let name = told.replace('/', "-");
    let logs = fs::read_dir("/var/log/nuri").unwrap().flatten();
    let own = |e: &fs::DirEntry| text(e.file_name().as_encoded_bytes()).contains(&name);
    let log = logs.map(|e| (own(&e), e.path())).find(|(own, _)| *own).unwrap().1;
    assert_eq!((mode(&log), mode(log.parent().unwrap())), (0o600, 0o700));
    assert!(nuri(&["fs", "umount", &told]).status.success());
    fs::remove_file(log).unwrap();
    space.down_clean();
}

/// In a mount name space of its own: other tests read the machine's list of mounts.
#[test]
fn mount_points_have_any_name() {
    let space = Space::bare();
    let (dir, base) = (space.dir(), space.make_dir("points").display().to_string());
    let script = format!(
        r#"set -e
        odd="$(printf '{base}/a b\tc\nd"e'\''f\\g\377h')"
        more="$(printf '{base}/sub/x\ty\377')"
        {NURI} up --create --dir {dir} --targets 1 --target-size 64M --mount "$odd"
        echo content > "$odd/f"
        {NURI} fs mount {dir} "$more"
        grep -q content "$more/f"
        {NURI} status --dir {dir} | grep 'a b\\tc\\nd"e'
        {NURI} fs umount "$more"
        {NURI} up --dir {dir}
        {NURI} down --dir {dir}
        test ! -e "$odd"
        {NURI} up --dir {dir}
        grep -q content "$odd/f"
        {NURI} fs layout get "$odd/f"
        {NURI} down --dir {dir}
        test ! -e "$odd"
        "#
    );
    let mut sh = Command::new("unshare");
    sh.args(["-m", "sh", "-c", &script]).stdin(Stdio::null());
    let out = sh.output().unwrap();
    let said = format!("{}{}", text(&out.stdout), text(&out.stderr));
    let _ = nuri(&["down", "--force", "--dir", &dir]);
    assert!(out.status.success(), "{said}{}", space.logs());
}

#[test]
fn a_forced_stop_ends_whatever_a_mount_does() {
    let space = Space::up(&["--targets", "1", "--target-size", "64M"]);
    let mount = freeze(&space, "mount");
    let node = freeze(&space, "node0");
    let out = nuri(&["down", "--force", "--dir", &space.dir()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    wait("nothing is mounted", Duration::from_secs(5), || !is_mounted(&space.mnt()));
    assert!(space.mnt().exists(), "`up` did not make it");
    drop((mount, node));
    space.again();
    space.down_clean();
}
