//! The space as an NFS server, against nfs-ganesha on the local disk, by turns, in one run. The
//! client is libnfs, in a small program ([`CLIENT`]).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::median;
use crate::apps::Mounted;
use crate::shell::{Build, script};

const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/nfs/client.c");
const SOON: Duration = Duration::from_secs(120);
const MIB: u32 = 512;
const FILES: u32 = 1000;
const NURI: &str = "nuri";
const PEER: &str = "ganesha";
/// That are there at once, when the memory is looked at.
const CLIENTS: u32 = 1000;
const NURI_PORT: u16 = 12_049;
const PEER_PORT: u16 = 22_049;

/// What is measured, with how many clients at once, and the ratio that is wanted.
struct Row {
    name: &'static str,
    work: &'static str,
    clients: u32,
    wanted: f64,
}

const fn row(name: &'static str, work: &'static str, clients: u32, wanted: f64) -> Row {
    Row { name, work, clients, wanted }
}

const ROWS: [Row; 8] = [
    row("1 MiB writes and a commit, MiB/s", "write", 1, 1.0),
    row("1 MiB reads, cold, MiB/s", "read", 1, 1.0),
    row("create, 1 client, per second", "create", 1, 1.5),
    row("stat, 1 client", "stat", 1, 1.5),
    row("remove, 1 client", "remove", 1, 1.5),
    row("create, 4 clients", "create", 4, 1.5),
    row("stat, 4 clients", "stat", 4, 1.5),
    row("remove, 4 clients", "remove", 4, 1.5),
];

/// A server; killed when dropped.
struct Server {
    child: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(mut command: Command, url: String) -> Result<Server, String> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|e| format!("{command:?}: {e}"))?;
        let (server, start) = (Server { child, url }, Instant::now());
        while script(&format!("nfs-ls '{}'", server.url), SOON).is_err() {
            if start.elapsed() > SOON {
                return Err(format!("{command:?} does not serve"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(server)
    }

    /// Of processors, since its start.
    fn seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
        let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
        // Fields 14 and 15 of proc(5), a hundredth of a second each.
        (ticks(11) + ticks(12)) / 100.0
    }

    /// What it holds while so many clients are there, each of which called once.
    fn resident_with(&self, port: u16, clients: u32) -> Result<u64, String> {
        let call = |_| null_call(port).map_err(|e| format!("a client at port {port}: {e}"));
        let connections = (0..clients).map(call).collect::<Result<Vec<_>, _>>()?;
        let resident = self.resident_mib();
        drop(connections);
        Ok(resident)
    }

    fn resident_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("");
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10
    }

    /// What all clients together do in a second.
    fn measure(&self, client: &Path, row: &Row, round: usize) -> Result<f64, String> {
        let (client, url, work) = (client.display(), &self.url, row.work);
        let count = if work == "write" { MIB } else { FILES };
        if work == "read" {
            script("sync; echo 3 > /proc/sys/vm/drop_caches", SOON)?;
        }
        let one =
            |i: u32| format!("{client} '{url}' {work} {count} r{round}-{}-{i} & ", row.clients);
        let file = if ["write", "read"].contains(&work) {
            format!("{client} '{url}' {work} {count} data{round}")
        } else {
            format!("{} wait", (0..row.clients).map(one).collect::<String>())
        };
        let said = script(&file, SOON)?;
        let rates: Vec<f64> = said.lines().filter_map(|line| line.parse().ok()).collect();
        match rates.len() == row.clients as usize {
            true => Ok(rates.iter().sum()),
            false => Err(format!("{}: {said}", row.name)),
        }
    }
}

