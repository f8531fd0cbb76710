//! Running programs with a time limit.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let own = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    own.parent().map(PathBuf::from).unwrap_or(own)
}

/// Runs a program in the root, its output shown. Fails on its failure or after `limit`.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<(), String> {
    let shown = show(command);
    let mut child = command
        .current_dir(root())
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| format!("cannot run {shown}: {e}"))?;
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
