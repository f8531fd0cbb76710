//! `cargo xtask guest`: clients in a real kernel. This machine's kernel may have no `nbd` and no
//! `md`; a guest under qemu has, and reaches the servers of this machine at 10.0.2.2.

mod image;
mod machine;
mod moves;
mod wire;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use image::Image;
use machine::Guest;
use rustix::process::{Pid, Signal};

use crate::shell::{Build, build, script, todays_share};
use crate::testbed::Testbed;

const SOON: Duration = Duration::from_secs(60);
/// Files that are synced before the power is cut.
const SYNCED: u32 = 12;
const DISK: u64 = 64 << 20;
/// Of a large directory.
const NAMES: u32 = 20_000;

type Story = fn(&Host<'_>) -> Result<(), String>;
const STORIES: &[(&str, Story)] = &[
    ("nbd-broken", broken),
    ("nbd-files", files),
    ("nbd-power-cut", power_cut),
    ("nbd-grows", grows),
    ("nbd-raid", raid),
    ("nbd-channels", channels),
    ("nbd-moves", moves::moves),
    ("nfs-files", nfs_files),
    ("nfs-server-returns", nfs_server_returns),
    ("nfs-export-ends", nfs_export_ends),
];
/// With all of them the guest is CI's longest job.
const LONG_STORIES: &[(&str, Story)] =
    &[("nfs-large", nfs_large), ("nfs-soft", nfs_soft), ("nfs-posix", nfs_posix), ("nfsd", nfsd)];

/// Played only where they are named: they measure, and take the machine for that.
const MEASUREMENTS: &[(&str, Story)] = &[("nfs-wire", wire::nfs_wire)];

/// Plays the stories whose names contain `only`; of the long ones every n-th, today's share.
pub(crate) fn run(only: &str, every: usize) -> Result<(), String> {
    let nuri = build(Build::Tests)?;
    let image = image::make(&nuri)?;
    let mut played = 0;
    let stories = STORIES.iter().chain(todays_share(LONG_STORIES, every));
    let stories = stories.filter(|(name, _)| name.contains(only));
    for (name, story) in stories.chain(MEASUREMENTS.iter().filter(|(name, _)| *name == only)) {
        let start = Instant::now();
        let tmp = tempfile::tempdir().map_err(|e| e.to_string())?;
        let host = Host { nuri: &nuri, dir: tmp.path(), image: &image };
        story(&host).map_err(|words| format!("{name}: {words}"))?;
        println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
        played += 1;
    }
    if played == 0 { Err(format!("no story is called {only:?}")) } else { Ok(()) }
}

/// This machine.
struct Host<'h> {
    nuri: &'h Path,
    dir: &'h Path,
    image: &'h Image,
}

/// A space that is stopped when dropped.
struct Space<'h>(&'h Host<'h>);

impl Drop for Space<'_> {
    fn drop(&mut self) {
        let _ = self.0.nuri(&format!("down --force --dir {}/space", self.0.dir.display()));
    }
}

