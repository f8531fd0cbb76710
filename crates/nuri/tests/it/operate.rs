//! The commands of `docs/operate/`, typed on three machines as they stand there.
//!
//! Each command that the documents show as a line of its own must be among those that are played,
//! word by word.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use crate::machines::Machines;
use crate::support::{text, wait};

const SOON: Duration = Duration::from_secs(60);
/// Three machines, and all that was typed.
struct Room {
    machines: Machines,
    nodes: Vec<Child>,
    typed: BTreeSet<String>,
}

impl Room {
    fn new() -> Room {
        let mut machines = Machines::new("operate", 3);
        for machine in 1..=3 {
            // The directory that commands take where none is said.
            let default = machines.path(machine, "var/lib/nuri");
            std::os::unix::fs::symlink("/srv/nuri", default).unwrap();
            machines.start(machine, "exec sleep 600");
        }
        Room { machines, nodes: Vec::new(), typed: BTreeSet::new() }
    }

    fn path(&self, machine: usize, name: &str) -> PathBuf {
        self.machines.path(machine, name)
    }

    /// Types a line, whatever becomes of it.
    fn try_type(&mut self, machine: usize, line: &str) -> Output {
        self.typed.insert(line.into());
        self.machines.command(machine, line).output().unwrap()
    }

    /// Types a line that must do what it says.
    fn types(&mut self, machine: usize, line: &str) -> String {
        let out = self.try_type(machine, line);
        let said = format!("{}{}", text(&out.stdout), text(&out.stderr));
        assert!(out.status.success(), "{machine}: {line}: {said}");
        said
    }

    /// Starts a node, which stays.
    fn starts(&mut self, machine: usize, line: &str) {
        self.typed.insert(line.into());
        let log = fs::File::create(self.path(machine, "srv/node.log")).unwrap();
        let mut command = self.machines.daemon(machine, line);
        command.stdout(Stdio::null()).stderr(log);
        self.nodes.push(command.spawn().unwrap());
    }

    /// Starts a server, which stays until [`Room::serves_no_more`]; waits until it says `words`.
    fn serves(&mut self, machine: usize, line: &str, words: &str) {
        self.typed.insert(line.into());
        let log = self.path(machine, "root/server.log");
        // What the one before it said is not its own.
        let _ = fs::remove_file(&log);
        let behind = "</dev/null >/root/server.log 2>&1 & echo $! >>/root/server.pid";
        self.machines.run(machine, &format!("{line} {behind}"));
        wait(&format!("it says {words}"), SOON, || {
            let said = fs::read_to_string(&log).unwrap_or_default();
            if said.contains(words) { Ok(()) } else { Err(said) }
        });
    }

    /// Ends all servers of a machine, and waits until they have ended.
    fn serves_no_more(&mut self, machine: usize) {
        self.machines.run(machine, "kill $(cat /root/server.pid)");
        // Nobody collects them: what is left of each then has no program.
        let left = "for p in $(cat /root/server.pid); do readlink /proc/$p/exe; done; true";
        wait("the servers end", SOON, || {
            let said = self.machines.run(machine, left);
            if said.is_empty() { Ok(()) } else { Err(said) }
        });
        fs::remove_file(self.path(machine, "root/server.pid")).unwrap();
    }

    fn stops(&mut self, machine: usize) {
        self.machines.end_daemon(machine);
        self.nodes.pop().unwrap().wait().unwrap();
    }

    fn wait_says(&mut self, machine: usize, line: &str, words: &str) {
        wait(&format!("{line} says {words}"), SOON, || {
            let said = text(&self.try_type(machine, line).stdout);
            if said.contains(words) { Ok(()) } else { Err(said) }
        });
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for machine in 1..=3 {
                let log = fs::read_to_string(self.path(machine, "srv/node.log"));
                eprintln!("--- node of machine {machine}\n{}", log.unwrap_or_default());
            }
        }
        for child in &mut self.nodes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Lines of code in a document: those that are indented by four below an empty line or a list.
fn commands(document: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut goes_on = false;
    for line in document.lines().filter(|line| line.starts_with("    ")) {
        let code = line.split("  #").next().unwrap_or_default().trim();
        let (code, continues) = match code.strip_suffix('\\') {
            Some(code) => (code.trim(), true),
            None => (code, false),
        };
        let is_command = ["nuri ", "find ", "openssl "].iter().any(|word| code.starts_with(word));
        match lines.last_mut() {
            Some(last) if goes_on => *last = format!("{last} {code}"),
            _ if is_command => lines.push(code.to_owned()),
            _ => continue,
        }
        goes_on = continues;
    }
    lines
}

fn documents() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate")
}

fn document(name: &str) -> String {
    fs::read_to_string(documents().join(name)).unwrap()
}

