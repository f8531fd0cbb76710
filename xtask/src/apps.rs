//! Real programs on a mount: trees, git, cargo, SQLite, PostgreSQL, fsx, fio; and some that work
//! together through two mounts.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::shell::{Build, build, root, script};

/// How much to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    Quick,
    Whole,
}

/// A space for the programs; ends with the value.
pub(crate) struct Mounted {
    _tmp: tempfile::TempDir,
    pub(crate) nuri: PathBuf,
    pub(crate) space: PathBuf,
    pub(crate) mnt: PathBuf,
}

impl Mounted {
    /// Builds nuri, starts a space under `base` and mounts it.
    pub(crate) fn up(which: Build, base: &Path, more: &str) -> Result<Mounted, String> {
        Mounted::up_by(which, base, "", more)
    }

    /// The same through another program, which runs nuri somewhere else.
    pub(crate) fn up_by(
        which: Build,
        base: &Path,
        by: &str,
        more: &str,
    ) -> Result<Mounted, String> {
        let nuri = build(which)?;
        std::fs::create_dir_all(base).map_err(|e| format!("{}: {e}", base.display()))?;
        let tmp = tempfile::Builder::new().prefix("nuri-").tempdir_in(base);
        let tmp = tmp.map_err(|e| format!("no temporary directory: {e}"))?;
        // PostgreSQL runs as another user and must reach the mount below.
        script(&format!("chmod 755 {}", tmp.path().display()), Duration::from_secs(5))?;
        let (space, mnt) = (tmp.path().join("space"), tmp.path().join("mnt"));
        std::fs::create_dir(&mnt).map_err(|e| e.to_string())?;
        let mounted = Mounted { _tmp: tmp, nuri, space, mnt };
        let (n, s, m) = mounted.names();
        script(
            &format!("{by} {n} up --create --dir {s} --mount {m} {more}"),
            Duration::from_secs(40),
        )?;
        Ok(mounted)
    }

    pub(crate) fn names(&self) -> (String, String, String) {
        let show = |p: &PathBuf| p.display().to_string();
        (show(&self.nuri), show(&self.space), show(&self.mnt))
    }

    /// Mounts the space once more, beside the first mount.
    pub(crate) fn another(&self) -> Result<Another, String> {
        let mnt = self.space.with_file_name("another");
        std::fs::create_dir(&mnt).map_err(|e| format!("{}: {e}", mnt.display()))?;
        let log = std::fs::File::create(mnt.with_extension("log")).map_err(|e| e.to_string())?;
        let mut command = Command::new(&self.nuri);
        command.args(["fs", "mount", "--foreground"]).arg(&self.space).arg(&mnt);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let daemon = command.spawn().map_err(|e| format!("another mount: {e}"))?;
        let another = Another { mnt, daemon };
        wait_mounted(&another.mnt)?;
        Ok(another)
    }

    /// Mounts anew and drops all caches.
    pub(crate) fn cold(&self) -> Result<(), String> {
        let (n, _, m) = self.names();
        let text = format!(
            "{n} fs umount {m}
             for i in $(seq 500); do
                 grep -q ' {m} fuse' /proc/mounts && ls {m} >/dev/null && break
                 sleep 0.02
             done
             sync; echo 3 > /proc/sys/vm/drop_caches"
        );
        script(&text, Duration::from_secs(60)).map(drop)
    }

    /// Stops the space and checks it.
    pub(crate) fn down_clean(&self) -> Result<(), String> {
        let (n, s, _) = self.names();
        script(&format!("{n} down --dir {s} && {n} doctor --dir {s}"), Duration::from_secs(120))?;
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let (n, s, _) = self.names();
        let _ = script(&format!("{n} down --force --dir {s}"), Duration::from_secs(60));
    }
}

/// A mount that no supervisor looks after; ends with the value.
pub(crate) struct Another {
    pub(crate) mnt: PathBuf,
    daemon: Child,
}

impl Another {
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.id()
    }

    /// Unmounts it, which must lose nothing.
    pub(crate) fn end_clean(mut self, mounted: &Mounted) -> Result<(), String> {
        let (n, ..) = mounted.names();
        let text = format!("{n} fs umount {}", self.mnt.display());
        script(&text, Duration::from_secs(60))?;
        let end = self.daemon.wait().map_err(|e| e.to_string())?;
        // Where it is to be made again.
        std::fs::remove_dir(&self.mnt).map_err(|e| e.to_string())?;
        if end.success() { Ok(()) } else { Err(format!("the mount ended with {end}")) }
    }
}

impl Drop for Another {
    fn drop(&mut self) {
        end_mount(&self.mnt, &mut self.daemon);
    }
}

/// Waits until something is mounted there.
pub(crate) fn wait_mounted(point: &Path) -> Result<(), String> {
    let shown = point.display();
    script(&format!("until mountpoint -q {shown}; do sleep 0.05; done"), Duration::from_secs(30))
        .map(drop)
        .map_err(|_| format!("{shown} is not mounted after 30 s"))
}

/// Takes a mount away, whatever its process does.
pub(crate) fn end_mount(point: &Path, daemon: &mut Child) {
    let text = format!("umount -f -l {} || true", point.display());
    let _ = script(&text, Duration::from_secs(60));
    let _ = daemon.kill();
    let _ = daemon.wait();
}

/// Name, script in `scripts/apps`, its size in CI and in full.
type App = (&'static str, &'static str, &'static str, &'static str);

const APPS: &[App] = &[
    ("tree", "tree.sh", "FILES=4000", "FILES=100000"),
    ("git", "git.sh", "", ""),
    ("cargo build", "cargo.sh", "", ""),
    ("SQLite", "sqlite.sh", "ROWS=20000", "ROWS=400000"),
    ("PostgreSQL", "postgres.sh", "SECONDS_RUN=15", "SECONDS_RUN=30"),
    ("pjdfstest", "pjdfstest.sh", "", ""),
    ("fsx", "fsx.sh", "OPS=20000", "OPS=1000000"),
    ("fio --verify", "fio.sh", "SIZE=64m", "SIZE=1g"),
    ("many files", "many-files.sh", "FLAT=10000 SPREAD=10", "FLAT=100000 SPREAD=1000"),
    ("backup beside", "backup-beside.sh", "SECONDS_RUN=10", "SECONDS_RUN=60"),
    ("two clones", "two-clones.sh", "COMMITS=5", "COMMITS=100"),
    ("make beside", "make-beside.sh", "FILES=40", "FILES=1000"),
];

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    APPS.iter().map(|(name, ..)| *name)
}

/// Runs all programs of which the name contains `only` on one space, then proves the space clean.
pub(crate) fn run(share: Share, only: &str) -> Result<(), String> {
    let mounted = Mounted::up(Build::Tests, Path::new("/var/tmp"), "--target-size 4G")?;
    let another = mounted.another()?;
    let m2 = another.mnt.display().to_string();
    for (name, file, quick, whole) in APPS.iter().filter(|(name, ..)| name.contains(only)) {
        let start = Instant::now();
        let (n, s, m) = mounted.names();
        let size = if share == Share::Quick { quick } else { whole };
        let root = root().display().to_string();
        let text = format!(
            "export N={n} S={s} M={m} M2={m2} ROOT={root} {size}\nexec bash -euo pipefail \
             {root}/scripts/apps/{file}"
        );
        script(&text, Duration::from_secs(1800)).map_err(|e| format!("{name}: {e}"))?;
        println!("{name:<14} ok {:6.1} s", start.elapsed().as_secs_f64());
    }
    drop(another);
    mounted.down_clean()
}
