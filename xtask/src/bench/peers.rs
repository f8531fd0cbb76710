//! The systems under measurement, on one disk.

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::XattrFlags;

use super::meter::Meter;
use crate::apps::{Another, Mounted};
use crate::shell::{Build, script};

/// A system under measurement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Peer {
    Local,
    Passthrough,
    /// Servers and mount are processes of their own.
    Nuri,
    /// One process holds all servers.
    Embedded,
}

impl Peer {
    pub(crate) const ALL: [Peer; 4] = [Peer::Local, Peer::Passthrough, Peer::Nuri, Peer::Embedded];
}

/// All of them, running.
pub(crate) struct Peers {
    dir: PathBuf,
    // Ends before the space that it shows.
    second: Option<Another>,
    nuri: Mounted,
    embedded: Mounted,
    started: [Duration; 2],
    meter: RefCell<Meter>,
}

const LIMIT: Duration = Duration::from_secs(60);

fn sh(text: &str) -> Result<String, String> {
    script(text, LIMIT)
}

fn sync_mount(mnt: &Path) -> rustix::io::Result<()> {
    rustix::fs::setxattr(mnt, "nuri.sync", b"", XattrFlags::empty())
}

impl Peers {
    /// Builds the passthrough with -O2 and mounts it; starts four nodes and a mount of Nuri.
    pub(crate) fn start(dir: &Path) -> Result<Peers, String> {
        let d = dir.display();
        sh(&format!(
            "mkdir -p {d}/local {d}/source {d}/pass; cd {d}
             E=/usr/share/doc/libfuse3-dev/examples
             for f in passthrough_ll.c passthrough_helpers.h; do
                 if [ -f $E/$f ]; then cp $E/$f .; else zcat $E/$f.gz > $f; fi; done
             gcc -O2 passthrough_ll.c $(pkg-config --cflags --libs fuse3) -o passthrough_ll"
        ))?;
        let timed = |more: &str| {
            let start = Instant::now();
            Mounted::up(Build::Release, dir, more).map(|mounted| (mounted, start.elapsed()))
        };
        let (nuri, several) = timed("--nodes 4 --target-size 8G --shape stripe")?;
        let (embedded, one) = timed("--nodes 1 --target-size 8G --shape stripe")?;
        let meter = RefCell::new(Meter::of(dir));
        let (dir, started) = (dir.to_owned(), [several, one]);
        let peers = Peers { dir, second: None, nuri, embedded, started, meter };
        peers.remount(Peer::Passthrough)?;
        Ok(peers)
    }

    /// Mounts Nuri's space once more, by a process of its own.
    pub(crate) fn mount_second(&mut self) -> Result<(), String> {
        self.second = Some(self.nuri.another()?);
        Ok(())
    }

    /// Has all that was written on the disk. A passthrough does not get `syncfs`: its source does.
    pub(crate) fn sync(&self, peer: Peer) -> Result<(), String> {
        let told = |e: rustix::io::Errno| format!("sync of {peer:?}: {e}");
        match peer {
            Peer::Local | Peer::Passthrough => {
                let name = if peer == Peer::Local { "local" } else { "source" };
                let dir = File::open(self.dir.join(name)).map_err(|e| e.to_string())?;
                rustix::fs::syncfs(dir).map_err(told)
            }
            Peer::Nuri => self.mounts().iter().try_for_each(|mnt| sync_mount(mnt).map_err(told)),
            Peer::Embedded => sync_mount(&self.embedded.mnt).map_err(told),
        }
    }

