//! How much of a slow wire the kernel's NFS client fills. The space and its server are on one
//! machine, the guest is on another one.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nuri_netns::Link;

use super::{Guest, Host, SOON, Server};
use crate::shell::script;
use crate::testbed::Testbed;

const LINK: Link = Link { bits_per_second: 100_000_000 };
const PORT: u16 = 2049;
const RUNS: usize = 3;
const MIB: u32 = 64;

pub(super) fn nfs_wire(host: &Host<'_>) -> Result<(), String> {
    let bed = Testbed::beside(host.dir, 1, 1, Some(LINK))?;
    let _server = serve(host, &bed)?;
    let words = format!("address={} runs={RUNS} mib={MIB}", bed.address(0));
    let mut guest = Guest::boot(host.image, "nfs_wire", &words, &bed.enter(1))?;
    let (mut wrote, mut read) = (Vec::new(), Vec::new());
    for run in 1..=RUNS {
        for (what, fractions) in [("write", &mut wrote), ("read", &mut read)] {
            guest.hears(&format!("{what} {run} begins"))?;
            let start = Instant::now();
            guest.hears(&format!("{what} {run} ends"))?;
            fractions.push(fraction(start.elapsed()));
        }
    }
    guest.ends_well()?;
    println!("parts of 100 Mbit/s: written {}, read {}", shown(&wrote), shown(&read));
    Ok(())
}

/// Of what the wire carries in that time.
fn fraction(took: Duration) -> f64 {
    f64::from(MIB) * f64::from(8 << 20) / LINK.bits_per_second as f64 / took.as_secs_f64()
}

fn shown(fractions: &[f64]) -> String {
    fractions.iter().map(|part| format!("{part:.2}")).collect::<Vec<_>>().join(" ")
}

fn serve(host: &Host<'_>, bed: &Testbed) -> Result<Server, String> {
    let (n, s, m) = bed.mounted.names();
    let by = bed.enter(0).join(" ");
    std::fs::create_dir(bed.mounted.mnt.join("home")).map_err(|e| format!("{m}: {e}"))?;
    script(&format!("{by} {n} nfs export add /home '*(rw,no_root_squash)' --dir {s}"), SOON)?;
    let log = host.dir.join("serve.log");
    let out = File::create(&log).map_err(|e| e.to_string())?;
    let line = format!(
        "exec {by} {n} nfs serve --no-rpcbind --dir {s} --listen {}:{PORT}",
        bed.address(0)
    );
    let mut serve = Command::new("sh");
    serve.args(["-c", &line]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(out);
    let child = serve.spawn().map_err(|e| e.to_string())?;
    let server = Server { child, port: PORT };
    script(&format!("until grep -q 'serves at' {}; do sleep 0.1; done", log.display()), SOON)?;
    Ok(server)
}
