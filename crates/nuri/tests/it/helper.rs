//! `mount.fuse.nuri`, as mount(8) calls it, and what is mounted on top of a mount.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{NURI, Space, nuri, run, text};

/// The helper under its name.
fn helper(space: &Space, words: &[&str]) -> Output {
    let link = space.path("mount.fuse.nuri");
    if !link.exists() {
        symlink(NURI, &link).unwrap();
    }
    Command::new(link).args(words).output().unwrap()
}

fn mounts() -> String {
    String::from_utf8_lossy(&fs::read("/proc/mounts").unwrap()).into_owned()
}

fn umount(point: &Path) {
    assert!(nuri(&["fs", "umount", &point.display().to_string()]).status.success());
}

#[test]
fn mount_and_fstab_can_mount_a_space() {
    let space = Space::up(&[]);
    let (dir, point) = (space.dir(), space.path("by helper"));
    let (source, at) = (format!("{dir}#second"), point.display().to_string());
    fs::write(space.mnt().join("f"), "bytes").unwrap();
    let script = space.mnt().join("script");
    fs::write(&script, "#!/bin/sh\ntrue\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let options = "rw,noatime,noexec,_netdev,x-systemd.automount";
    let done = helper(&space, &[&source, &at, "-v", "-o", options]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let table = mounts();
    let shown = source.replace('#', "\\043");
    let line = table.lines().find(|line| line.starts_with(&shown)).expect(&table);
    for word in ["fuse.nuri", "noatime", "noexec", "nosuid", "nodev"] {
        assert!(line.contains(word), "{line}");
    }
    let f = point.join("f");
    let before = fs::metadata(&f).unwrap();
    assert_eq!(fs::read_to_string(&f).unwrap(), "bytes");
    let after = fs::metadata(&f).unwrap();
    assert_eq!((before.atime(), before.atime_nsec()), (after.atime(), after.atime_nsec()));
    let refused = Command::new(point.join("script")).status().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    umount(&point);
    space.down_clean();
}

#[test]
fn the_helper_says_what_is_wrong() {
    let space = Space::up(&[]);
    let (dir, at) = (space.dir(), space.path("there").display().to_string());
    for (words, code, part) in [
        (&[dir.as_str()][..], 1, "use:"),
        (&[&dir, &at, "-o", "fast"], 1, "fast is not known"),
        (&[&dir, &at, "-o", "inodes=1"], 1, "inodes"),
        (&["/nothing/here", &at], 32, "neither a space's directory nor HOST:PORT"),
    ] {
        let done = helper(&space, words);
        assert_eq!(done.status.code(), Some(code), "{words:?}: {}", text(&done.stderr));
        assert!(text(&done.stderr).contains(part), "{words:?}: {}", text(&done.stderr));
    }
    assert!(helper(&space, &[&dir, &at, "-f"]).status.success());
    assert!(!mounts().contains(&at), "a faked mount");
    space.down_clean();
}

/// As containers do it: what lies below is read, all changes are on the mount.
#[test]
fn an_overlay_has_its_upper_layer_on_a_mount() {
    let space = Space::up(&[]);
    let (lower, upper, work) =
        (space.path("lower"), space.mnt().join("upper"), space.mnt().join("work"));
    let merged = space.path("merged");
    for dir in [&lower, &upper, &work, &merged] {
        fs::create_dir(dir).unwrap();
    }
    fs::create_dir(lower.join("d")).unwrap();
    for name in ["kept", "changed", "removed", "d/inner"] {
        fs::write(lower.join(name), name).unwrap();
    }
    let show = |path: &PathBuf| path.display().to_string();
    let (lower, upper, work) = (show(&lower), show(&upper), show(&work));
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    run("mount", &["-t", "overlay", "nuri-it", "-o", &layers, &show(&merged)]);
    fs::write(merged.join("changed"), "anew").unwrap();
    fs::remove_file(merged.join("removed")).unwrap();
    fs::rename(merged.join("kept"), merged.join("d/kept")).unwrap();
    fs::write(merged.join("made"), "made").unwrap();
    fs::remove_file(merged.join("d/inner")).unwrap();
    let names = |dir: &Path| {
        let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|n| n.into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&merged), ["changed", "d", "made"]);
    assert_eq!(names(&merged.join("d")), ["kept"]);
    assert_eq!(fs::read_to_string(merged.join("changed")).unwrap(), "anew");
    assert_eq!(fs::read_to_string(merged.join("d/kept")).unwrap(), "kept");
    run("umount", &[&show(&merged)]);
    space.down_clean();
}
