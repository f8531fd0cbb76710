//! Guards a run: a run is two processes, so that nothing stays behind however it ends.
//!
//! The user starts the outer process. It only waits, and holds a pipe to the inner process, which
//! does the work. Where the outer process ends early (Ctrl-C, a kill), the pipe closes. Then the
//! inner process stops, keeps its records and removes its files. Where the inner process is killed,
//! the outer process removes the files, and sets back what the run tried of a mount's settings.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use crate::stop::Stop;
use crate::{LabError, Result, at, testbed, tune, work};

const INNER: &str = "NURI_LAB_INNER";

/// Runs `work` in the inner process, and waits for it in the outer one. `dirs` are those in which
/// it makes working directories.
pub fn guarded(dirs: &[PathBuf], work: impl FnOnce(Stop) -> Result<ExitCode>) -> Result<ExitCode> {
    if std::env::var_os(INNER).is_none() {
        return outer(dirs);
    }
    let stop = Stop::default();
    let asked = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        asked.ask();
    });
    work(stop)
}

fn outer(dirs: &[PathBuf]) -> Result<ExitCode> {
    let own = std::env::current_exe().map_err(at("this program"))?;
    let mut command = Command::new(own);
    command.args(std::env::args_os().skip(1)).env(INNER, "1").stdin(Stdio::piped());
    // Ctrl-C goes to the whole group of the outer process.
    command.process_group(0);
    let mut inner = command.spawn().map_err(at("cannot start a process"))?;
    // Waiting would close the pipe first.
    let pipe = inner.stdin.take();
    let status = inner.wait().map_err(at("cannot wait for a process"))?;
    drop(pipe);
    if let Some(signal) = status.signal() {
        work::sweep(dirs, inner.id());
        tune::sweep(dirs, inner.id());
        testbed::sweep(inner.id())?;
        return Err(LabError(format!(
            "the run was killed by signal {signal}; its working directories were removed"
        )));
    }
    Ok(code(status))
}

fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}