#[test]
fn every_command_of_the_documents_does_what_it_says() {
    let mut room = Room::new();
    one_machine(&mut room);
    disks(&mut room);
    several_machines(&mut room);
    first_machine_lost(&mut room);
    for entry in fs::read_dir(documents()).unwrap() {
        let path = entry.unwrap().path();
        for line in commands(&fs::read_to_string(&path).unwrap()) {
            assert!(room.typed.contains(&line), "{}: nobody typed: {line}", path.display());
        }
    }
}

/// Install, start, stop, check.
fn one_machine(room: &mut Room) {
    room.types(3, "nuri up --create --dir /srv/nuri --mount /mnt/nuri");
    room.types(3, "echo bytes > /mnt/nuri/f");
    room.types(3, "nuri down --dir /srv/nuri");
    let said = room.types(3, "nuri doctor --dir /srv/nuri");
    assert!(said.contains("metadata: clean"), "{said}");
    room.types(3, "nuri doctor --repair --dir /srv/nuri");
    room.types(3, "nuri up --dir /srv/nuri");
    assert_eq!(room.types(3, "cat /mnt/nuri/f"), "bytes\n");
    room.types(3, "nuri target scrub --dir /srv/nuri --wait");
    for line in ["--rate 200M", "--every 14", "--stop"] {
        room.types(3, &format!("nuri target scrub {line}"));
    }
    let find = concat!(
        r#"find /mnt/nuri -type f -exec sh -c 'nuri fs layout get "$1" "#,
        r#"| grep -q "^object=17 "' _ {} \; -print"#
    );
    room.types(3, find);
    room.types(3, "nuri fs tune get /mnt/nuri");
    room.types(3, "nuri fs lost /mnt/nuri");
    room.types(3, "nuri down --dir /srv/nuri");
}

/// A second machine joins, a third mounts, and files get more redundancy.
fn several_machines(room: &mut Room) {
    room.types(1, "nuri up --create --dir /srv/nuri --listen 10.0.0.1:7000 --mount /mnt/nuri");
    // Stripe groups over its own four targets.
    room.types(1, "echo bytes > /mnt/nuri/first && sync /mnt/nuri/first");
    for machine in [2, 3] {
        let to = room.path(machine, "root/nuri.token");
        fs::copy(room.path(1, "srv/nuri/token"), to).unwrap();
    }
    room.starts(
        2,
        "nuri node run --create --dir /srv/nuri-node --listen 10.0.0.2:7000 \
         --join 10.0.0.1:7000 --token-file /root/nuri.token --target /srv/nuri-target",
    );
    room.wait_says(1, "nuri target list", "/srv/nuri-target");
    room.stops(2);
    room.types(2, "nuri target check /srv/nuri-target");
    room.starts(2, "nuri node run --dir /srv/nuri-node");
    room.wait_says(1, "nuri node list", "10.0.0.2:7000");
    // The list has it from before; its node may still be starting.
    room.wait_says(1, "nuri target list | grep /srv/nuri-target", " up ");
    target_lost(room);
    volumes(room);
    nfs(room);
    room.types(3, "nuri fs mount 10.0.0.1:7000 /mnt/nuri --token-file /root/nuri.token");
    room.types(3, "mkdir /mnt/nuri/scratch /mnt/nuri/vm");
    room.types(1, "nuri fs layout set /mnt/nuri/scratch --shape stripe");
    room.types(1, "nuri fs layout set /mnt/nuri/vm --shape mirror:2");
    room.types(3, "for f in a b vm/c; do head -c 3000000 /dev/urandom > /mnt/nuri/$f; done");
    let sums = "cd /mnt/nuri && sha256sum a b vm/c";
    let before = room.types(3, sums);
    room.types(1, "nuri space set --dir /srv/nuri --shape mirror:2");
    room.types(1, "nuri fs convert /mnt/nuri");
    room.types(1, "nuri fs convert /mnt/nuri/vm --shape mirror:3 --rate 20M");
    let layout = room.types(3, "nuri fs layout get /mnt/nuri/vm/c");
    assert!(layout.contains("shape=mirror:3"), "{layout}");
    assert_eq!(room.types(1, sums), before);
    room.types(3, "nuri fs umount /mnt/nuri");
}

