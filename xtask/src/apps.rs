//! Real programs on a mount: trees, git, cargo, SQLite, PostgreSQL, fsx, fio.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::shell::{cargo, root, run as run_command, script};

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
    pub(crate) fn up(base: &Path, more: &str) -> Result<Mounted, String> {
        run_command(
            &mut cargo(&["build", "--release", "-q", "-p", "nuri"]),
            Duration::from_secs(900),
        )?;
        std::fs::create_dir_all(base).map_err(|e| format!("{}: {e}", base.display()))?;
        let tmp = tempfile::Builder::new().prefix("nuri-").tempdir_in(base);
        let tmp = tmp.map_err(|e| format!("no temporary directory: {e}"))?;
        // PostgreSQL runs as another user and must reach the mount below.
        script(&format!("chmod 755 {}", tmp.path().display()), Duration::from_secs(5))?;
        let nuri = root().join("target/release/nuri");
        let (space, mnt) = (tmp.path().join("space"), tmp.path().join("mnt"));
        std::fs::create_dir(&mnt).map_err(|e| e.to_string())?;
        let mounted = Mounted { _tmp: tmp, nuri, space, mnt };
        let (n, s, m) = mounted.names();
        script(&format!("{n} up --dir {s} --mount {m} {more}"), Duration::from_secs(40))?;
        Ok(mounted)
    }

    fn names(&self) -> (String, String, String) {
        let show = |p: &PathBuf| p.display().to_string();
        (show(&self.nuri), show(&self.space), show(&self.mnt))
    }

    /// Stops the space and checks it.
    fn down_clean(&self) -> Result<(), String> {
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

type App = (&'static str, fn(Share) -> String);

const APPS: &[App] = &[
    ("tree", tree),
    ("git", git),
    ("cargo build", cargo_build),
    ("SQLite", sqlite),
    ("PostgreSQL", postgres),
    ("fsx", fsx),
    ("fio --verify", fio),
    ("many files", many_files),
];

/// Runs all programs on one space, then proves the space clean.
pub(crate) fn run(share: Share) -> Result<(), String> {
    let mounted = Mounted::up(Path::new("/var/tmp"), "--target-size 4G")?;
    for (name, app) in APPS {
        let start = Instant::now();
        let (n, s, m) = mounted.names();
        let head = format!("N={n} S={s} M={m} ROOT={}\n", root().display());
        let text = head + &app(share);
        script(&text, Duration::from_secs(900)).map_err(|e| format!("{name}: {e}"))?;
        println!("{name:<14} ok {:6.1} s", start.elapsed().as_secs_f64());
    }
    mounted.down_clean()
}

fn tree(share: Share) -> String {
    let files = if share == Share::Quick { 4000 } else { 100_000 };
    format!(
        r#"T=$(ls -d ${{CARGO_HOME:-$HOME/.cargo}}/registry/src/* | head -1)
        cd $T; {{ find . -type f || true; }} | sort | awk 'NR<={files}' > /tmp/nuri-tree.$$
        mkdir $M/tree; tar -cf - --no-recursion -T /tmp/nuri-tree.$$ | tar -xf - -C $M/tree
        tr '\n' '\0' < /tmp/nuri-tree.$$ | xargs -0 sha256sum > /tmp/nuri-want.$$
        (cd $M/tree; sha256sum --quiet -c /tmp/nuri-want.$$); rm /tmp/nuri-want.$$
        rm /tmp/nuri-tree.$$
        cp -a $M/tree $M/copy; rsync -a --delete $M/tree/ $M/synced/; diff -r $M/copy $M/synced
        ls -lR $M/tree > /dev/null; rm -rf $M/copy; find $M/synced -delete
        [ ! -e $M/synced ]"#
    )
}

fn git(_: Share) -> String {
    "git clone -q $ROOT $M/clone; cd $M/clone; git fsck --strict; git status --short | wc -l; \
     git checkout -q -b other; echo x > new; git add new; \
     git -c user.name=n -c user.email=n@n commit -qm new; git gc -q; git fsck"
        .into()
}

fn cargo_build(_: Share) -> String {
    "mkdir -p $M/hello/src; cd $M/hello; \
     printf '[package]\\nname = \"hello\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n[workspace]\\n' > Cargo.toml; \
     echo 'fn main() { println!(\"hello\"); }' > src/main.rs; \
     cargo build -q --offline; [ \"$(./target/debug/hello)\" = hello ]; cargo build -q --offline"
        .into()
}

fn sqlite(share: Share) -> String {
    let rows = if share == Share::Quick { 20_000 } else { 400_000 };
    format!(
        r#"cd $M; sqlite3 x.db "create table t(a integer primary key, b text);
        with recursive c(i) as (select 1 union all select i+1 from c where i<{rows})
        insert into t select i, hex(randomblob(40)) from c;
        update t set b='x' where a%7=0;"
        {{ echo "begin;"; for i in $(seq 1 20000); do echo "update t set b='dead' where a=$i;"; done; sleep 5; }} \
            | sqlite3 x.db & P=$!
        sleep 1; kill -9 $P $(pgrep -P $P) 2>/dev/null || true; pkill -9 -x sqlite3 || true; wait || true
        [ "$(sqlite3 x.db 'pragma integrity_check')" = ok ]
        [ "$(sqlite3 x.db "select count(*) from t where b='dead'")" = 0 ]
        [ "$(sqlite3 x.db 'select count(*) from t')" = {rows} ]"#
    )
}

fn postgres(share: Share) -> String {
    let seconds = if share == Share::Quick { 10 } else { 30 };
    format!(
        r#"B=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -1); D=$M/pg/data
        mkdir $M/pg; chown postgres $M/pg; chmod 755 $M
        pg() {{ (cd /tmp; setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/tmp "$@"); }}
        SOCK=$(mktemp -d); chown postgres $SOCK; PORT=54{seconds}7
        start() {{ pg $B/pg_ctl -D $D -o "-k $SOCK -p $PORT -c listen_addresses=''" -l $SOCK/log -w start >/dev/null; }}
        pg $B/initdb -k -D $D >/dev/null; start
        trap 'pg $B/pg_ctl -D $D -m immediate stop >/dev/null 2>&1 || true; rm -rf $SOCK' EXIT
        pg $B/createdb -h $SOCK -p $PORT b
        pg $B/pgbench -h $SOCK -p $PORT -i -s 5 -q b 2>/dev/null
        pg $B/pgbench -h $SOCK -p $PORT -T {seconds} -c 4 b 2>/dev/null | grep tps
        (pg $B/pgbench -h $SOCK -p $PORT -T 5 -c 4 b >/dev/null 2>&1 || true) & sleep 2
        PM=$(head -1 $D/postmaster.pid); kill -9 $PM $(pgrep -P $PM); wait || true
        for i in $(seq 50); do pgrep -P $PM >/dev/null || break; sleep 0.1; done; sleep 1
        rm -f $D/postmaster.pid $SOCK/.s.*; start || {{ cat $SOCK/log; exit 1; }}
        Q() {{ pg $B/psql -h $SOCK -p $PORT -Atc "$1" b; }}
        [ "$(Q 'select count(*) from pgbench_accounts')" = 500000 ]
        [ "$(Q 'select sum(abalance) from pgbench_accounts')" = "$(Q 'select sum(bbalance) from pgbench_branches')" ]
        pg $B/pg_ctl -D $D -w stop >/dev/null; pg $B/pg_checksums -D $D -c | grep 'Bad checksums:  0'"#
    )
}

fn fsx(share: Share) -> String {
    let ops = if share == Share::Quick { 100_000 } else { 1_000_000 };
    format!(
        r#"X=$ROOT/target/tools/bin/fsx
        [ -x $X ] || cargo install -q fsx --version 0.3.2 --locked --root $ROOT/target/tools
        printf 'flen = 1048576\n[weights]\nclose_open = 1\ninvalidate = 1\ntruncate = 2\nfsync = 1\nfdatasync = 1\nread = 10\nwrite = 10\nmapread = 5\nmapwrite = 5\npunch_hole = 1\ncopy_file_range = 1\nposix_fallocate = 1\n' > /tmp/nuri-fsx.$$
        S=$(date +%j); $X -q -f /tmp/nuri-fsx.$$ -N {ops} -S $S $M/fsx || {{ echo "fsx seed $S"; exit 1; }}
        rm /tmp/nuri-fsx.$$"#
    )
}

fn fio(share: Share) -> String {
    let size = if share == Share::Quick { "64m" } else { "1g" };
    format!(
        "cd $M; for rw in write randwrite; do for direct in 0 1; do \
         fio --name=v --filename=fio.$rw.$direct --rw=$rw --bs=16k --size={size} --direct=$direct \
         --ioengine=psync --verify=crc32c --verify_fatal=1 --end_fsync=1 --minimal >/dev/null; \
         done; done; rm fio.*"
    )
}

fn many_files(share: Share) -> String {
    let (flat, spread) = if share == Share::Quick { (10_000, 20) } else { (100_000, 1000) };
    format!(
        r#"mkdir $M/flat; cd $M/flat; seq 1 {flat} | xargs touch
        [ $(ls -U | wc -l) = {flat} ]; [ $(ls -U | sort -u | wc -l) = {flat} ]
        mkdir $M/spread; cd $M/spread
        for d in $(seq 1 {spread}); do mkdir d$d; (cd d$d; seq 1 1000 | xargs touch); done
        [ $(find $M/spread -type f | wc -l) = $(({spread} * 1000)) ]
        cd /; rm -rf $M/flat $M/spread"#
    )
}
