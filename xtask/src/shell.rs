//! Running programs with a time limit.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// So much of what programs under test said is shown where a test fails.
const LAST_LINES: usize = 100;

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map(PathBuf::from).unwrap_or(own)
}

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    let given = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    root().join(given.unwrap_or_else(|| PathBuf::from("target")))
}

/// Runs a program in the root, its output shown. Fails on its failure or after `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<(), String> {
    let shown = show(command);
    let mut child = command
        .current_dir(root())
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| format!("cannot run {shown}: {e}"))?;
    wait(&mut child, &shown, limit)
}

/// Builds and runs tests. The error says which failed, and with what words. What the programs
/// under test say is shown only then: much of it tells of faults that the tests made.
pub(crate) fn run_tests(command: &mut Command, limit: Duration) -> Result<(), String> {
    run(&mut build_of(command), limit)?;
    let shown = show(command);
    let mut child = command
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot run {shown}: {e}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let failures = std::thread::spawn(move || out.map(pass_on).unwrap_or_default());
    let words = std::thread::spawn(move || err.map(last_lines).unwrap_or_default());
    let outcome = wait(&mut child, &shown, limit);
    // What the tests started may hold the pipes open: their words were read long before.
    let end = Instant::now() + Duration::from_secs(5);
    let read = |reader: JoinHandle<Vec<String>>| {
        while !reader.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        if reader.is_finished() { reader.join().unwrap_or_default() } else { vec![] }
    };
    let (failures, words) = (read(failures), read(words));
    outcome.map_err(|text| {
        eprintln!("the last words of the programs under test:\n{}\n", words.join("\n"));
        format!("{text}\n{}", failures.join("\n"))
    })
}

/// `cargo test ...` without running anything.
fn build_of(test: &Command) -> Command {
    let mut build = Command::new(test.get_program());
    for (name, value) in test.get_envs() {
        build.env(name, value.unwrap_or_default());
    }
    let (mut args, test_args) = (test.get_args(), test.get_args().skip_while(|arg| *arg != "--"));
    build.args(args.next()).arg("--no-run").args(args.take_while(|arg| *arg != "--"));
    build.args(test_args);
    build
}

fn last_lines(err: impl Read) -> Vec<String> {
    let mut last = VecDeque::new();
    for line in BufReader::new(err).split(b'\n').map_while(Result::ok) {
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(String::from_utf8_lossy(&line).into_owned());
    }
    last.into()
}

/// Shows what is read; returns the lines that tell of failures, with the one after a panic's.
fn pass_on(out: impl Read) -> Vec<String> {
    let (mut telling, mut goes_on) = (Vec::new(), false);
    // Whatever bytes a test prints: a pipe that nobody reads would fail it.
    for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        println!("{line}");
        let is_panic = line.contains("panicked at");
        if is_panic || goes_on || line.ends_with("... FAILED") {
            telling.push(line);
        }
        goes_on = is_panic;
    }
    telling
}

fn wait(child: &mut Child, shown: &str, limit: Duration) -> Result<(), String> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("{shown}: {status}")),
            Ok(None) if start.elapsed() > limit => {
                let _ = child.kill();
                return Err(format!("{shown}: still running after {} s", limit.as_secs()));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(50)),
            Err(e) => return Err(format!("{shown}: {e}")),
        }
    }
}

fn show(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Every n-th; which ones changes by the day, so that all have their turn.
pub(crate) fn todays_share<T>(all: &[T], every: usize) -> impl Iterator<Item = &T> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let first = (since.as_secs() / 86_400) as usize % every.max(1);
    all.iter().skip(first).step_by(every.max(1))
}

/// `cargo` with arguments.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(args);
    command
}

/// Runs a shell script, stopping at its first error; returns what it printed.
pub(crate) fn script(text: &str, limit: Duration) -> Result<String, String> {
    let seconds = limit.as_secs().to_string();
    let out = Command::new("timeout")
        .args(["-k", "5", &seconds, "bash", "-euo", "pipefail", "-c", text])
        .current_dir(root())
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot run bash: {e}"))?;
    let (stdout, stderr) =
        (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if out.status.success() {
        Ok(stdout.into_owned())
    } else {
        Err(format!("{}\n{stdout}{stderr}", out.status))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn tests_are_built_before_they_are_run() {
        let test = super::cargo(&["test", "-p", "nuri", "--", "--test-threads=2"]);
        let words = super::show(&super::build_of(&test));
        assert_eq!(words, "cargo test --no-run -p nuri -- --test-threads=2");
        let words = super::last_lines(&b"1\n".repeat(300)[..]);
        assert_eq!(words.len(), super::LAST_LINES);
    }

    #[test]
    fn failures_are_told_with_their_words() {
        let out =
            b"\xff\ntest a ... ok\ntest b ... FAILED\nthread 'b' panicked at b.rs:1:2:\nno\nmore\n";
        let told = super::pass_on(&out[..]);
        assert_eq!(told, ["test b ... FAILED", "thread 'b' panicked at b.rs:1:2:", "no"]);
    }
}
