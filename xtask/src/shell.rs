//! Running programs with a time limit.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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

/// Runs tests as [`run`] does. The error says which failed, and with what words.
pub(crate) fn run_tests(command: &mut Command, limit: Duration) -> Result<(), String> {
    let shown = show(command);
    let mut child = command
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot run {shown}: {e}"))?;
    let out = child.stdout.take();
    let reader = std::thread::spawn(move || out.map(pass_on).unwrap_or_default());
    let outcome = wait(&mut child, &shown, limit);
    // What the tests started may hold the pipe open: their words were read long before.
    let end = Instant::now() + Duration::from_secs(5);
    while !reader.is_finished() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    let failures = if reader.is_finished() { reader.join().unwrap_or_default() } else { vec![] };
    outcome.map_err(|text| format!("{text}\n{}", failures.join("\n")))
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
    fn failures_are_told_with_their_words() {
        let out =
            b"\xff\ntest a ... ok\ntest b ... FAILED\nthread 'b' panicked at b.rs:1:2:\nno\nmore\n";
        let told = super::pass_on(&out[..]);
        assert_eq!(told, ["test b ... FAILED", "thread 'b' panicked at b.rs:1:2:", "no"]);
    }
}
