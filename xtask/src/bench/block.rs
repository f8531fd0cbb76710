//! Block devices over NBD: volumes of each shape and a raw disk, against nbdkit's file plugin on
//! the local disk, by turns, in one run. The client is fio's `nbd` engine on a Unix socket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::median;
use crate::apps::Mounted;
use crate::shell::{Build, script};

const SIZE_MIB: u64 = 1024;
const SECONDS: u64 = 3;
const SOON: Duration = Duration::from_secs(120);
const SHAPES: [&str; 3] = ["stripe", "mirror:2", "parity:3+1"];
const RAW: &str = "raw disk";
const PEER: &str = "nbdkit";

/// A load, as fio is told.
struct Row {
    name: &'static str,
    fio: &'static str,
    /// What stripes and redundant shapes must reach, against the peer.
    stripe: f64,
    redundant: Option<f64>,
}

const ROWS: [Row; 4] = [
    Row {
        name: "4 KiB random write, depth 16",
        fio: "--rw=randwrite --bs=4k --iodepth=16",
        stripe: 0.5,
        redundant: None,
    },
    Row {
        name: "1 MiB write, depth 4",
        fio: "--rw=write --bs=1M --iodepth=4",
        stripe: 0.8,
        redundant: None,
    },
    Row {
        name: "8 KiB random read, depth 16",
        fio: "--rw=randread --bs=8k --iodepth=16",
        stripe: 0.7,
        redundant: None,
    },
    Row {
        name: "4 KiB write and flush",
        fio: "--rw=randwrite --bs=4k --iodepth=1 --fsync=1",
        stripe: 0.6,
        redundant: Some(0.35),
    },
];

/// A server of one device; killed when dropped.
struct Server {
    child: Child,
    uri: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(mut command: Command, socket: &Path) -> Result<Server, String> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|e| format!("{command:?}: {e}"))?;
        let server = Server { child, uri: format!("nbd+unix:///?socket={}", socket.display()) };
        let start = Instant::now();
        while !socket.exists() {
            if start.elapsed() > SOON {
                return Err(format!("{command:?} does not listen"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Operations a second.
    fn measure(&self, row: &Row) -> Result<f64, String> {
        let text = format!(
            "fio --name=x --ioengine=nbd --uri='{}' {} --size={SIZE_MIB}M --time_based \\
                 --runtime={SECONDS} --output-format=json 2>/dev/null | sed -n '/^{{/,$p'",
            self.uri, row.fio
        );
        let out = script(&text, SOON)?;
        let found: serde_json::Value =
            serde_json::from_str(&out).map_err(|e| format!("fio said {out}: {e}"))?;
        let job = &found["jobs"][0];
        let of = |what: &str| job[what]["iops"].as_f64().unwrap_or(0.0);
        Ok(of("read") + of("write"))
    }
}

/// By row and device.
type Values = BTreeMap<(usize, &'static str), Vec<f64>>;

/// Measures and prints the table.
pub(crate) fn run(rounds: usize, dir: &Path) -> Result<(), String> {
    let space = Mounted::up(Build::Release, dir, "--nodes 4")?;
    let own = space.space.with_file_name("block");
    std::fs::create_dir(&own).map_err(|e| e.to_string())?;
    let disk = Disk::make(&own)?;
    let servers = servers(&space, &own, &disk)?;
    let mut values = Values::new();
    for round in 0..rounds {
        for (row, load) in ROWS.iter().enumerate() {
            for (name, server) in &servers {
                values.entry((row, *name)).or_default().push(server.measure(load)?);
            }
        }
        eprintln!("round {} of {rounds} done", round + 1);
    }
    print(&values);
    drop(servers);
    space.down_clean()
}

/// Every device holds bytes everywhere before it is measured.
fn servers(
    space: &Mounted,
    own: &Path,
    disk: &Disk,
) -> Result<Vec<(&'static str, Server)>, String> {
    let (nuri, dir, _) = space.names();
    let full = own.join("full");
    // A pipe whose reader goes first ends in a failure here.
    let fill = format!("head -c {SIZE_MIB}M /dev/zero | tr '\\0' y > {}", full.display());
    script(&fill, SOON)?;
    let mut servers = Vec::new();
    let mut add = |name, command: Command, socket: PathBuf| -> Result<(), String> {
        let server = Server::start(command, &socket)?;
        script(&format!("nbdcopy {} '{}'", full.display(), server.uri), SOON)?;
        servers.push((name, server));
        Ok(())
    };
    let socket = own.join("nbdkit.sock");
    let mut command = Command::new("nbdkit");
    command.args(["-f", "-U"]).arg(&socket).arg("file").arg(own.join("local"));
    script(&format!("truncate -s {SIZE_MIB}M {}/local", own.display()), SOON)?;
    add(PEER, command, socket)?;
    for shape in SHAPES {
        let name = shape.replace([':', '+'], "-");
        let create = format!("{nuri} volume create {name} --size {SIZE_MIB}M --shape {shape}");
        script(&format!("{create} --dir {dir}"), SOON)?;
        let socket = own.join(format!("{name}.sock"));
        let mut command = Command::new(&nuri);
        command.args(["volume", "serve", &name, "--dir", &dir, "--socket"]).arg(&socket);
        add(shape, command, socket)?;
    }
    let socket = own.join("disk.sock");
    let mut command = Command::new(&nuri);
    command.args(["disk", "serve", "--writable", &disk.0, "--socket"]).arg(&socket);
    add(RAW, command, socket)?;
    Ok(servers)
}

/// A loop device; detached when dropped.
struct Disk(String);

impl Disk {
    fn make(own: &Path) -> Result<Disk, String> {
        let file = own.join("disk");
        let text = format!("truncate -s {SIZE_MIB}M {0}; losetup -f --show {0}", file.display());
        Ok(Disk(script(&text, SOON)?.trim().to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = script(&format!("losetup -d {}", self.0), SOON);
    }
}

fn print(values: &Values) {
    let of = |row, name| median(values.get(&(row, name)).cloned().unwrap_or_default());
    println!("operations a second; in parentheses against {PEER} on the local disk");
    for (row, load) in ROWS.iter().enumerate() {
        let peer = of(row, PEER);
        print!("{:<30} {PEER} {peer:.0}", load.name);
        for name in SHAPES.into_iter().chain([RAW]) {
            let wanted = if name == SHAPES[0] { Some(load.stripe) } else { load.redundant };
            let wanted = wanted.filter(|_| name != RAW);
            let ratio = of(row, name) / peer;
            let verdict = match wanted {
                Some(wanted) if ratio < wanted => format!(", wanted {wanted}"),
                _ => String::new(),
            };
            print!("; {name} {:.0} ({ratio:.2}{verdict})", of(row, name));
        }
        println!();
    }
}
