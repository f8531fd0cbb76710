//! The example programs, compiled with the header, linked both ways and run.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

mod common;

const C: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../nuri-ipc");

/// Lays the shared library out as an installation does.
fn install(dir: &Path) {
    let built = common::deps().join("libnuri_ipc_c.so");
    for name in ["libnuri_ipc.so", "libnuri_ipc.so.0"] {
        symlink(&built, dir.join(name)).unwrap();
    }
}

fn compile(program: &str, dir: &Path, shared: bool) -> PathBuf {
    let out = dir.join(program);
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&out);
    cc.arg(format!("-I{C}/include")).arg(format!("{C}/examples/{program}.c"));
    if shared {
        install(dir);
        cc.arg(format!("-L{0}", dir.display())).arg(format!("-Wl,-rpath,{}", dir.display()));
        cc.arg("-lnuri_ipc");
    } else {
        cc.arg(common::newest_archive()).args(["-lpthread", "-lm", "-ldl"]);
    }
    assert!(cc.status().unwrap().success());
    out
}

fn run(program: &Path, dir: &Path, ranks: u32, more: &[&str]) -> String {
    let start = |rank: u32| -> Child {
        let mut command = Command::new(program);
        command.arg("c").arg(dir.join("ipc")).arg(rank.to_string()).args(more);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let ended: Vec<_> = children.into_iter().map(|c| c.wait_with_output().unwrap()).collect();
    assert!(ended.iter().all(|output| output.status.success()), "{ended:?}");
    assert!(!dir.join("ipc").exists(), "nothing stays behind");
    String::from_utf8(ended[0].stdout.clone()).unwrap()
}

#[test]
fn pingpong_with_the_shared_library() {
    let temp = tempfile::tempdir().unwrap();
    let program = compile("pingpong", temp.path(), true);
    let said = run(&program, temp.path(), 2, &[]);
    assert!(said.contains("65536 bytes") && said.contains("rank 1: both ways"), "{said}");
}

#[test]
fn halo_with_the_static_library() {
    let temp = tempfile::tempdir().unwrap();
    let program = compile("halo", temp.path(), false);
    let said = run(&program, temp.path(), 3, &["3"]);
    assert!(said.contains("total 6000000, by messages 6000000"), "{said}");
}
