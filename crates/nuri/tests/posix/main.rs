//! The POSIX suite: a table of cases for every system call, from the standard and the manual
//! pages. Each case runs on a local file system, as the reference, and on a mount. A case names
//! two outcomes only where they may differ, and says why.
//!
//! All cases share one space and run one after the other: the whole takes less than a minute.

#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;

use kit::{Case, name_of};
use shared::Pair;
use support::Space;

#[allow(dead_code)]
#[path = "../it/support.rs"]
mod support;

mod attrs;
mod data;
mod dirs;
mod kit;
mod names;
mod open;
mod rename;
mod shared;
mod xattr;

const TABLES: &[(&str, &[Case])] = &[
    ("open", open::CASES),
    ("tmpfile", dirs::TMPFILE),
    ("link", names::LINK),
    ("unlink", names::UNLINK),
    ("rename", rename::CASES),
    ("mkdir", names::MKDIR),
    ("rmdir", names::RMDIR),
    ("symlink", names::SYMLINK),
    ("mknod", names::MKNOD),
    ("readdir", dirs::READDIR),
    ("chmod", attrs::CHMOD),
    ("chown", attrs::CHOWN),
    ("privileges", attrs::PRIVILEGES),
    ("utimensat", attrs::UTIMENSAT),
    ("access", attrs::ACCESS),
    ("stat", attrs::STAT),
    ("xattr", xattr::XATTR),
    ("acl", xattr::ACL),
    ("read, write", data::READ_WRITE),
    ("truncate", data::TRUNCATE),
    ("fallocate", data::FALLOCATE),
    ("lseek", data::LSEEK),
    ("copy_file_range", data::COPY_FILE_RANGE),
    ("sync", data::SYNC),
    ("direct", data::DIRECT),
];

/// What a case says in an empty directory.
fn outcome(d: &Path, run: impl FnOnce() -> kit::Seen) -> String {
    std::fs::create_dir(d).unwrap();
    kit::chmod(d, 0o777);
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(text)) => text,
        Ok(Err(errno)) => name_of(errno),
        Err(_) => "could not be prepared".into(),
    }
}

/// A directory on a local file system, where non-root users get in.
fn reference() -> tempfile::TempDir {
    let d = tempfile::Builder::new().prefix("nuri-posix-").tempdir_in("/var/tmp").unwrap();
    kit::chmod(d.path(), 0o755);
    let acl = [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255];
    let acl = [&acl[..], &[32, 0, 5, 0, 255, 255, 255, 255]].concat();
    let flags = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(d.path(), "system.posix_acl_access", &acl, flags);
    set.expect("/var/tmp must be on a file system with access control lists, such as ext4");
    d
}

/// The cases that `NURI_POSIX` asks for (part of "table: case"), else all.
fn is_wanted(name: &str) -> bool {
    std::env::var("NURI_POSIX").map_or(true, |part| name.contains(&part))
}

/// Runs the tables; returns what was not as expected.
fn run_tables(local: &Path, mount: &Path) -> Vec<String> {
    let places = [("local", local), ("mount", mount)];
    let mut wrong = Vec::new();
    for (table, cases) in TABLES {
        let start = Instant::now();
        for (i, case) in cases.iter().enumerate() {
            let name = format!("{table}: {}", case.name);
            assert!(case.why.is_empty() == (case.local == case.mount), "{name}: say why");
            for (place, root) in places.iter().filter(|_| is_wanted(&name)) {
                let d = root.join(format!("{}{i}", table.replace(", ", "-")));
                let seen = outcome(&d, || (case.run)(&d));
                let expected = if *place == "local" { case.local } else { case.mount };
                if seen != expected {
                    wrong.push(format!("{place}: {name}: {seen}, expected {expected}"));
                }
            }
        }
        let differ = cases.iter().filter(|c| !c.why.is_empty()).count();
        tell(table, (cases.len(), differ), start);
    }
    wrong
}

fn tell(table: &str, (cases, differ): (usize, usize), start: Instant) {
    println!("{table:<16} {cases:>5} {differ:>11} {:>8.1}", start.elapsed().as_secs_f64());
}

/// Runs a table that uses two mounts.
fn run_pairs(table: &str, pairs: &[Pair], (one, two): (&Path, &Path)) -> Vec<String> {
    let start = Instant::now();
    let mut wrong = Vec::new();
    for (i, pair) in pairs.iter().enumerate() {
        let name = format!("{table}: {}", pair.name);
        let id = format!("{}{i}", table.replace(' ', "-"));
        let (a, b) = (one.join(&id), two.join(&id));
        if is_wanted(&name) {
            let seen = outcome(&a, || (pair.run)(&a, &b));
            if seen != pair.expected {
                wrong.push(format!("{name}: {seen}, expected {}", pair.expected));
            }
        }
    }
    tell(table, (pairs.len(), 0), start);
    wrong
}

#[test]
fn every_call_as_on_a_local_file_system() {
    rustix::process::umask(kit::bits(0));
    let mut space = Space::up(&[]);
    kit::chmod(&space.path(""), 0o755);
    let local = reference();
    let mount = space.mnt();
    println!("{:<16} cases  may differ  seconds", "table");
    let mut wrong = run_tables(local.path(), &mount);
    let second = space.mount("second");
    wrong.extend(run_pairs("across mounts", shared::ACROSS, (&mount, &second)));
    let read_only = space.make_dir("read-only");
    let (dir, point) = (space.dir(), read_only.display().to_string());
    let mounted = support::nuri(&["fs", "mount", "--ro", &dir, &point]);
    assert!(mounted.status.success(), "{}", support::text(&mounted.stderr));
    space.own_mount(read_only.clone());
    wrong.extend(run_pairs("read-only mounts", shared::READ_ONLY, (&mount, &read_only)));
    wrong.iter().for_each(|line| eprintln!("{line}"));
    assert!(wrong.is_empty(), "{} outcomes are wrong, see above", wrong.len());
    for point in [&second, &read_only] {
        assert!(support::nuri(&["fs", "umount", &point.display().to_string()]).status.success());
    }
    space.down_clean();
}
