//! The three systems under measurement, on one disk.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::apps::Mounted;
use crate::shell::script;

/// A system under measurement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Peer {
    Local,
    Passthrough,
    Nuri,
}

impl Peer {
    pub(crate) const ALL: [Peer; 3] = [Peer::Local, Peer::Passthrough, Peer::Nuri];
}

/// All three, running.
pub(crate) struct Peers {
    dir: PathBuf,
    nuri: Mounted,
    written: Cell<u64>,
    cpu_at_start: f64,
}

const LIMIT: Duration = Duration::from_secs(60);

fn sh(text: &str) -> Result<String, String> {
    script(text, LIMIT)
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
        let nuri = Mounted::up(dir, "--nodes 4 --target-size 8G")?;
        let written = Cell::new(0);
        let mut peers = Peers { dir: dir.to_owned(), nuri, written, cpu_at_start: 0.0 };
        peers.remount(Peer::Passthrough)?;
        peers.cpu_at_start = peers.cpu_seconds();
        Ok(peers)
    }

    pub(crate) fn path(&self, peer: Peer) -> PathBuf {
        match peer {
            Peer::Local => self.dir.join("local"),
            Peer::Passthrough => self.dir.join("pass"),
            Peer::Nuri => self.nuri.mnt.clone(),
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
            Peer::Nuri => {
                // The supervisor mounts again.
                let (n, m) = (self.nuri.nuri.display(), self.nuri.mnt.display());
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

    pub(crate) fn count(&self, bytes: u64) {
        self.written.set(self.written.get() + bytes);
    }

    pub(crate) fn describe(&self) -> String {
        let facts = sh("uname -r; nproc; cat /sys/module/fuse/parameters/enable_uring");
        let facts = facts.unwrap_or_default().replace('\n', " ");
        format!(
            "kernel, processors, fuse.enable_uring: {facts}\n\
             passthrough: libfuse's passthrough_ll, gcc -O2, default options (cache auto, 1 s)\n\
             nuri: 4 node processes and a mount process over TCP on loopback, chunk 1 MiB, width 4"
        )
    }

    fn pids(&self) -> Vec<String> {
        let run = self.nuri.space.join("run");
        let read = |e: std::fs::DirEntry| std::fs::read_to_string(e.path()).ok();
        let locks = std::fs::read_dir(run).map(|d| d.flatten().filter_map(read).collect());
        locks.unwrap_or_default()
    }

    /// Processor time of all of Nuri's processes that live now.
    fn cpu_seconds(&self) -> f64 {
        let ticks = |pid: &String| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
            let fields: Vec<_> = stat.rsplit(')').next()?.split_whitespace().collect();
            Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
        };
        self.pids().iter().filter_map(ticks).sum::<f64>() / 100.0
    }

    /// Memory at its highest of each of Nuri's processes, and the servers' processor time.
    pub(crate) fn costs(&self) -> String {
        let peak = |pid: &String| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim())).ok()?;
            let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        let peaks: Vec<_> = self.pids().iter().filter_map(peak).map(|k| k >> 10).collect();
        let cpu = self.cpu_seconds() - self.cpu_at_start;
        let gib = self.written.get() as f64 / f64::from(1 << 30);
        format!(
            "nuri: peak memory of its processes, MiB: {peaks:?}\n\
             nuri: {cpu:.0} processor seconds of the living processes for {gib:.1} GiB moved"
        )
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let d = self.dir.display();
        let _ = sh(&format!("umount {d}/pass; rm -rf {d}/local {d}/source {d}/pass"));
    }
}