/// A volume is made on the first machine, served there and on the third, and removed.
fn volumes(room: &mut Room) {
    room.types(1, "nuri volume create vm1 --size 4G --shape mirror:2");
    let list = room.types(1, "nuri volume list");
    assert!(list.contains("vm1"), "{list}");
    for line in [
        "nuri volume serve --listen 127.0.0.1:10809",
        "nuri volume serve vm1 --socket /run/vm1.sock",
    ] {
        room.serves(1, line, "serves volumes at");
    }
    room.types(1, "nbdinfo nbd://127.0.0.1:10809/vm1");
    encrypted(room);
    attached(room);
    room.types(1, "nuri volume resize vm1 8G");
    room.types(1, "nuri volume accept-loss vm1");
    room.types(1, "nuri volume rename vm1 web");
    room.types(1, "nuri volume rm web");
    room.serves_no_more(1);
    // There are no such disks: the sentence says so.
    for line in [
        "nuri disk serve /dev/sdb",
        "nuri disk serve --writable /dev/sdb /dev/sdc1 --listen 127.0.0.1:10810",
    ] {
        let said = text(&room.try_type(1, line).stderr);
        assert!(said.contains("/dev/sdb: No such file or directory"), "{said}");
    }
    assert!(room.types(1, "nuri disk list").starts_with("DISK"));
    room.types(1, "nuri up --dir /srv/nuri --export-disks /dev/sdb");
    let list = "nuri disk list --nodes --at 10.0.0.1:7000 --token-file /root/nuri.token";
    assert!(room.types(3, list).starts_with("DISK"));
    let serve = "nuri disk serve 1:/dev/sdb --at 10.0.0.1:7000 --token-file /root/nuri.token";
    let said = text(&room.try_type(3, serve).stderr);
    assert!(said.contains("node 1: /dev/sdb: No such file or directory"), "{said}");
    let serve = "nuri volume serve --at 10.0.0.1:7000 --token-file /root/nuri.token";
    room.serves(3, serve, "serves volumes at");
    room.serves_no_more(3);
}

/// Two directories are exported, and served by the first machine and by the third.
fn nfs(room: &mut Room) {
    room.types(1, "mkdir /mnt/nuri/home");
    room.types(1, "mkdir /mnt/nuri/work && chown 1000:1000 /mnt/nuri/work");
    room.types(1, "nuri nfs export add /home '10.0.0.0/24(rw)'");
    room.types(
        1,
        "nuri nfs export add /work '10.0.0.7(rw,no_root_squash)' \
         '10.0.0.0/24(rw,all_squash,anonuid=1000,anongid=1000)' '*(ro)'",
    );
    let list = room.types(1, "nuri nfs export list");
    assert!(list.contains("10.0.0.0/24(rw,root_squash)"), "{list}");
    room.serves(1, "nuri nfs serve --listen 10.0.0.1:2049", "serves at 10.0.0.1:2049");
    let serve = "nuri nfs serve --listen 10.0.0.3:2049 --at 10.0.0.1:7000 \
                 --token-file /root/nuri.token";
    room.serves(3, serve, "serves at 10.0.0.3:2049");
    room.types(2, "nfs-ls \"nfs://10.0.0.1/home?nfsport=2049&mountport=2049\"");
    room.types(2, "echo bytes > /root/disk.raw");
    let ports = "?nfsport=2049&mountport=2049";
    let copy = format!("cd /root && nfs-cp disk.raw \"nfs://10.0.0.1/work/disk.raw{ports}\"");
    room.types(2, &copy);
    assert_eq!(room.types(1, "stat -c %u:%g /mnt/nuri/work/disk.raw"), "1000:1000\n");
    // The other server has it at once.
    let other = format!("nfs-cat \"nfs://10.0.0.3/work/disk.raw{ports}\"");
    assert_eq!(room.types(2, &other), "bytes\n");
    // Root of a client is nobody in a directory of root.
    let copy = format!("cd /root && nfs-cp disk.raw \"nfs://10.0.0.1/home/disk.raw{ports}\"");
    let said = text(&room.try_type(2, &copy).stderr);
    assert!(said.contains("ACCES"), "{said}");
    let status = room.types(1, "nuri status");
    assert!(status.contains("nfs at 10.0.0.3:2049"), "{status}");
    room.serves_no_more(3);
    room.serves_no_more(1);
    // With a port mapper the client finds the ports.
    let serve = "nuri nfs serve --listen 10.0.0.1:2049 --listen 10.0.0.1:111";
    room.serves(1, serve, "serves at 10.0.0.1:111");
    assert_eq!(room.types(2, "nfs-cat nfs://10.0.0.1/work/disk.raw"), "bytes\n");
    let set = room.types(1, "nuri nfs export set /home '10.0.0.0/24(rw)' '10.0.1.0/24'");
    assert_eq!(set.lines().count(), 2, "{set}");
    room.types(1, "nuri nfs export rm /home");
    room.serves_no_more(1);
    let serve = "nuri nfs serve --listen 10.0.0.1:2049 --floating 10.0.0.100/24";
    room.serves(1, serve, "has 10.0.0.100/24 now");
    assert_eq!(
        room.types(2, &format!("nfs-cat \"nfs://10.0.0.100/work/disk.raw{ports}\"")),
        "bytes\n"
    );
    assert!(!room.types(1, "nuri nfs export list").contains("/home"));
    room.serves_no_more(1);
}

