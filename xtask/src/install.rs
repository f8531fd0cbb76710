//! Puts the program, the libraries for C programs and the manual pages where others find them.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::shell::{Build, build, cargo, root, run as call, script, target};

const BUILD: Duration = Duration::from_secs(1800);
const PROGRAMS: [&str; 2] = ["nuri", "nuri-lab"];
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What to install.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parts {
    All,
    /// What C programs need.
    Libraries,
}

/// Builds and installs under `prefix`.
pub(crate) fn run(prefix: &Path, parts: Parts) -> Result<(), String> {
    // Scripts run in the root of the workspace.
    let prefix = &std::path::absolute(prefix).map_err(|e| e.to_string())?;
    let built = target().join("release");
    if parts == Parts::All {
        build(Build::Release)?;
        for program in PROGRAMS {
            crate::release::check(&built.join(program))?;
            put_program(&built.join(program), prefix, program)?;
        }
        // What mount(8) runs for `-t fuse.nuri`; it looks in /sbin only.
        link("../bin/nuri", &prefix.join("sbin/mount.fuse.nuri"))?;
    }
    call(&mut cargo(&["build", "--release", "-q", "-p", "nuri-ipc-c"]), BUILD)?;
    libraries(&built, prefix)?;
    preload(prefix)
}

/// The program without what only a debugger reads, which lies in a file of its own: `gdb` and
/// backtraces find it by the link.
fn put_program(built: &Path, prefix: &Path, name: &str) -> Result<(), String> {
    let symbols = prefix.join("lib/debug").join(format!("{name}.debug"));
    let installed = prefix.join("bin").join(name);
    make_room(&symbols)?;
    make_room(&installed)?;
    let (from, to, aside) = (built.display(), installed.display(), symbols.display());
    let text = format!(
        "objcopy --only-keep-debug '{from}' '{aside}'
         objcopy --strip-debug --add-gnu-debuglink='{aside}' '{from}' '{to}.new'
         mv '{to}.new' '{to}'"
    );
    script(&text, BUILD)?;
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len()) >> 20;
    println!("{to}: {} MiB, symbols beside: {} MiB in {aside}", size(&installed), size(&symbols));
    Ok(())
}

/// The library that stands before the C library of unchanged programs.
fn preload(prefix: &Path) -> Result<(), String> {
    let (lib, man) = (prefix.join("lib"), prefix.join("share/man/man7"));
    std::fs::create_dir_all(&lib).map_err(|e| format!("{}: {e}", lib.display()))?;
    let mut build = std::process::Command::new(root().join("scripts/preload-library"));
    call(build.arg(lib.join("libnuri_preload.so")), BUILD)?;
    put(&root().join("crates/nuri-fuse/man/nuri_preload.7"), &man.join("nuri_preload.7"))
}

fn libraries(built: &Path, prefix: &Path) -> Result<(), String> {
    let ipc = root().join("crates/nuri-ipc");
    let lib = prefix.join("lib");
    let shared = format!("libnuri_ipc.so.{VERSION}");
    put(&built.join("libnuri_ipc_c.so"), &lib.join(&shared))?;
    put(&built.join("libnuri_ipc_c.a"), &lib.join("libnuri_ipc.a"))?;
    put(&ipc.join("include/nuri_ipc.h"), &prefix.join("include/nuri_ipc.h"))?;
    for page in ["nuri_ipc.7", "nuri_mpi.7"] {
        put(&ipc.join("man").join(page), &prefix.join("share/man/man7").join(page))?;
    }
    for name in ["libnuri_ipc.so.0", "libnuri_ipc.so"] {
        link(&shared, &lib.join(name))?;
    }
    write(&lib.join("pkgconfig/nuri-ipc.pc"), &description(prefix))
}

fn link(to: &str, at: &Path) -> Result<(), String> {
    make_room(at)?;
    symlink(to, at).map_err(|e| format!("{}: {e}", at.display()))
}

/// What pkg-config reads.
fn description(prefix: &Path) -> String {
    format!(
        "prefix={}\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\n\
         Name: nuri-ipc\n\
         Description: Messages between processes of one machine through shared memory\n\
         Version: {VERSION}\n\
         Libs: -L${{libdir}} -lnuri_ipc\n\
         Libs.private: -lpthread -lm -ldl\n\
         Cflags: -I${{includedir}}\n",
        prefix.display()
    )
}

/// Replaces the file, so that programs that run keep the old one.
fn put(from: &Path, to: &Path) -> Result<(), String> {
    make_room(to)?;
    std::fs::copy(from, to).map(|_| ()).map_err(|e| format!("{}: {e}", from.display()))
}

fn write(to: &Path, text: &str) -> Result<(), String> {
    make_room(to)?;
    std::fs::write(to, text).map_err(|e| format!("{}: {e}", to.display()))
}

fn make_room(at: &Path) -> Result<(), String> {
    if let Some(dir) = at.parent() {
        std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let _ = std::fs::remove_file(at);
    Ok(())
}
