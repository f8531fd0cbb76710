//! A machine whose disk is a volume: it boots from there, and moves to another emulator while it
//! runs, as a cluster of virtual machines moves it (live migration). Source and destination have
//! their disk from different servers, and the source's server is killed after the move.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::machine::{Guest, append};
use super::{Host, SOON};
use crate::shell::script;

const STORY: &str = "moves";
/// Memory of a gigabyte, nearly all of it zeros.
const MOVE: Duration = Duration::from_secs(180);
/// Longer than a server needs to take a volume over.
const TAKEOVER: Duration = Duration::from_secs(10);

/// The story.
pub(super) fn moves(host: &Host<'_>) -> Result<(), String> {
    let _space = host.space("256M")?;
    let (first, second) = (host.serve_volumes()?, host.serve_volumes()?);
    let uris = [&first, &second].map(|server| format!("nbd://127.0.0.1:{}/vm", server.port));
    let disk = disk(host)?;
    script(&format!("nbdcopy --destination-is-zero {} {}", disk.display(), uris[0]), SOON)?;
    let [one, other, road] = ["one", "other", "road"].map(|name| host.dir.join(name));
    let mut source = Guest::of_volume(STORY, &uris[0], &one, None)?;
    source.hears("wrote 3")?;
    let mut destination = Guest::of_volume(STORY, &uris[1], &other, Some(&road))?;
    move_over(&one, &road).map_err(|words| format!("the move: {words}"))?;
    drop(source);
    destination.hears("wrote")?;
    drop(first);
    std::thread::sleep(TAKEOVER);
    destination.type_line("enough")?;
    destination.ends_well()
}

/// A disk that boots the guest's kernel, with room for a file system beside it.
fn disk(host: &Host<'_>) -> Result<PathBuf, String> {
    let disk = host.dir.join("disk");
    let (kernel, initrd) = (host.image.kernel.display(), host.image.initrd.display());
    let text = format!(
        "cd {dir}
         printf 'default x\nlabel x\nkernel vmlinuz\ninitrd initrd\n' > syslinux.cfg
         echo 'append {append}' >> syslinux.cfg
         truncate -s 256M disk
         printf 'label: dos\nstart=2048, size=262144, type=c, bootable\ntype=83\n' | sfdisk -q disk
         dd if=/usr/lib/syslinux/mbr/mbr.bin of=disk bs=440 count=1 conv=notrunc status=none
         mformat -i disk@@1M -T 262144 -h 255 -s 63 -H 2048 ::
         mcopy -i disk@@1M {kernel} ::vmlinuz
         mcopy -i disk@@1M {initrd} ::initrd
         mcopy -i disk@@1M syslinux.cfg ::syslinux.cfg
         syslinux --offset 1048576 --install disk",
        dir = host.dir.display(),
        append = append(STORY, ""),
    );
    script(&text, SOON)?;
    Ok(disk)
}

/// Moves a guest to the emulator that waits at the socket `road`.
fn move_over(monitor: &Path, road: &Path) -> Result<(), String> {
    let start = Instant::now();
    while !road.exists() {
        if start.elapsed() > SOON {
            return Err("the other emulator does not wait".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut commands = UnixStream::connect(monitor).map_err(|e| e.to_string())?;
    commands.set_read_timeout(Some(MOVE)).map_err(|e| e.to_string())?;
    let asked = format!("migrate unix:{}\ninfo migrate\n", road.display());
    commands.write_all(asked.as_bytes()).map_err(|e| e.to_string())?;
    let mut said = String::new();
    while !said.contains("total time") {
        let mut some = [0; 4096];
        let count = commands.read(&mut some).map_err(|e| format!("{e} after {said}"))?;
        if count == 0 {
            return Err(said);
        }
        said.push_str(&String::from_utf8_lossy(&some[..count]));
    }
    if said.contains("status: completed") { Ok(()) } else { Err(said) }
}
