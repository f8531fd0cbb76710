//! Nothing that a job of CI starts hangs it, or outlives it.

use std::fs::read_to_string;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

use crate::ci::words::PROCESSOR;

/// So long may what a job started take to end after it.
const LINGER: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// `cargo xtask guard`: runs a program, and ends it and all that it started when the time is over.
/// Fails where it fails, where it does not end in time (what ran then is told) and, unless
/// `lenient`, where it leaves processes behind; none of them is there afterwards.
pub(crate) fn guard(words: &[String], limit: Duration, lenient: bool) -> Result<(), String> {
    // What loses its parent becomes a child of this process, so that it is found.
    set_child_subreaper(Some(getpid())).map_err(|e| format!("cannot adopt processes: {e}"))?;
    let program = words.first().ok_or("no program was given")?;
    // Who runs this may ignore Ctrl-C, as a shell does for what it runs in the background. Tests
    // that send it would wait in vain.
    let child = Command::new("env").arg("--default-signal=INT").args(words).spawn();
    let mut child = child.map_err(|e| format!("cannot run {program}: {e}"))?;
    let outcome = wait_for(&mut child, limit).and_then(|status| {
        let left = if lenient { Ok(()) } else { left_behind() };
        if status.success() { left } else { Err(format!("{program}: {status}")) }
    });
    end_all();
    println!("{PROCESSOR} {:.2}", used());
    outcome
}

fn wait_for(child: &mut Child, limit: Duration) -> Result<ExitStatus, String> {
    let end = Instant::now() + limit;
    // A short program is not waited for longer than it takes.
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() > end => {
                let ran: Vec<_> = descendants().iter().map(Running::words).collect();
                return Err(format!("no end after {limit:?}; there ran:\n{}", ran.join("\n")));
            }
            Ok(None) => std::thread::sleep(pause),
            Err(e) => return Err(format!("cannot wait: {e}")),
        }
        pause = (2 * pause).min(POLL);
    }
}

/// Seconds of processors that all ended descendants used.
fn used() -> f64 {
    let stat = read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<u64> = after.split_whitespace().skip(13).take(2).flat_map(str::parse).collect();
    fields.iter().sum::<u64>() as f64 / clock_ticks_per_second() as f64
}

/// An error where processes stay after a job that ended.
fn left_behind() -> Result<(), String> {
    let end = Instant::now() + LINGER;
    loop {
        // The job has waited for all its own children: these are adopted ones.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let left = descendants();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            let left: Vec<_> = left.iter().map(Running::words).collect();
            return Err(format!("processes were left behind:\n{}", left.join("\n")));
        }
        std::thread::sleep(POLL);
    }
}

/// Kills all that this process or its descendants started.
fn end_all() {
    let end = Instant::now() + LINGER;
    loop {
        let left = descendants();
        if left.is_empty() || Instant::now() > end {
            return;
        }
        for Running { pid, .. } in left {
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        }
        std::thread::sleep(POLL);
    }
}

/// A process that is not yet dead.
struct Running {
    pid: i32,
    parent: i32,
    /// As in `/proc/PID/stat`: R, S, D, T.
    state: char,
}

impl Running {
    /// From `/proc/PID/stat`; `None` for the dead.
    fn parse(stat: &str) -> Option<Running> {
        let (pid, rest) = stat.split_once(' ')?;
        // The name in brackets may hold brackets and spaces itself.
        let mut fields = rest.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        (!"ZX".contains(state)).then_some(Running { pid: pid.parse().ok()?, parent, state })
    }

    fn words(&self) -> String {
        let read = |name| read_to_string(format!("/proc/{}/{name}", self.pid)).unwrap_or_default();
        let command: String = read("cmdline").replace('\0', " ").chars().take(200).collect();
        format!("  {} {} {} {command}", self.pid, self.state, read("wchan"))
    }
}

/// All processes below this one.
fn descendants() -> Vec<Running> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let stat = |entry: std::fs::DirEntry| read_to_string(entry.path().join("stat")).ok();
    let mut others: Vec<Running> =
        entries.flatten().filter_map(stat).filter_map(|text| Running::parse(&text)).collect();
    let mut family = vec![getpid().as_raw_nonzero().get()];
    let mut found = Vec::new();
    while let Some(parent) = family.pop() {
        let (children, rest) = others.into_iter().partition(|p| p.parent == parent);
        others = rest;
        family.extend(children.iter().map(|p: &Running| p.pid));
        found.extend(children);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_line_is_read() {
        let running = Running::parse("71 (a) b (c) S 70 71 71 0 -1").unwrap();
        assert_eq!((running.pid, running.parent, running.state), (71, 70, 'S'));
        assert!(Running::parse("71 (sh) Z 70 71").is_none());
        assert!(Running::parse("71").is_none());
    }

    /// One test: each ends all that was started here.
    #[test]
    fn what_hangs_or_stays_is_ended_and_told() {
        let sh = |text: &str| ["sh", "-c", text].map(String::from);
        let soon = Duration::from_millis(500);
        let words = guard(&sh("sleep 61 & wait"), soon, false).unwrap_err();
        assert!(words.contains("no end after 500ms") && words.contains("sleep 61"), "{words}");
        assert!(descendants().is_empty());
        let stays = sh("setsid sleep 62 >/dev/null 2>&1 &");
        let words = guard(&stays, LINGER, false).unwrap_err();
        assert!(words.contains("left behind") && words.contains("sleep 62"), "{words}");
        assert!(descendants().is_empty());
        guard(&stays, LINGER, true).unwrap();
        assert!(descendants().is_empty());
        guard(&sh("true"), LINGER, false).unwrap();
        assert!(guard(&sh("exit 3"), LINGER, false).unwrap_err().contains("exit status: 3"));
    }
}