/// A connection by which the procedure was called that does nothing.
fn null_call(port: u16) -> std::io::Result<TcpStream> {
    const CALL: [u32; 11] = [1 << 31 | 40, 1, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(&CALL.map(u32::to_be_bytes).concat())?;
    stream.read_exact(&mut [0; 28])?;
    Ok(stream)
}

/// By row and server.
type Values = BTreeMap<(usize, &'static str), Vec<f64>>;

/// Measures and prints the table.
pub(crate) fn run(rounds: usize, dir: &Path) -> Result<(), String> {
    let space = Mounted::up(Build::Release, dir, "--nodes 4 --shape stripe")?;
    let own = space.space.with_file_name("nfs");
    std::fs::create_dir(&own).map_err(|e| e.to_string())?;
    let client = compile(&own)?;
    let servers = [(NURI, nuri(&space)?), (PEER, ganesha(&own)?)];
    let (mut values, mut used) = (Values::new(), BTreeMap::<(usize, &str), f64>::new());
    for round in 0..rounds {
        for (at, row) in ROWS.iter().enumerate() {
            for (name, server) in &servers {
                let before = server.seconds();
                values.entry((at, *name)).or_default().push(server.measure(&client, row, round)?);
                *used.entry((at, *name)).or_default() += server.seconds() - before;
            }
        }
        eprintln!("round {} of {rounds} done", round + 1);
    }
    print(&values);
    for ((name, server), port) in servers.iter().zip([NURI_PORT, PEER_PORT]) {
        let gib = rounds as f64 * f64::from(MIB) / 1024.0;
        let of = |at| used.get(&(at, *name)).copied().unwrap_or(0.0) / gib;
        let (wrote, read, resident) = (of(0), of(1), server.resident_mib());
        let crowded = server.resident_with(port, CLIENTS)?;
        println!("{name}: {wrote:.2} s of a processor per GiB written, {read:.2} read");
        println!("{name}: {resident} MiB resident; {crowded} MiB with {CLIENTS} clients more");
    }
    drop(servers);
    space.down_clean()
}

fn compile(own: &Path) -> Result<PathBuf, String> {
    let client = own.join("client");
    script(&format!("gcc -O2 -o {} {CLIENT} -lnfs", client.display()), SOON)
        .map_err(|why| format!("{why}: run scripts/setup --bench"))?;
    Ok(client)
}

fn url(path: &str, port: u16, mount_port: u16) -> String {
    format!("nfs://127.0.0.1{path}?nfsport={port}&mountport={mount_port}&version=3")
}

fn nuri(space: &Mounted) -> Result<Server, String> {
    let (nuri, dir, mnt) = space.names();
    script(
        &format!(
            "mkdir {mnt}/bench; {nuri} nfs export add /bench '*(rw,no_root_squash)' --dir {dir}"
        ),
        SOON,
    )?;
    let mut command = Command::new(&nuri);
    command.args(["nfs", "serve", "--dir", &dir, "--listen", &format!("127.0.0.1:{NURI_PORT}")]);
    Server::start(command, url("/bench", NURI_PORT, NURI_PORT))
}

/// On a directory of the local disk.
fn ganesha(own: &Path) -> Result<Server, String> {
    let (export, config) = (own.join("export"), own.join("ganesha.conf"));
    let (path, mount_port) = (export.display().to_string(), PEER_PORT + 1);
    let text = format!(
        "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {PEER_PORT}; MNT_Port = {mount_port};
             Enable_NLM = false; Enable_RQUOTA = false; Bind_addr = 127.0.0.1; }}
         EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /bench; Access_Type = RW;
             Squash = No_Root_Squash; Protocols = 3; Transports = TCP; SecType = sys;
             FSAL {{ Name = VFS; }} }}"
    );
    std::fs::create_dir(&export).map_err(|e| e.to_string())?;
    std::fs::write(&config, text).map_err(|e| e.to_string())?;
    script("mkdir -p /var/run/ganesha; pgrep -x rpcbind >/dev/null || rpcbind -w", SOON)?;
    let mut command = Command::new("ganesha.nfsd");
    command.arg("-F").arg("-f").arg(&config).arg("-L").arg(own.join("ganesha.log"));
    command.arg("-p").arg(own.join("ganesha.pid")).args(["-N", "NIV_EVENT"]);
    Server::start(command, url(&path, PEER_PORT, mount_port))
}

fn print(values: &Values) {
    let of = |at, name| median(values.get(&(at, name)).cloned().unwrap_or_default());
    println!("medians; in parentheses against {PEER} on the local disk");
    for (at, row) in ROWS.iter().enumerate() {
        let (own, peer) = (of(at, NURI), of(at, PEER));
        let ratio = own / peer;
        let verdict = match ratio < row.wanted {
            true => format!(", wanted {}", row.wanted),
            false => String::new(),
        };
        println!("{:<34} {NURI} {own:.0} ({ratio:.2}{verdict}); {PEER} {peer:.0}", row.name);
    }
}
