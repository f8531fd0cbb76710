//! Redundant files over slow links: `scripts/bench-link`, and the TCP stream that it compares with.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::shell::{Build, build, root, run as run_command};

const MIB: usize = 1 << 20;

/// Runs the script.
pub(crate) fn run(rounds: usize, dir: &Path) -> Result<(), String> {
    let nuri = build(Build::Release)?;
    std::fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut script = std::process::Command::new(root().join("scripts/bench-link"));
    script.arg(nuri).arg(own).arg(dir).arg(rounds.to_string());
    run_command(&mut script, Duration::from_secs(120 * rounds as u64))
}

/// Takes one stream to its end and says so.
pub(crate) fn sink(address: &str) -> Result<(), String> {
    let take = || -> std::io::Result<()> {
        let (mut stream, _) = TcpListener::bind(address)?.accept()?;
        let mut buf = vec![0; MIB];
        while stream.read(&mut buf)? > 0 {}
        stream.write_all(b".")
    };
    take().map_err(|e| e.to_string())
}

/// Sends so many MiB and prints the rate at which they arrived, MiB/s.
pub(crate) fn source(address: &str, mib: usize) -> Result<(), String> {
    let send = || -> std::io::Result<f64> {
        let mut stream = TcpStream::connect(address)?;
        let (buf, start) = (vec![7; MIB], Instant::now());
        for _ in 0..mib {
            stream.write_all(&buf)?;
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.read_exact(&mut [0])?;
        Ok(mib as f64 / start.elapsed().as_secs_f64())
    };
    println!("{}", send().map_err(|e| e.to_string())?);
    Ok(())
}
