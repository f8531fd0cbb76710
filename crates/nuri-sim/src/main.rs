//! The simulator's command: `cargo sim [files|groups|leased|racing|logged|devices] [SEED]`, or
//! `--seeds N [FROM]`, `--seconds S`, `--minutes M`, `--hours H`; `cargo sim attacks` plays the
//! named attacks.
//!
//! The command plays seeds until one breaks a promise. Without a word it plays of each seed both
//! the whole system with files on one target each (`files`), and redundant groups (`groups`). The
//! other words:
//!
//! - `leased`: groups where clients hold leases, and no more is lost than they bear;
//! - `racing`: groups where several clients write one stripe at a time;
//! - `logged`: clients that journal what they do;
//! - `devices`: servers that give a volume to a client with several channels.
//!
//! A failure prints the seed and the commit: the same two play the same again.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nuri_sim::check::Wrong;
use nuri_sim::{devices, group, logged, world};

/// What is played: a word of the command line and the report of one seed.
type Kind = (&'static str, fn(u64) -> Result<String, Wrong>);

const FILES: Kind =
    ("files", |seed| world::run(seed, world::Scale::default()).map(|r| format!("{r:?}")));
const GROUPS: Kind = ("groups", |seed| group::run(seed).map(|r| format!("{r:?}")));
const LEASED: Kind = ("leased", |seed| group::run_leased(seed).map(|r| format!("{r:?}")));
const RACING: Kind = ("racing", |seed| group::run_racing(seed).map(|r| format!("{r:?}")));
const LOGGED: Kind = ("logged", |seed| logged::run(seed).map(|r| format!("{r:?}")));
const DEVICES: Kind = ("devices", |seed| devices::run(seed).map(|r| format!("{r:?}")));

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

fn play((kind, run): Kind, seed: u64, says: bool) -> bool {
    let outcome =
        std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|_| Err("panic, see above".into()));
    match outcome {
        Ok(report) => {
            if says {
                println!("{kind}: {report}");
            }
            true
        }
        Err(wrong) => {
            eprintln!("sim: {kind} seed {seed:#x} at commit {}: {wrong}", commit());
            eprintln!("play it again: cargo sim {kind} {seed:#x}");
            false
        }
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: cargo sim [files|groups|leased|racing|logged|devices] [SEED] | --seeds N [FROM] | \
         --seconds S | --minutes M | --hours H\n       cargo sim attacks"
    );
    ExitCode::from(2)
}

fn play_attacks() -> ExitCode {
    for (name, attack) in group::attacks::ATTACKS {
        if let Err(wrong) = attack() {
            eprintln!("sim: attack {name} at commit {}: {wrong}", commit());
            return ExitCode::FAILURE;
        }
    }
    println!("sim: {} attacks kept every promise", group::attacks::ATTACKS.len());
    ExitCode::SUCCESS
}

/// First seed, how many, and how long.
fn parse(words: &[&str], fresh: u64) -> Option<(u64, u64, Option<Duration>)> {
    let seconds = |s: u64| Some((fresh, u64::MAX, Some(Duration::from_secs(s))));
    match words {
        [] => Some((fresh, 1, None)),
        ["--seeds", n] => Some((0, number(n)?, None)),
        ["--seeds", n, from] => Some((number(from)?, number(n)?, None)),
        ["--seconds", s] => seconds(number(s)?),
        ["--minutes", m] => seconds(60 * number(m)?),
        ["--hours", h] => seconds(3600 * number(h)?),
        [seed] => Some((number(seed)?, 1, None)),
        _ => None,
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut words: Vec<&str> = args.iter().map(String::as_str).collect();
    if words == ["attacks"] {
        return play_attacks();
    }
    let kinds = [FILES, GROUPS, LEASED, RACING, LOGGED, DEVICES];
    let named = |w: &&str| kinds.into_iter().find(|(kind, _)| kind == w);
    let kinds = match words.first().and_then(named) {
        Some(kind) => {
            words.remove(0);
            vec![kind]
        }
        None => vec![FILES, GROUPS],
    };
    let start = Instant::now();
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
    let Some((from, count, long)) = parse(&words, fresh) else { return usage() };
    let mut played = 0;
    while played < count && long.is_none_or(|long| start.elapsed() < long) {
        let seed = from.wrapping_add(played);
        if !kinds.iter().all(|kind| play(*kind, seed, count == 1)) {
            return ExitCode::FAILURE;
        }
        played += 1;
    }
    println!("sim: {played} seeds from {from:#x} kept every promise ({:?})", start.elapsed());
    ExitCode::SUCCESS
}