    /// Of Nuri's space with four nodes: one or two.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        let second = self.second.as_ref().map(|second| second.mnt.clone());
        std::iter::once(self.nuri.mnt.clone()).chain(second).collect()
    }

    /// Processor seconds of Nuri's servers and mounts since they started.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.look();
        self.meter.borrow().cpu_seconds()
    }

    /// Notes what Nuri's processes have used by now.
    fn look(&self) {
        let mut meter = self.meter.borrow_mut();
        meter.look(&self.nuri.space);
        if let Some(second) = &self.second {
            meter.look_at(second.pid().to_string(), "mount2".into());
        }
    }

    pub(crate) fn path(&self, peer: Peer) -> PathBuf {
        match peer {
            Peer::Local => self.dir.join("local"),
            Peer::Passthrough => self.dir.join("pass"),
            Peer::Nuri => self.nuri.mnt.clone(),
            Peer::Embedded => self.embedded.mnt.clone(),
        }
    }

    /// Mounts anew and drops all caches.
    pub(crate) fn cold(&self, peer: Peer) -> Result<(), String> {
        self.remount(peer)?;
        sh("sync; echo 3 > /proc/sys/vm/drop_caches").map(|_| ())
    }

    fn remount(&self, peer: Peer) -> Result<(), String> {
        let d = self.dir.display();
        match peer {
            Peer::Local => Ok(()),
            Peer::Passthrough => sh(&format!(
                "cd {d}; if grep -q ' {d}/pass ' /proc/mounts; then umount {d}/pass; fi
                 ./passthrough_ll -o source={d}/source,allow_other {d}/pass"
            ))
            .map(|_| ()),
            Peer::Nuri | Peer::Embedded => {
                self.look();
                // The supervisor mounts again.
                let space = if peer == Peer::Nuri { &self.nuri } else { &self.embedded };
                let (n, m) = (space.nuri.display(), space.mnt.display());
                sh(&format!(
                    "{n} fs umount {m}
                     for i in $(seq 500); do
                         grep -q ' {m} fuse' /proc/mounts && ls {m} >/dev/null && exit 0
                         sleep 0.02
                     done; exit 1"
                ))
                .map(|_| ())
            }
        }
    }

    /// Runs a transfer of `bytes` and holds it against the device's own counters.
    pub(crate) fn metered<T>(&self, write: bool, bytes: usize, f: impl FnOnce() -> T) -> T {
        let look = || {
            self.look();
            let meter = self.meter.borrow();
            (meter.device_bytes(), meter.cpu_seconds())
        };
        let (before, cpu_before) = look();
        let out = f();
        let (after, cpu_after) = look();
        let mut meter = self.meter.borrow_mut();
        let side = usize::from(write);
        meter.cpu[side] += cpu_after - cpu_before;
        meter.asked[side] += bytes as u64;
        meter.device[side] += after[side].saturating_sub(before[side]);
        out
    }

    pub(crate) fn describe(&self) -> String {
        let facts = sh("uname -r; nproc; cat /sys/module/fuse/parameters/enable_uring");
        let facts = facts.unwrap_or_default().replace('\n', " ");
        format!(
            "kernel, processors, fuse.enable_uring: {facts}\n\
             passthrough: libfuse's passthrough_ll, gcc -O2, default options (cache auto, 1 s)\n\
             nuri: 4 node processes and a mount process over TCP on loopback, \
             chunk 1 MiB, width 4"
        )
    }

    /// What Nuri's processes and the device under them were used for.
    pub(crate) fn costs(&self) -> String {
        self.look();
        let meter = self.meter.borrow();
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let [asked_read, asked_written] = meter.asked.map(gib);
        let [device_read, device_written] = meter.device.map(gib);
        let cpu_read = meter.cpu[0] / asked_read.max(0.001);
        let cpu_write = meter.cpu[1] / asked_written.max(0.001);
        let peaks = meter.peaks();
        format!(
            "nuri: start of the space with its mount {:.1} s; one process for all {:.1} s\n\
             nuri: peak memory, MiB: {peaks}\n\
             nuri: processor seconds per GiB of the 1 MiB rows, servers and mount: \
             read {cpu_read:.2}, write {cpu_write:.2}\n\
             nuri: the 1 MiB rows read {asked_read:.1} GiB, the device says {device_read:.1}; \
             wrote {asked_written:.1} GiB, the device says {device_written:.1}",
            self.started[0].as_secs_f64(),
            self.started[1].as_secs_f64(),
        )
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let d = self.dir.display();
        let _ = sh(&format!("umount {d}/pass; rm -rf {d}/local {d}/source {d}/pass"));
    }
}
