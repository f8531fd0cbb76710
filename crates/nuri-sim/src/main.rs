//! `cargo sim [SEED]`, `cargo sim --seeds N [FROM]`, `cargo sim --minutes M`.
//!
//! Plays seeds until one breaks a promise. A failure prints the seed and the commit: the same two
//! play the same again.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nuri_sim::world::{Scale, run};

fn commit() -> String {
    if let Ok(commit) = std::env::var("NURI_COMMIT") {
        return commit;
    }
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    output.map_or("unknown".into(), |o| String::from_utf8_lossy(&o.stdout).trim().to_string())
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn play(seed: u64) -> bool {
    let outcome = std::panic::catch_unwind(|| run(seed, Scale::default()))
        .unwrap_or_else(|_| Err("panic, see above".into()));
    match outcome {
        Ok(_) => true,
        Err(wrong) => {
            eprintln!("sim: seed {seed:#x} at commit {}: {wrong}", commit());
            eprintln!("play it again: cargo sim {seed:#x}");
            false
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: cargo sim [SEED] | --seeds N [FROM] | --minutes M");
    ExitCode::from(2)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let start = Instant::now();
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
    let (from, count, until) = match words[..] {
        [] => (fresh, 1, None),
        ["--seeds", n] => match number(n) {
            Some(n) => (0, n, None),
            None => return usage(),
        },
        ["--seeds", n, from] => match (number(n), number(from)) {
            (Some(n), Some(from)) => (from, n, None),
            _ => return usage(),
        },
        ["--minutes", m] => match number(m) {
            Some(m) => (fresh, u64::MAX, Some(start + Duration::from_secs(60 * m))),
            None => return usage(),
        },
        [seed] => match number(seed) {
            Some(seed) => (seed, 1, None),
            None => return usage(),
        },
        _ => return usage(),
    };
    let mut played = 0;
    while played < count && until.is_none_or(|end| Instant::now() < end) {
        let seed = from.wrapping_add(played);
        if !play(seed) {
            return ExitCode::FAILURE;
        }
        if count == 1
            && let Ok(report) = run(seed, Scale::default())
        {
            println!("{report:?}");
        }
        played += 1;
    }
    println!("sim: {played} seeds from {from:#x} kept every promise ({:?})", start.elapsed());
    ExitCode::SUCCESS
}