/// A server of devices; killed when dropped.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).map_err(|e| e.to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Host<'_> {
    fn nuri(&self, words: &str) -> Result<String, String> {
        script(&format!("{} {words}", self.nuri.display()), SOON)
    }

    /// A space with one volume.
    fn space(&self, size: &str) -> Result<Space<'_>, String> {
        let dir = self.dir.display();
        let made = Space(self);
        self.nuri(&format!("up --create --dir {dir}/space --target-size 1G"))?;
        let create = format!("volume create vm --size {size} --shape mirror:2");
        self.nuri(&format!("{create} --dir {dir}/space"))?;
        Ok(made)
    }

    /// `nuri` with these arguments, listening on a port of its own.
    fn serve(&self, words: &[&str]) -> Result<Server, String> {
        self.serve_at(0, words)
    }

    fn serve_at(&self, port: u16, words: &[&str]) -> Result<Server, String> {
        let log = self.dir.join("serve.log");
        let out = File::create(&log).map_err(|e| e.to_string())?;
        let mut serve = Command::new(self.nuri);
        serve
            .args(words)
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .stdout(Stdio::null())
            .stderr(out);
        let child = serve.spawn().map_err(|e| e.to_string())?;
        let mut server = Server { child, port: 0 };
        let start = Instant::now();
        while start.elapsed() < SOON {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let port = ["nbd://127.0.0.1:", "nfs: serves at 127.0.0.1:"]
                .into_iter()
                .find_map(|words| said.split(words).nth(1))
                .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
            if let Some(port) = port {
                server.port = port;
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(std::fs::read_to_string(&log).unwrap_or_default())
    }

    fn serve_volumes(&self) -> Result<Server, String> {
        self.serve(&["volume", "serve", "--dir", &format!("{}/space", self.dir.display())])
    }

    fn boot(&self, story: &str, words: &str) -> Result<Guest, String> {
        Guest::boot(self.image, story, words, &[])
    }
}

/// A story with a step that fails is told as a broken one.
fn broken(host: &Host<'_>) -> Result<(), String> {
    host.boot("broken", "")?.hears("story broken: broken")
}

fn files(host: &Host<'_>) -> Result<(), String> {
    let _space = host.space("256M")?;
    let server = host.serve_volumes()?;
    host.boot("files", &format!("port={}", server.port))?.ends_well()?;
    let listed = host.nuri(&format!("volume list --json --dir {}/space", host.dir.display()))?;
    let list: serde_json::Value = serde_json::from_str(&listed).map_err(|e| e.to_string())?;
    let used = list["volumes"][0]["used"].as_u64().unwrap_or(u64::MAX);
    // Two of four files of 6.5 MB are left, and what the file system needs for itself.
    if used > 24 << 20 { Err(format!("{used} bytes are used: no room came back")) } else { Ok(()) }
}

fn power_cut(host: &Host<'_>) -> Result<(), String> {
    let _space = host.space("256M")?;
    let server = host.serve_volumes()?;
    let port = format!("port={}", server.port);
    let mut guest = host.boot("write_until_cut", &port)?;
    guest.hears(&format!("synced {SYNCED}"))?;
    drop(guest);
    drop(server);
    // The server is killed too: another one finds what the targets have.
    let server = host.serve_volumes()?;
    host.boot("after_cut", &format!("port={} count={SYNCED}", server.port))?.ends_well()
}

fn grows(host: &Host<'_>) -> Result<(), String> {
    let _space = host.space("64M")?;
    let server = host.serve_volumes()?;
    let mut guest = host.boot("grows", &format!("port={}", server.port))?;
    guest.hears("grow now")?;
    host.nuri(&format!("volume resize vm 256M --dir {}/space", host.dir.display()))?;
    guest.ends_well()
}

/// A file as a disk; detached when dropped.
struct Disk {
    path: String,
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = script(&format!("losetup -d {}", self.path), SOON);
    }
}

impl Disk {
    fn new(file: PathBuf) -> Result<Disk, String> {
        File::create(&file).and_then(|file| file.set_len(DISK)).map_err(|e| e.to_string())?;
        let path = script(&format!("losetup -f --show {}", file.display()), SOON)?;
        Ok(Disk { path: path.trim().to_owned() })
    }
}

/// Two servers of one volume; one is killed and comes back, then the other one. Then one hangs.
fn channels(host: &Host<'_>) -> Result<(), String> {
    let _space = host.space("256M")?;
    let servers = [host.serve_volumes()?, host.serve_volumes()?];
    let ports = servers.each_ref().map(|server| server.port);
    let mut guest = host.boot("channels", &format!("ports={},{}", ports[0], ports[1]))?;
    let dir = format!("{}/space", host.dir.display());
    let mut back = Vec::new();
    for ((server, port), name) in servers.into_iter().zip(ports).zip(["first", "second"]) {
        guest.hears(&format!("lose the {name} now"))?;
        drop(server);
        // Longer than another one needs to take the volume over.
        std::thread::sleep(Duration::from_secs(10));
        back.push(host.serve_at(port, &["volume", "serve", "--dir", &dir])?);
        guest.hears(&format!("{name} is back"))?;
    }
    guest.hears("stop the first now")?;
    back[0].signal(Signal::STOP)?;
    let hears = guest.hears("the first is left");
    back[0].signal(Signal::CONT)?;
    hears?;
    guest.ends_well()
}

/// A space that exports one directory, and the words that its servers are started with.
fn exported<'h>(host: &'h Host<'_>) -> Result<(Space<'h>, [String; 4]), String> {
    let dir = format!("{}/space", host.dir.display());
    let space = Space(host);
    let mount = host.dir.join("mnt");
    host.nuri(&format!("up --create --dir {dir} --target-size 1G --mount {}", mount.display()))?;
    std::fs::create_dir(mount.join("home")).map_err(|e| e.to_string())?;
    host.nuri(&format!("nfs export add /home '*(rw,no_root_squash)' --dir {dir}"))?;
    Ok((space, ["nfs".into(), "serve".into(), "--dir".into(), dir]))
}

