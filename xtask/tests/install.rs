//! An installation as its users see it. A file of its own: the tests of `watch` end all processes
//! that tests beside them have started.

#![allow(clippy::unwrap_used)]

use std::process::Command;

/// What pkg-config says compiles, links both ways and runs.
#[test]
fn installed_libraries_serve_c_programs() {
    let prefix = tempfile::tempdir().unwrap();
    for _ in ["anew", "over what is there"] {
        let mut install = Command::new(env!("CARGO_BIN_EXE_xtask"));
        install.args(["install", "--libraries", "--prefix"]).arg(prefix.path());
        assert!(install.status().unwrap().success());
    }
    let text = r#"
        export PKG_CONFIG_PATH=$PWD/lib/pkgconfig
        cc "$1" -o shared $(pkg-config --cflags --libs nuri-ipc)
        cc "$1" -o static $(pkg-config --cflags nuri-ipc) lib/libnuri_ipc.a \
            $(pkg-config --static --libs-only-l nuri-ipc | sed s/-lnuri_ipc//)
        LD_LIBRARY_PATH=lib ./shared s $PWD/ipc 1 &
        ./static s $PWD/ipc 0
        wait $!
        [ ! -e ipc ]
        ls share/man/man7"#;
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/nuri-ipc/examples/pingpong.c");
    let mut run = Command::new("timeout");
    run.args(["-k", "5", "120", "bash", "-euo", "pipefail", "-c", text, "bash", program]);
    let output = run.current_dir(prefix.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("65536 bytes") && said.contains("nuri_mpi.7"), "{said}");
}
