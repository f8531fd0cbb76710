//! Running programs with a time limit.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

/// Which build of Nuri's programs is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Build {
    /// The one that tests run: debug assertions, rules that can be broken.
    Tests,
    /// What users install.
    Release,
}

/// Set for jobs of CI, which has built everything before.
pub(crate) const BUILT: &str = "NURI_XTASK_BUILT";

/// Builds Nuri's programs; returns where `nuri` is. The laboratory is beside it.
pub(crate) fn build(which: Build) -> Result<PathBuf, String> {
    let (profile, dir) = match which {
        Build::Tests => ("dev", "debug"),
        Build::Release => ("release", "release"),
    };
    if which == Build::Release || std::env::var_os(BUILT).is_none() {
        let packages: &[&str] = match which {
            // As for the tests: another choice of packages is another choice of features.
            Build::Tests => &["--workspace", "--bins"],
            Build::Release => &["-p", "nuri", "-p", "nuri-lab"],
        };
        let mut build = cargo(&["build", "-q", "--profile", profile]);
        run(build.args(packages), Duration::from_secs(1800))?;
    }
    Ok(target().join(dir).join("nuri"))
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
