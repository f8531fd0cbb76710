//! Programs of others that run a workload in place of our processes (`--tool`). Their output
//! becomes the same records.

pub(crate) mod bonnie;
pub(crate) mod fio;
pub(crate) mod ior;
pub(crate) mod mdtest;
mod mpi;

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::rank_group::Control;
use crate::{LabError, Result, at};

/// Open MPI asks for these of root, and where ranks are more than processors; others ignore them.
const OPEN_MPI: [(&str, &str); 3] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
];
/// How often a wait looks whether the run is to end.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a program; returns what it printed. It ends with this process, however that ends.
fn run(program: &str, args: &[String], control: &Control) -> Result<String> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]).args(args);
    command.envs(OPEN_MPI).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(at("setpriv (of util-linux)"))?;
    let (out, err) = (drained(child.stdout.take()), drained(child.stderr.take()));
    let status = wait(&mut child, control, program);
    let [out, err] = [out, err].map(|text| text.join().unwrap_or_default());
    match status? {
        status if status.success() => Ok(out),
        // As setpriv ends where there is no such program.
        status if status.code() == Some(127) => Err(LabError(format!(
            "{program} is not installed: install it (apt install {program}), or leave --tool out"
        ))),
        status => {
            let why = err.lines().chain(out.lines()).find(|line| !line.trim().is_empty());
            Err(LabError(format!("{program} failed ({status}): {}", why.unwrap_or("no word"))))
        }
    }
}

/// Its output, whatever its length.
fn drained(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error tells enough.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child, control: &Control, program: &str) -> Result<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(at(program))? {
            return Ok(status);
        }
        let why = if control.stop.is_asked() {
            "interrupted".to_owned()
        } else if start.elapsed() > control.patience {
            let seconds = control.patience.as_secs();
            format!("{program} did not end in {seconds} s; see --patience")
        } else {
            std::thread::sleep(LOOK);
            continue;
        };
        let _ = child.kill();
        let _ = child.wait();
        return Err(LabError(why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::Stop;

    fn control(patience: u64) -> Control {
        let patience = Duration::from_secs(patience);
        Control {
            stop: Stop::default(),
            patience,
            network: None,
            served: Vec::new(),
            hosts: Default::default(),
        }
    }

    fn told(program: &str, script: &str, patience: u64) -> std::result::Result<String, String> {
        let args = ["-c".to_owned(), script.to_owned()];
        run(program, &args, &control(patience)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_program_tells_or_fails_with_its_own_words() {
        assert_eq!(told("sh", "echo fine", 5), Ok("fine\n".into()));
        let failed = told("sh", "echo; echo no space >&2; exit 3", 5).unwrap_err();
        assert!(failed.contains("sh failed") && failed.contains("no space"), "{failed}");
        let missing = told("no-such-tool", "", 5).unwrap_err();
        assert!(missing.contains("no-such-tool is not installed"), "{missing}");
        let hangs = told("sh", "sleep 20", 1).unwrap_err();
        assert!(hangs.contains("sh did not end in 1 s"), "{hangs}");
    }
}
