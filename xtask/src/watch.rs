//! Nothing that a suite of CI starts hangs it, or outlives it.

use std::fs::read_to_string;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

/// So long may what a suite started take to end after it.
const LINGER: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// Makes what loses its parent a child of this process, so that it is found.
pub(crate) fn adopt() -> Result<(), String> {
    set_child_subreaper(Some(getpid())).map_err(|e| format!("cannot adopt processes: {e}"))
}

/// Runs a suite. Fails also where it does not end in time (what ran then is told), and where it
/// leaves processes behind; none of them is there afterwards.
pub(crate) fn run(suite: fn() -> Result<(), String>, limit: Duration) -> Result<(), String> {
    let (tell, told) = channel();
    std::thread::spawn(move || tell.send(suite()));
    let outcome = match told.recv_timeout(limit) {
        Ok(outcome) => outcome.and_then(|()| left_behind()),
        Err(RecvTimeoutError::Disconnected) => Err("it panicked".into()),
        Err(RecvTimeoutError::Timeout) => {
            let ran: Vec<_> = descendants().iter().map(Running::words).collect();
            Err(format!("no end after {limit:?}; there ran:\n{}", ran.join("\n")))
        }
    };
    end_all();
    outcome
}

/// An error where processes stay after a suite that ended.
fn left_behind() -> Result<(), String> {
    let end = Instant::now() + LINGER;
    loop {
        // The suite has waited for all its own children: these are adopted ones.
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
        fn hangs() -> Result<(), String> {
            crate::shell::script("sleep 61 & wait", 2 * LINGER).map(drop)
        }
        fn stays() -> Result<(), String> {
            crate::shell::script("setsid sleep 62 >/dev/null 2>&1 &", LINGER).map(drop)
        }
        adopt().unwrap();
        let words = run(hangs, Duration::from_millis(500)).unwrap_err();
        assert!(words.contains("no end after 500ms") && words.contains("sleep 61"), "{words}");
        assert!(descendants().is_empty());
        let words = run(stays, LINGER).unwrap_err();
        assert!(words.contains("left behind") && words.contains("sleep 62"), "{words}");
        assert!(descendants().is_empty());
        run(|| Ok(()), LINGER).unwrap();
    }
}
