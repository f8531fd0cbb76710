//! The machines that ranks run on: this one, or others where a command starts the ranks.

use std::process::Command;

use clap::Args;

use crate::{LabError, Result, at};

/// Stands for a machine's name.
const NODE: &str = "{node}";

#[derive(Args, Clone, Debug, Default)]
pub struct Hosts {
    /// Run the processes on these machines in turn (NAME,NAME,... or repeated; default: on this
    /// one). They have the directories and this program at the same paths
    #[arg(long = "node", value_name = "NAME", value_delimiter = ',')]
    names: Vec<String>,
    /// Command that runs another command on a machine; {node} stands for the machine's name
    #[arg(
        long,
        value_name = "COMMAND",
        requires = "names",
        default_value = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 {node}"
    )]
    launch: String,
}

impl Hosts {
    /// Refuses what is no list of machines.
    pub(crate) fn check(&self) -> Result<()> {
        let names = &self.names;
        if let Some(odd) = names.iter().find(|name| name.is_empty() || name.starts_with('-')) {
            return Err(LabError(format!("--node {odd:?}: that is no name of a machine")));
        }
        if let Some(i) = (1..names.len()).find(|i| names[..*i].contains(&names[*i])) {
            return Err(LabError(format!("--node {} is given twice", names[i])));
        }
        if !names.is_empty() && !self.launch.contains(NODE) {
            let launch = &self.launch;
            return Err(LabError(format!("--launch {launch}: {NODE} must say which machine")));
        }
        Ok(())
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether ranks run on other machines than this.
    pub(crate) fn are_others(&self) -> bool {
        !self.names.is_empty()
    }

    /// The number of a rank's machine. The first ranks, as many as there are machines, are each
    /// the first of theirs.
    pub(crate) fn of(&self, rank: usize) -> usize {
        rank % self.names.len().max(1)
    }

    /// For messages: a rank and where it runs.
    pub(crate) fn place(&self, rank: usize) -> String {
        match self.names.get(self.of(rank)) {
            Some(name) => format!("rank {rank} on {name}"),
            None => format!("rank {rank}"),
        }
    }

    /// Starts a rank; on this machine behind the words that enter one of a testbed.
    pub(crate) fn command(&self, rank: usize, testbed: Option<Vec<String>>) -> Result<Command> {
        let own = std::env::current_exe().map_err(at("this program"))?;
        let node = self.names.get(self.of(rank));
        let words = node.into_iter().flat_map(|name| {
            self.launch.split_whitespace().map(move |word| word.replace(NODE, name))
        });
        let words = words.chain(testbed.unwrap_or_default());
        let mut words = words.map(Into::into).chain([own.into_os_string()]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg("rank");
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &[&str], launch: &str) -> Hosts {
        let names = names.iter().map(ToString::to_string).collect();
        Hosts { names, launch: launch.into() }
    }

    #[test]
    fn machines_take_turns() {
        let two = hosts(&["a", "b"], "run --at={node} --");
        two.check().unwrap();
        let second = two.command(3, None).unwrap();
        let words: Vec<_> = second.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(second.get_program(), "run");
        assert_eq!((&*words[0], &*words[1]), ("--at=b", "--"));
        assert_eq!(words[3..], ["rank"]);
        assert_eq!(
            (two.place(2), Hosts::default().place(2)),
            ("rank 2 on a".into(), "rank 2".into())
        );
        assert_eq!(Hosts::default().command(5, None).unwrap().get_args().count(), 1);
        let entered = Hosts::default().command(0, Some(vec!["nsenter".into(), "x".into()]));
        let entered = entered.unwrap();
        assert_eq!(
            (entered.get_program().to_str(), entered.get_args().count()),
            (Some("nsenter"), 3)
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for (names, launch, word) in [
            (["a", "a"], "ssh {node}", "twice"),
            (["a", ""], "ssh {node}", "no name"),
            (["a", "-oProxyCommand=x"], "ssh {node}", "no name"),
            (["a", "b"], "ssh", "{node} must say"),
        ] {
            let error = hosts(&names, launch).check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
