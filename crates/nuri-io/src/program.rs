//! What Nuri's programs have in common. They are installed together and find each other. They end
//! quietly where nobody reads their output. Programs that run in the background end where a thread
//! panics.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program of the process that opens it, whatever became of its name.
const RUNNING: &str = "/proc/self/exe";

thread_local! {
    /// Somebody on this thread's stack takes panics for an answer.
    static EXPECTS_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// A program that is installed beside the one that runs, else one on the `PATH`.
pub fn find(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(|own| own.parent()).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = beside.into_iter().chain(std::env::split_paths(&path));
    dirs.map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// A command that runs this same program once more. It does so too where its file was replaced or
/// removed since this process was started, as by an upgrade: another version would not understand
/// all that this one tells it.
pub fn again() -> std::io::Result<Command> {
    let own = std::env::current_exe()?;
    let file = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    let is_there = file(&own).ok() == file(Path::new(RUNNING)).ok();
    Ok(Command::new(if is_there { own } else { RUNNING.into() }))
}

/// Makes a closed pipe an ordinary end, as in `nuri status | head -1`. Rust programs ignore
/// SIGPIPE, and `println!` would panic instead.
pub fn end_when_nobody_reads() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        if said.starts_with("failed printing to stdout") && said.contains("Broken pipe") {
            std::process::exit(0);
        }
        tell(panic);
    }));
}

/// Makes a panic of any thread the end of the process, as kill -9 would be: what the thread left
/// half done in memory is forgotten, whoever waits for it is told, and a supervisor starts anew.
/// Without it only the thread ends, and the others go on with what it left.
pub fn end_at_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        if !EXPECTS_PANICS.get() {
            std::process::abort();
        }
    }));
}

/// Runs what panics where its input is damaged, and says whether it did. It must leave nothing half
/// done that others see.
pub fn catch_panics<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    let before = EXPECTS_PANICS.replace(true);
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(work));
    EXPECTS_PANICS.set(before);
    outcome.map_err(|_| Panicked)
}

/// A panic that was caught; what it said was printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Panicked;

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::time::Duration;

    use super::*;

    const CHILD: &str = "NURI_TEST_PANICS";

    /// Panics in a thread of its own, in a process that was started for that.
    #[test]
    fn child_that_panics() {
        let Some(caught) = std::env::var_os(CHILD) else { return };
        end_at_panics();
        let panics = || panic!("of a test");
        match caught == "caught" {
            true => assert_eq!(catch_panics(panics), Err(Panicked)),
            false => {
                let _ = std::thread::spawn(panics).join();
                std::thread::sleep(Duration::from_secs(20));
            }
        }
    }

    #[test]
    fn a_panic_that_nobody_expects_ends_the_process() {
        let run = |how: &str| {
            let own = std::env::current_exe().unwrap();
            let name = "program::tests::child_that_panics";
            let mut child = Command::new(own);
            child.args(["--exact", name]).env(CHILD, how).output().unwrap().status
        };
        assert_eq!(run("not").signal(), Some(libc::SIGABRT));
        assert!(run("caught").success());
    }

    #[test]
    fn programs_are_found_beside_this_one_and_on_the_path() {
        let own = std::env::current_exe().unwrap();
        let name = own.file_name().unwrap().to_str().unwrap();
        assert_eq!(find(name).unwrap(), own);
        assert!(find("sh").is_some());
        assert!(find("no-such-program").is_none());
    }
}
