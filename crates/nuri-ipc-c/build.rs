//! Names the shared library as it is installed.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnuri_ipc.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