/// This machine's kernel may have no NBD client: a guest plays it (`cargo xtask guest`).
fn attached(room: &mut Room) {
    let attach = "nuri volume attach vm1 --server 10.0.0.1:10809 --server 10.0.0.2:10809";
    let said = text(&room.try_type(3, attach).stderr);
    assert!(said.contains("no server gives vm1: 10.0.0.2:10809: "), "{said}");
    assert!(room.types(3, "nuri volume attached").starts_with("DEVICE"));
    let said = text(&room.try_type(3, "nuri volume detach vm1").stderr);
    assert!(said.contains("vm1 is not attached here"), "{said}");
}

/// The same volume, to clients that encrypt.
fn encrypted(room: &mut Room) {
    room.types(1, "mkdir -p /root/tls");
    let certificates: Vec<_> = commands(&document("volumes.md"))
        .into_iter()
        .filter(|line| line.starts_with("openssl req -x509 -newkey ec "))
        .collect();
    assert_eq!(certificates.len(), 3);
    for line in certificates {
        room.types(1, &line);
    }
    let serve = "nuri volume serve --listen 127.0.0.1:10811 --tls-cert /root/tls";
    room.serves(1, serve, "serves volumes at");
    let info = "nbdinfo \"nbds://localhost:10811/vm1?tls-certificates=/root/tls\"";
    assert!(room.types(1, info).contains("with TLS"));
    room.types(
        1,
        "qemu-img info --object tls-creds-x509,id=t,dir=/root/tls,endpoint=client --image-opts \
         driver=nbd,host=localhost,port=10811,export=vm1,tls-creds=t",
    );
}

/// A target is emptied, beside five others.
fn disks(room: &mut Room) {
    room.types(3, "rm -r /srv/nuri/*");
    let up = "nuri up --create --dir /srv/nuri --mount /mnt/nuri --targets 6 --shape mirror:2";
    room.types(3, up);
    room.types(3, "head -c 3000000 /dev/zero > /mnt/nuri/f && sync /mnt/nuri/f");
    room.types(3, "nuri target resync --pause");
    room.types(3, "nuri target resync --gentle");
    room.types(3, "nuri target drain 3");
    room.types(3, "nuri target rebalance");
    let status = room.types(3, "nuri status --json");
    assert!(status.contains(r#""health""#), "{status}");
    room.types(3, "nuri down --dir /srv/nuri");
}

/// A target is lost, and that of another machine takes its place.
fn target_lost(room: &mut Room) {
    room.types(1, "nuri down --dir /srv/nuri");
    room.types(1, "rm -r /srv/nuri/target2");
    room.types(1, "nuri up --dir /srv/nuri");
    room.wait_says(1, "nuri target list", "failed");
    // The node of the second machine may not have come back to the first one yet.
    room.wait_says(1, "nuri target list | grep /srv/nuri-target", " up ");
    room.types(1, "nuri target replace 3 5");
    wait("its data is elsewhere", SOON, || {
        let out = room.try_type(1, "nuri target remove 3");
        if out.status.success() { Ok(()) } else { Err(text(&out.stderr)) }
    });
}

/// The disk of the first machine is lost: the second one becomes it.
fn first_machine_lost(room: &mut Room) {
    room.wait_says(1, "nuri status", "metadata: 2 copies");
    room.types(1, "echo kept > /mnt/nuri/kept && sync /mnt/nuri/kept");
    room.types(1, "nuri down --force --yes --dir /srv/nuri");
    room.stops(2);
    let copies = fs::read_dir(room.path(2, "srv/nuri-node")).unwrap().flatten();
    let names = copies.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let newest = names.filter(|name| name.starts_with("meta-copy.")).max().unwrap();
    room.types(2, &format!("cp -a /srv/nuri-node/{newest} /root/"));
    let restore = "nuri doctor --restore-metadata --dir /srv/nuri-first \
                   --from /root/meta-copy.7 --token-file /root/nuri.token";
    room.typed.insert(restore.into());
    room.types(2, &restore.replace("meta-copy.7", &newest));
    room.types(2, "nuri up --dir /srv/nuri-first --listen 10.0.0.2:7500");
    room.starts(2, "nuri node run --dir /srv/nuri-node --join 10.0.0.2:7500");
    room.wait_says(2, "nuri status --dir /srv/nuri-first", "10.0.0.2:7000");
    room.types(3, "nuri fs mount 10.0.0.2:7500 /mnt/nuri --token-file /root/nuri.token");
    let names = room.types(3, "ls /mnt/nuri");
    assert!(names.contains("kept"), "{names}");
    room.types(3, "nuri fs umount /mnt/nuri");
    room.types(2, "nuri down --force --yes --dir /srv/nuri-first");
}