fn nfs_files(host: &Host<'_>) -> Result<(), String> {
    let (_space, words) = exported(host)?;
    let server = host.serve(&words.each_ref().map(String::as_str))?;
    let seed = std::process::id();
    println!("nfs-files: fsx runs with the seed {seed}");
    host.boot("nfs_files", &format!("port={} seed={seed}", server.port))?.ends_well()
}

/// The server is killed twice, and started anew at the same port.
fn nfs_server_returns(host: &Host<'_>) -> Result<(), String> {
    let (_space, words) = exported(host)?;
    let words = words.each_ref().map(String::as_str);
    let mut server = host.serve(&words)?;
    let port = server.port;
    let mut guest = host.boot("nfs_server_returns", &format!("port={port}"))?;
    for name in ["first", "second"] {
        guest.hears(&format!("lose the {name} now"))?;
        std::thread::sleep(Duration::from_secs(1));
        drop(server);
        std::thread::sleep(Duration::from_secs(2));
        server = host.serve_at(port, &words)?;
        guest.hears(&format!("{name} is over"))?;
    }
    guest.ends_well()
}

fn nfs_export_ends(host: &Host<'_>) -> Result<(), String> {
    let (_space, words) = exported(host)?;
    let server = host.serve(&words.each_ref().map(String::as_str))?;
    let mut guest = host.boot("nfs_export_ends", &format!("port={}", server.port))?;
    guest.hears("end it now")?;
    host.nuri(&format!("nfs export rm /home --dir {}/space", host.dir.display()))?;
    guest.ends_well()
}

/// A directory of many names, of which a mount removes every tenth while the client lists it.
fn nfs_large(host: &Host<'_>) -> Result<(), String> {
    let (_space, words) = exported(host)?;
    let dir = host.dir.join("mnt/home/large");
    let told = |e: std::io::Error| format!("{}: {e}", dir.display());
    std::fs::create_dir(&dir).map_err(told)?;
    let name = |i: u32| {
        dir.join(if i.is_multiple_of(10) { format!("goes{i}") } else { format!("stays{i}") })
    };
    (0..NAMES).try_for_each(|i| File::create(name(i)).map(drop)).map_err(told)?;
    let server = host.serve(&words.each_ref().map(String::as_str))?;
    let (port, stay) = (server.port, NAMES - NAMES.div_ceil(10));
    let mut guest = host.boot("nfs_large", &format!("port={port} count={NAMES} stay={stay}"))?;
    guest.hears("remove some now")?;
    (0..NAMES).step_by(10).try_for_each(|i| std::fs::remove_file(name(i))).map_err(told)?;
    guest.ends_well()
}

fn nfs_posix(host: &Host<'_>) -> Result<(), String> {
    let (_space, words) = exported(host)?;
    let server = host.serve(&words.each_ref().map(String::as_str))?;
    host.boot("nfs_posix", &format!("port={}", server.port))?.ends_well()
}

fn nfs_soft(host: &Host<'_>) -> Result<(), String> {
    let (_space, words) = exported(host)?;
    let words = words.each_ref().map(String::as_str);
    let server = host.serve(&words)?;
    let port = server.port;
    let mut guest = host.boot("nfs_soft", &format!("port={port}"))?;
    guest.hears("lose it now")?;
    drop(server);
    guest.hears("it is away")?;
    let _server = host.serve_at(port, &words)?;
    guest.ends_well()
}

/// The space is on two machines; the guest is a third one, with mounts of its own.
fn nfsd(host: &Host<'_>) -> Result<(), String> {
    let space = Testbed::up(host.dir, 2)?;
    let token = std::fs::read_to_string(space.mounted.space.join("mount.token"));
    let token = token.map_err(|e| format!("the token: {e}"))?;
    let (seed, first) = (std::process::id(), space.first());
    let words = format!("seed={seed} first={first} token={}", token.trim());
    Guest::boot(host.image, "nfsd", &words, &space.enter(1))?.ends_well()
}

fn raid(host: &Host<'_>) -> Result<(), String> {
    let disk = |number: u32| Disk::new(host.dir.join(format!("disk{number}")));
    let disks = (0..4).map(disk).collect::<Result<Vec<_>, _>>()?;
    let serve = |disk: &Disk| host.serve(&["disk", "serve", "--writable", &disk.path]);
    let mut servers = disks.iter().map(serve).collect::<Result<Vec<_>, _>>()?;
    let ports: Vec<_> = servers.iter().map(|server| server.port.to_string()).collect();
    let mut guest = host.boot("raid", &format!("ports={}", ports.join(",")))?;
    guest.hears("kill one now")?;
    drop(servers.remove(2));
    guest.ends_well()
}
