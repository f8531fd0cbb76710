//! Without FUSE over io_uring mounts work the classic way. A binary of its own, because it turns
//! the kernel's switch off, which concerns every mount that is made meanwhile.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::{NURI, Space, nuri, text, wait};

#[allow(dead_code)]
#[path = "it/support.rs"]
mod support;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Runs `nuri fs mount` where the switch cannot be written.
fn mount_without_the_switch(space: &Space, transport: &str) -> Child {
    let script = format!(
        "mount -o remount,bind,ro /sys
         exec {NURI} fs mount --foreground --transport {transport} {} {}",
        space.dir(),
        space.str(transport)
    );
    space.make_dir(transport);
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", &script]);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn without_the_kernels_permission_mounts_are_classic() {
    let space = Space::up(&[]);
    fs::write(SWITCH, "N").unwrap();
    let doctor = nuri(&["doctor", "--dir", &space.dir()]);
    assert!(text(&doctor.stdout).contains("mounting sets it"), "{}", text(&doctor.stdout));

    let demanded = mount_without_the_switch(&space, "uring").wait_with_output().unwrap();
    assert!(!demanded.status.success());
    let said = text(&demanded.stderr);
    assert!(said.contains("no FUSE over io_uring: fuse.enable_uring is N"), "{said}");

    let mut child = mount_without_the_switch(&space, "auto");
    // The mount is in the name space of its process.
    let seen = format!("/proc/{}/root{}", child.id(), space.str("auto"));
    let shows = |path: &str| {
        let mut buf = [0; 256];
        let len = rustix::fs::getxattr(path, "nuri.transport", &mut buf[..]).unwrap_or(0);
        text(&buf[..len])
    };
    wait("a classic mount", Duration::from_secs(20), || {
        shows(&seen).starts_with("transport=classic ")
    });
    fs::write(format!("{seen}/f"), vec![5; 2 << 20]).unwrap();
    assert_eq!(fs::read(space.mnt().join("f")).unwrap(), vec![5; 2 << 20]);
    // A mount that had rings before keeps them.
    assert!(shows(&space.str("mnt")).starts_with("transport=uring "));
    assert_eq!(fs::read_to_string(SWITCH).unwrap().trim(), "N");
    let enter = format!("--target={}", child.id());
    let umount =
        Command::new("nsenter").args(["-m", &enter, "umount", &space.str("auto")]).status();
    assert!(umount.unwrap().success());
    assert!(child.wait().unwrap().success());

    // A mount that may sets the switch itself.
    let point = space.make_dir("again").display().to_string();
    assert!(nuri(&["fs", "mount", &space.dir(), &point]).status.success());
    wait("rings", Duration::from_secs(5), || shows(&point).starts_with("transport=uring "));
    assert_eq!(fs::read_to_string(SWITCH).unwrap().trim(), "Y");
    assert!(nuri(&["fs", "umount", &point]).status.success());
    space.down_clean();
}
