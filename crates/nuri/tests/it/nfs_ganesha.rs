//! nfs-ganesha on a mount of the space, by its back end for local file systems, and the tools of
//! libnfs. The recipe is in `docs/operate/nfs.md`.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nfs3_types::nfs3::nfsstat3;

use crate::machines::Machines;
use crate::nfs_client::Client;
use crate::support::{text, wait};

const SOON: Duration = Duration::from_secs(30);
const MACHINE: usize = 1;
const URI: &str = "nfs://127.0.0.1/mnt/nuri";

/// A machine with users of its own, on which nothing of this computer's `/run` is seen: rpcbind has
/// its socket there.
const FIRST: &str = "mount -t tmpfs none /run
mkdir -p /run/ganesha /run/rpcbind
{ cat /etc/passwd; echo '_rpc:x:100:65534::/run/rpcbind:/bin/false'; } > /srv/passwd
mount --bind /srv/passwd /etc/passwd
touch /root/prepared
exec sleep 600";

/// Asks Ganesha to end, and waits for that. The machine's first process never asks how others
/// ended.
const END: &str = "kill $(cat /root/pid)
timeout 20 sh -c 'until grep -q \"State:.Z\" /proc/$(cat /root/pid)/status; do sleep 0.1; done'";

/// The configuration in the document, and where this test has Ganesha's parts. Names of users come
/// from another library, whose parts are not where it looks.
fn configuration(packages: &Path) -> String {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/nfs.md");
    let document = fs::read_to_string(document).unwrap();
    let of_file = document.split("# /etc/ganesha/ganesha.conf\n").nth(1).unwrap();
    let block = of_file.split("\n\n").next().unwrap();
    let plugins = packages.join("usr/lib/x86_64-linux-gnu/ganesha");
    let own = format!(
        "NFSv4 {{ UseGetpwnam = true; }}\nNFS_CORE_PARAM {{ Plugins_Dir = {};",
        plugins.display()
    );
    block.replace("NFS_CORE_PARAM {", &own)
}

fn unpacked() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/ganesha");
    let out = Command::new(script).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    PathBuf::from(text(&out.stdout).trim())
}

/// A program of the packages, with their libraries.
fn program(packages: &Path, name: &str) -> String {
    let packages = packages.display();
    let place = |dir: &str| format!("{packages}/{dir}");
    let places = ["usr/lib/x86_64-linux-gnu", "usr/lib/ganesha", "usr/lib", "lib/x86_64-linux-gnu"];
    let libraries = places.map(place).join(":");
    format!("LD_LIBRARY_PATH={libraries} {packages}/{name}")
}

fn serve(machines: &Machines, packages: &Path) {
    let ganesha = program(packages, "usr/bin/ganesha.nfsd");
    let line = format!(
        "{ganesha} -F -f /root/ganesha.conf -L /root/ganesha.log -p /root/ganesha.pid \
         </dev/null >/dev/null 2>&1 & echo $! > /root/pid"
    );
    machines.run(MACHINE, &line);
    let log = machines.path(MACHINE, "root/ganesha.log");
    wait("Ganesha serves", SOON, || {
        let list = format!("timeout 5 nfs-ls {URI}");
        let is_listed = machines.command(MACHINE, &list).output().unwrap();
        let said = || fs::read_to_string(&log).unwrap_or_default();
        if is_listed.status.success() { Ok(()) } else { Err(said()) }
    });
}

/// One connection to one of its ports.
fn connect(machines: &Machines, port: u16) -> Client {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let stream = machines.in_network(MACHINE, || TcpStream::connect(address).unwrap());
    stream.set_read_timeout(Some(SOON)).unwrap();
    Client::over(stream)
}

fn prepared(packages: &Path) -> Machines {
    let mut machines = Machines::new("ganesha", 1);
    machines.start(MACHINE, FIRST);
    fs::write(machines.path(MACHINE, "root/ganesha.conf"), configuration(packages)).unwrap();
    let prepared = machines.path(MACHINE, "root/prepared");
    wait("the machine's own files", SOON, || prepared.exists());
    machines.run(MACHINE, &program(packages, "sbin/rpcbind"));
    machines.run(MACHINE, "nuri up --create --dir /srv/nuri --mount /mnt/nuri --target-size 256M");
    serve(&machines, packages);
    machines
}

/// Copies both ways, and what the mount and another mount change meanwhile.
fn copy_and_change(machines: &Machines) {
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 / 3) as u8).collect();
    fs::write(machines.path(MACHINE, "root/data"), &bytes).unwrap();
    let run = |line: &str| machines.run(MACHINE, line);
    run(&format!("nfs-cp /root/data {URI}/copy && cmp /root/data /mnt/nuri/copy"));
    run("mkdir /mnt/nuri/dir && mv /mnt/nuri/copy /mnt/nuri/dir/moved");
    run(&format!("nfs-cat {URI}/dir/moved | cmp - /root/data"));
    assert!(!run(&format!("nfs-ls {URI}")).contains("copy"));
    run("nuri fs mount /srv/nuri /srv/other");
    for mount in ["/mnt/nuri", "/srv/other"] {
        run(&format!("echo longer >> {mount}/dir/moved"));
        run(&format!("nfs-cat {URI}/dir/moved | cmp - {mount}/dir/moved"));
    }
    run("touch /srv/other/named");
    assert!(run(&format!("nfs-ls {URI}")).contains("named"));
    run("rm /srv/other/named");
    assert!(!run(&format!("nfs-ls {URI}")).contains("named"));
    run("nuri fs umount /srv/other");
}

#[test]
fn ganesha_serves_a_mount() {
    let packages = unpacked();
    let machines = prepared(&packages);
    copy_and_change(&machines);

    // Its handles stay good when it is started anew.
    let (root, _) = connect(&machines, 20048).mount_at_any("/mnt/nuri").unwrap();
    let mut client = connect(&machines, 2049);
    let dir = client.find(&root, "dir").unwrap();
    let file = client.find(&dir, "moved").unwrap();
    let size = client.attributes(&file).unwrap().size;
    machines.run(MACHINE, END);
    serve(&machines, &packages);
    let mut client = connect(&machines, 2049);
    assert_eq!(client.attributes(&file).map(|of| of.size), Ok(size));
    assert_eq!(client.find(&dir, "moved").as_ref(), Ok(&file));

    // On a mount that was made anew handles are stale if the kernel gave it another number.
    machines.run(MACHINE, END);
    machines.run(MACHINE, "nuri down --dir /srv/nuri && nuri up --dir /srv/nuri");
    serve(&machines, &packages);
    let after = connect(&machines, 2049).attributes(&file).map(|of| of.size);
    assert!([Ok(size), Err(nfsstat3::NFS3ERR_STALE)].contains(&after), "{after:?}");
    machines.run(MACHINE, &format!("nfs-cat {URI}/dir/moved | cmp - /mnt/nuri/dir/moved"));
    machines.run(MACHINE, END);
    machines.run(MACHINE, "nuri down --dir /srv/nuri");
}
