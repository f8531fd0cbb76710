//! One thing that CI runs: a process, with what it needs of the machine and how it must end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::shell::{BUILT, root};

/// What a job takes of the machine while it runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Load {
    /// It mostly waits: for disks, for other processes, for leases.
    Waits,
    /// It waits and computes by turns: real programs on a mount.
    Works,
    /// It keeps one processor busy.
    Computes,
    /// It compares times, and bears one job beside it.
    Compares,
    /// It measures time, tries again where the machine was slow, and bears one more of its kind.
    Measures,
    /// Nothing may run beside it.
    Alone,
}

/// Shares of one processor.
pub(crate) const PROCESSOR: u32 = 8;

impl Load {
    /// It compares or measures times.
    pub(crate) fn is_quiet(self) -> bool {
        matches!(self, Load::Compares | Load::Measures | Load::Alone)
    }

    /// Shares of the budget of all processors.
    pub(crate) fn shares(self, budget: u32) -> u32 {
        match self {
            Load::Waits => 2,
            Load::Works => 4,
            // It waits for the disk now and then, and for its processor beside the others.
            Load::Computes => 6,
            // All but what is kept for a job that computes.
            Load::Compares => budget.saturating_sub(Load::Computes.shares(budget)).max(1),
            Load::Measures => budget.div_ceil(2),
            Load::Alone => budget,
        }
        .min(budget)
    }
}

/// How a job must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    Success,
    /// A rule is broken in it: a test must notice.
    Failure,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) suite: &'static str,
    pub(crate) name: String,
    /// Program and arguments.
    pub(crate) words: Vec<String>,
    pub(crate) envs: Vec<(String, String)>,
    pub(crate) dir: PathBuf,
    pub(crate) load: Load,
    pub(crate) limit: Duration,
    pub(crate) expected: Expected,
    /// What a person types to run it alone.
    pub(crate) again: String,
}

/// The program that runs, also after cargo put another one in its place.
fn own() -> String {
    format!("/proc/{}/exe", std::process::id())
}

impl Job {
    pub(crate) fn new(suite: &'static str, name: impl Into<String>, words: &[&str]) -> Job {
        Job {
            suite,
            name: name.into(),
            words: words.iter().map(ToString::to_string).collect(),
            envs: Vec::new(),
            dir: root(),
            load: Load::Computes,
            limit: Duration::from_secs(600),
            expected: Expected::Success,
            again: words.join(" "),
        }
    }

    /// `cargo xtask ...`, by the program that runs.
    pub(crate) fn xtask(suite: &'static str, name: impl Into<String>, words: &[&str]) -> Job {
        let own = own();
        let mut job = Job::new(suite, name, &[&[own.as_str()], words].concat());
        job.again = format!("cargo xtask {}", words.join(" "));
        job.env(BUILT, "1")
    }

    pub(crate) fn load(self, load: Load) -> Job {
        Job { load, ..self }
    }

    pub(crate) fn limit(self, seconds: u64) -> Job {
        Job { limit: Duration::from_secs(seconds), ..self }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Job {
        self.envs.push((name.into(), value.into()));
        self
    }

    pub(crate) fn title(&self) -> String {
        format!("{}: {}", self.suite, self.name)
    }

    /// Where its output goes, below the directory of all logs.
    pub(crate) fn log(&self, logs: &Path) -> PathBuf {
        let plain = |text: &str| {
            let keep = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
            text.chars().map(keep).collect::<String>()
        };
        logs.join(plain(self.suite)).join(format!("{}.log", plain(&self.name)))
    }

    /// The job under a guard, which ends it in time, and all that it started with it.
    pub(crate) fn guarded(&self) -> Command {
        let mut command = Command::new(own());
        command.args(["guard", "--limit", &self.limit.as_secs().to_string()]);
        if self.expected == Expected::Failure {
            // What a failed test leaves behind is no second failure.
            command.arg("--lenient");
        }
        command.arg("--").args(&self.words).current_dir(&self.dir);
        command.envs(self.envs.iter().map(|(name, value)| (name, value)));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_have_plain_names() {
        let job = Job::new("real programs", "fio --verify", &["true"]);
        assert_eq!(job.log(Path::new("l")), Path::new("l/real-programs/fio---verify.log"));
    }

    #[test]
    fn one_alone_takes_the_whole_budget() {
        assert_eq!(Load::Alone.shares(12), 12);
        assert_eq!((Load::Measures.shares(12), Load::Measures.shares(1)), (6, 1));
        assert_eq!(Load::Computes.shares(PROCESSOR / 2), PROCESSOR / 2);
        assert_eq!(Load::Compares.shares(PROCESSOR / 2), 1);
    }
}
