//! Processes that stay: what they take over from whoever started them, where their files are and
//! who may read them, and mounts at places with any name.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::{NURI, SetAtEnd, Space, freeze, is_mounted, nuri, refused, run, text, wait};
use crate::wire::Wire;

fn proc(pid: i32, name: &str) -> String {
    text(&fs::read(format!("/proc/{pid}/{name}")).unwrap())
}

fn field(pid: i32, file: &str, name: &str) -> String {
    let all = proc(pid, file);
    let line = all.lines().find(|line| line.starts_with(name));
    line.unwrap_or_else(|| panic!("{name} in {all}"))[name.len()..].trim().to_string()
}

/// The session that a process belongs to.
fn session(pid: i32) -> String {
    let stat = proc(pid, "stat");
    stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap().to_string()
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
    // Its leader may be outside of our namespace of processes: then it is 0.
    let own = session(std::process::id() as i32);
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
        assert_ne!(session(pid), own, "{role}");
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

/// Whoever took the port of a node that crashed would be asked in its place.
#[test]
fn nobody_takes_the_port_of_a_node_that_is_restarted() {
    let space = Space::up(&["--nodes", "2"]);
    for role in ["node0", "node1"] {
        let before = space.status();
        let address = |status: &serde_json::Value| {
            let node = &status["nodes"][usize::from(role == "node1")];
            node["address"].as_str().unwrap().to_string()
        };
        let (old, address) = (space.pid(role), address(&before));
        space.kill(role);
        let mut tries = 0;
        wait("the node runs again", Duration::from_secs(20), || {
            tries += 1;
            assert!(std::net::TcpListener::bind(&address).is_err(), "{role}, try {tries}");
            space.pid(role) != old
        });
        fs::write(space.mnt().join(role), "it serves").unwrap();
    }
    space.down_clean();
}

/// It would wait half a minute for what it cannot write, and then say that it is lost.
#[test]
fn an_unmount_without_the_first_node_says_so_at_once() {
    let mut space = Space::up(&["--nodes", "2"]);
    let point = space.mount("second");
    fs::create_dir(point.join("dir")).unwrap();
    fs::write(point.join("dir/a file"), vec![1; 100_000]).unwrap();
    fs::write(point.join("f"), "small").unwrap();
    let frozen = freeze(&space, "node0");
    // As under memory pressure: the kernel forgets the directory, and so does the mount.
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    let mnt = point.display().to_string();
    let wanted = ["does not answer", "97.7 KiB of dir/a file", "5 B of f", "--force"];
    // The second time nothing is trusted any more that the kernel knew of the mount.
    for pause in [0, 8] {
        std::thread::sleep(Duration::from_secs(pause));
        let asked = Instant::now();
        let out = nuri(&["fs", "umount", &mnt]);
        let (took, said) = (asked.elapsed(), text(&out.stderr));
        assert!(!out.status.success() && took < Duration::from_secs(5), "{took:?}: {said}");
        assert!(wanted.iter().all(|words| said.contains(words)), "{said}");
        let asked = Instant::now();
        rustix::fs::statvfs(&point).unwrap();
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    }
    drop(frozen);
    wait("it unmounts", Duration::from_secs(20), || nuri(&["fs", "umount", &mnt]).status.success());
    assert!(fs::read(space.mnt().join("dir/a file")).unwrap() == vec![1; 100_000]);
    space.down_clean();
}

/// A mount that was started from elsewhere, with paths from there; another one shows its name.
#[test]
fn an_unmount_looks_for_the_first_node_where_the_mount_does() {
    let mut space = Space::up(&["--nodes", "2"]);
    let start = |words: &[&str]| {
        let mut mount = Command::new(NURI);
        mount.args(["fs", "mount", "--foreground"]).args(words).current_dir(space.path("."));
        mount.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let named = start(&["--source", &space.str("second"), "space", "first"]);
    let mut mounts = [named, start(&["./space", "second"])];
    let points = ["first", "second"].map(|name| space.path(name));
    for point in &points {
        wait("it is mounted", Duration::from_secs(20), || is_mounted(point));
        space.own_mount(point.clone());
    }
    fs::write(points[1].join("f"), vec![1; 100_000]).unwrap();
    let unmount = || nuri(&["fs", "umount", &points[1].display().to_string()]);
    let frozen = freeze(&space, "node0");
    let said = text(&unmount().stderr);
    assert!(said.contains("does not answer") && said.contains("97.7 KiB of f"), "{said}");
    drop(frozen);
    wait("it unmounts", Duration::from_secs(20), || unmount().status.success());
    assert!(mounts[0].try_wait().unwrap().is_none(), "the other one is still there");
    assert!(mounts[1].try_wait().unwrap().is_some(), "its process has ended");
    assert!(nuri(&["fs", "umount", &points[0].display().to_string()]).status.success());
    mounts.iter_mut().for_each(|mount| assert!(mount.wait().unwrap().success()));
    assert_eq!(fs::read(space.mnt().join("f")).unwrap(), vec![1; 100_000]);
    space.down_clean();
}

/// Its process would try for half a minute to write what nobody takes.
#[test]
fn a_forced_unmount_without_the_first_node_leaves_no_process() {
    let mut space = Space::up(&["--nodes", "2"]);
    let point = space.mount("second");
    fs::write(point.join("f"), vec![1; 100_000]).unwrap();
    let frozen = freeze(&space, "node0");
    let asked = Instant::now();
    let out = nuri(&["fs", "umount", "--force", &point.display().to_string()]);
    let (took, said) = (asked.elapsed(), text(&out.stderr));
    assert!(out.status.success() && took < Duration::from_secs(5), "{took:?}: {said}");
    assert!(said.contains("left behind") && said.contains("KiB of f"), "{said}");
    let serves = |entry: &fs::DirEntry| {
        let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        line.contains("--foreground") && line.contains(&*point.to_string_lossy())
    };
    let processes = || fs::read_dir("/proc").unwrap().flatten().filter(serves).count();
    wait("the killed process goes", Duration::from_secs(5), || processes() == 0);
    drop(frozen);
    space.down_clean();
}

/// Whether it begins with time, level and process.
fn is_line(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let [time, level, who] = [(); 3].map(|()| words.next().unwrap_or_default());
    let levels = ["INFO", "WARN", "ERROR"];
    time.len() == 27 && time.ends_with('Z') && levels.contains(&level) && who.ends_with(']')
}

/// A node stands still for a while, and another time it is killed.
#[test]
fn logs_tell_when_who_and_what() {
    let space = Space::up(&["--nodes", "2"]);
    let log = |role: &str| {
        let path = space.path("space/log").join(format!("{role}.log"));
        fs::read_to_string(path).unwrap_or_default()
    };
    let says = |role: &str, words: &str| {
        let text = log(role);
        if text.contains(words) { Ok(()) } else { Err(text) }
    };
    let soon = Duration::from_secs(20);
    wait("it serves", soon, || says("node1", "node 2 serves 127.0.0.1:"));
    let node1 = freeze(&space, "node1");
    wait("its silence is told", soon, || says("node0", "is not heard from"));
    drop(node1);
    wait("its return is told", soon, || says("node0", " is back"));
    space.kill("node1");
    wait("its end is told", soon, || says("supervisor", "has ended: signal: 9"));
    space.wait_status("all is well", soon, |status| status["health"]["state"] == "ok");
    space.down_clean();
    for role in ["supervisor", "node0", "node1", "mount"] {
        let text = log(role);
        let odd: Vec<_> = text.lines().filter(|line| !is_line(line)).collect();
        assert!(odd.is_empty(), "{role}: {odd:?}");
    }
}

#[test]
fn logs_can_be_read_by_programs() {
    let mut space = Space::bare();
    let up = ["up", "--create", "--targets", "1", "--target-size", "64M", "--dir"];
    let (dir, mnt) = (space.dir(), space.path("mnt"));
    let mut command = Command::new(NURI);
    command.args(up).arg(&dir).arg("--mount").arg(&mnt).args(["--log-format", "json"]);
    assert!(command.output().unwrap().status.success());
    space.own_mount(mnt);
    for role in ["node0", "mount"] {
        let path = space.path("space/log").join(format!("{role}.log"));
        let text = || fs::read_to_string(&path).unwrap();
        wait("it says something", Duration::from_secs(10), || text().ends_with('\n'));
        for line in text().lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let process = row["process"].as_str().unwrap();
            assert!(process.starts_with(role) && row["level"] == "INFO", "{line}");
            assert!(row["time"].is_string() && row["said"].is_string(), "{line}");
        }
    }
    // An error is found in it too.
    space.down();
    fs::write(space.path("space/target0/store"), vec![7; 1 << 20]).unwrap();
    let mut again = Command::new(NURI);
    again.args(["up", "--dir", &dir]).env("NURI_LOG_FORMAT", "json");
    let said = text(&again.output().unwrap().stderr);
    assert!(said.contains("superblock") || said.contains("damaged"), "{said}");
}

#[test]
fn only_what_was_asked_for_is_logged() {
    let space = Space::bare();
    let up = ["up", "--create", "--targets", "1", "--target-size", "64M", "--dir"];
    let dir = space.dir();
    let mut command = Command::new(NURI);
    command.args(up).arg(&dir).env("NURI_LOG", "error");
    assert!(command.output().unwrap().status.success());
    let log = fs::read_to_string(space.path("space/log/node0.log")).unwrap();
    assert_eq!(log, "", "nothing went wrong");
    refused(&["status", "--dir", &dir, "--log-level", "loud"], "possible values: error, warn");
    space.down();
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
    for name in [
        "space.json",
        "token",
        "mount.token",
        "node0/node.json",
        "node0/map.json",
        "node0/meta.log",
    ] {
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
        tries=0
        until {NURI} status --dir {dir} | grep 'a b\\tc\\nd"e'; do
            tries=$((tries + 1)); test $tries -lt 100; sleep 0.1
        done
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

/// As `df` and monitors do, again and again.
#[test]
fn a_mount_that_is_only_looked_at_is_stopped() {
    let mut space = Space::up(&["--targets", "1", "--target-size", "64M"]);
    let (here, there) = (space.mnt(), space.mount("there"));
    let stop = AtomicBool::new(false);
    let look = |point: &Path| {
        while !stop.load(Ordering::Relaxed) {
            let _ = rustix::fs::statvfs(point);
            std::thread::sleep(Duration::from_micros(200));
        }
    };
    std::thread::scope(|scope| {
        let ending = SetAtEnd(&stop);
        scope.spawn(|| look(&here));
        scope.spawn(|| look(&there));
        let outs = [
            nuri(&["fs", "umount", &there.display().to_string()]),
            nuri(&["down", "--dir", &space.dir()]),
        ];
        drop(ending);
        for out in outs {
            assert!(out.status.success(), "{}", text(&out.stderr));
        }
    });
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

/// It joined, was killed before it could note who it is, and is started as its unit does.
#[test]
fn a_node_that_ended_as_it_joined_goes_on_joining() {
    let space = Space::bare();
    let second = space.make_dir("second");
    let dir = space.dir();
    let out = nuri(&["up", "--create", "--targets", "1", "--target-size", "64M", "--dir", &dir]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let listed = |count: usize| {
        let said = text(&nuri(&["node", "list", "--dir", &dir]).stdout);
        let lines = said.lines().count() == 3;
        if lines && said.matches(" up ").count() == count { Ok(()) } else { Err(said) }
    };
    let status = text(&nuri(&["status", "--json", "--dir", &dir]).stdout);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let first = status["nodes"][0]["address"].as_str().unwrap();
    let (node, token) = (second.display().to_string(), format!("{dir}/token"));
    let target = second.join("target").display().to_string();
    let join = ["node", "run", "--create", "--dir", &node, "--join", first, "--target", &target];
    let words = [&join[..], &["--token-file", &token, "--target-size", "64M"]].concat();
    let start = |words: &[&str]| Command::new(NURI).args(words).stderr(Stdio::null()).spawn();
    let mut running = start(&words).unwrap();
    wait("it joins", Duration::from_secs(20), || listed(2));
    running.kill().unwrap();
    running.wait().unwrap();

    let note = second.join("node.json");
    let mut told: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&note).unwrap()).unwrap();
    told["id"] = serde_json::Value::Null;
    told["target_ids"] = serde_json::json!({});
    fs::write(&note, told.to_string()).unwrap();
    let mut running = start(&["node", "run", "--dir", &node]).unwrap();
    wait("it is the same node again", Duration::from_secs(30), || listed(2));
    running.kill().unwrap();
    running.wait().unwrap();
    let out = nuri(&["down", "--dir", &dir, "--yes"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
}

/// As after a boot: the network and the other machines come later.
#[test]
fn a_node_waits_for_its_address_and_the_first_node() {
    let wire = Wire::new("boot");
    let mut space = Space::bare();
    let (first, token) = (space.make_dir("first"), space.path("first/token"));
    fs::write(&token, format!("{}\n", "5a".repeat(32))).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let (first, token) = (first.display().to_string(), token.display().to_string());
    let run = ["node", "run", "--create", "--target-size", "64M", "--dir"];
    let (node, targets) = (space.str("node"), ["t1", "t2"].map(|name| space.str(name)));
    let args = [&node, "--target", &targets[1], "--listen", "10.77.0.3:7400"];
    let more = ["--join", "10.77.0.1:7400", "--token-file", &token];
    let said = space.path("said");
    let out = fs::File::create(&said).unwrap();
    let mut waiting = wire.command(1, &[&run[..], &args, &more].concat());
    waiting.stdout(out.try_clone().unwrap()).stderr(out);
    space.own_child(waiting.spawn().unwrap());
    let says = |words: &str| {
        let text = fs::read_to_string(&said).unwrap();
        if text.contains(words) { Ok(()) } else { Err(text) }
    };
    let soon = Duration::from_secs(15);
    wait("it waits", soon, || says("waits up to 60 s for its address 10.77.0.3:7400"));
    wire.ip(1, &["addr", "add", "10.77.0.3/24", "dev", "w1"]);
    wait("it waits", soon, || says("waits up to 60 s for the first node 10.77.0.1:7400"));
    let args = [&first, "--target", &targets[0], "--listen", "10.77.0.1:7400"];
    space.own_node(wire.command(0, &[&run[..], &args].concat()));
    wait("it serves", soon, || says("node 2 serves 10.77.0.3:7400"));
    drop(space);
    drop(wire);
}

#[test]
fn the_example_units_are_units() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let tmp = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for entry in fs::read_dir(units).unwrap().flatten() {
        let unit = fs::read_to_string(entry.path()).unwrap();
        let commands = unit.lines().filter(|line| line.starts_with("Exec"));
        for command in commands.clone() {
            assert!(!command.contains("--create"), "a boot makes nothing: {command}");
        }
        assert!(commands.count() > 0, "{entry:?}");
        let path = tmp.path().join(entry.file_name());
        fs::write(&path, unit.replace("/usr/local/bin/nuri", NURI)).unwrap();
        paths.push(path);
    }
    assert_eq!(paths.len(), 5);
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&paths).output();
    // Not every machine that builds has it.
    if let Ok(out) = verify {
        let said = text(&out.stderr);
        let own = |line: &&str| paths.iter().any(|path| line.contains(&path.display().to_string()));
        assert_eq!(said.lines().filter(own).collect::<Vec<_>>(), Vec::<&str>::new(), "{said}");
    }
}

/// Where memory is short the supervisor stays, and what it starts anew is one of many again.
#[test]
fn the_supervisor_is_spared_where_memory_is_short() {
    let space = Space::up(&[]);
    let score = |pid| proc(pid, "oom_score_adj").trim().to_string();
    // Root of a container may not.
    let may = "echo -900 > /proc/self/oom_score_adj";
    let may = Command::new("sh").args(["-c", may]).stderr(Stdio::null()).status().unwrap();
    let spared = if may.success() { "-900" } else { "0" };
    assert_eq!(score(space.pid("supervisor")), spared);
    for role in ["node0", "mount"] {
        wait(&format!("{role} is as others"), Duration::from_secs(5), || {
            match score(space.pid(role)).as_str() {
                "0" => Ok(()),
                other => Err(other.to_string()),
            }
        });
    }
    let killed = space.pid("node0");
    space.kill("node0");
    space
        .wait_status("the node is back", Duration::from_secs(15), |_| space.pid("node0") != killed);
    assert_eq!(score(space.pid("supervisor")), spared);
    space.down_clean();
}
