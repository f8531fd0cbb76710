# Builds a small crate on the mount, twice.
mkdir -p "$M/hello/src"
cd "$M/hello"
cat >Cargo.toml <<TOML
[package]
name = "hello"
version = "0.1.0"
edition = "2021"
[workspace]
TOML
echo 'fn main() { println!("hello"); }' >src/main.rs
cargo build -q --offline
[ "$(./target/debug/hello)" = hello ]
cargo build -q --offline
