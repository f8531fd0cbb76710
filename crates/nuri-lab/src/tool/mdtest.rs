//! mdtest's phases by mdtest: a run for each, read from its summary.

use std::path::{Path, PathBuf};

use super::mpi::run_ranks;
use crate::job::{Moved, Order};
use crate::machine::Usage;
use crate::rank_group::{Control, Hands, Timed};
use crate::workload::mdtest::Mdtest;
use crate::workload::{Entry, Phase};
use crate::{LabError, Result};

pub(crate) const NAME: &str = "mdtest";

pub(crate) struct Program {
    mdtest: Mdtest,
    dir: PathBuf,
    control: Control,
}

impl Program {
    pub(crate) fn new(mdtest: Mdtest, dir: &Path, control: &Control) -> Program {
        Program { mdtest, dir: dir.to_owned(), control: control.clone() }
    }

    fn args(&self, phase: Phase) -> Result<Vec<String>> {
        let (only, _) = named(phase)?;
        let (mdtest, (entry, switch)) = (&self.mdtest, only);
        let mut args = vec![if entry == Entry::Dir { "-D" } else { "-F" }.to_owned()];
        args.push(switch.into());
        if mdtest.has_own_dirs() {
            args.push("-u".into());
        }
        let numbers = [
            ("-n", mdtest.each()),
            ("-N", mdtest.stride as u64),
            ("-w", mdtest.write_bytes()),
            ("-e", mdtest.read_bytes()),
        ];
        let given = numbers.iter().filter(|(_, number)| *number > 0);
        args.extend(given.flat_map(|(name, number)| [(*name).to_owned(), number.to_string()]));
        args.extend(["-d".into(), mdtest.tree(&self.dir).display().to_string()]);
        Ok(args)
    }
}

impl Hands for Program {
    fn run(&mut self, order: Order) -> Result<Option<Timed>> {
        let network = self.control.network.as_ref();
        let before = Usage::now(network);
        let args = self.args(order.phase)?;
        let printed = run_ranks(NAME, self.mdtest.np, args, &self.control)?;
        let used = Usage::now(network).since(before);
        let operations = self.mdtest.items();
        let each = match order.phase {
            Phase::Create(Entry::File) => self.mdtest.write_bytes(),
            Phase::Fetch => self.mdtest.read_bytes(),
            _ => 0,
        };
        let moved = Moved { bytes: operations * each, operations };
        let seconds = operations as f64 / rate(&printed, order.phase)?;
        Ok(Some(Timed { seconds, straggling: None, moved, used, memory: None }))
    }
}

/// Of what kind the entries are, the switch for the phase alone, and its name in the summary.
fn named(phase: Phase) -> Result<((Entry, &'static str), &'static str)> {
    Ok(match phase {
        Phase::Create(Entry::Dir) => ((Entry::Dir, "-C"), "Directory creation"),
        Phase::Stat(Entry::Dir) => ((Entry::Dir, "-T"), "Directory stat"),
        Phase::Remove(Entry::Dir) => ((Entry::Dir, "-r"), "Directory removal"),
        Phase::Create(Entry::File) => ((Entry::File, "-C"), "File creation"),
        Phase::Stat(Entry::File) => ((Entry::File, "-T"), "File stat"),
        Phase::Fetch => ((Entry::File, "-E"), "File read"),
        Phase::Remove(Entry::File) => ((Entry::File, "-r"), "File removal"),
        _ => return Err(LabError::new("mdtest has no such phase")),
    })
}

/// Operations a second: the first figure of the phase's line. One repetition has one figure.
fn rate(printed: &str, phase: Phase) -> Result<f64> {
    let (_, name) = named(phase)?;
    let lines = printed.lines().skip_while(|line| !line.contains("SUMMARY"));
    let figure = |line: &str| {
        let rest = line.trim().strip_prefix(name)?.trim_start_matches([' ', ':']);
        rest.split_whitespace().next()?.parse::<f64>().ok().filter(|rate| *rate > 0.0)
    };
    let found = lines.filter_map(figure).next();
    found.ok_or_else(|| LabError(format!("mdtest printed no figure of \"{name}\" in its SUMMARY")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::Stop;
    use crate::workload::Workload;
    use crate::workload::tests::parse as workload;

    #[test]
    fn each_phase_is_a_run() {
        let line = "mdtest --tool mdtest --np 2 -n 10 -u -F -w 100 -e 50 -N 1";
        let Workload::Mdtest(mdtest) = workload(line).unwrap() else { panic!("no mdtest") };
        let control = Control {
            served: Vec::new(),
            stop: Stop::default(),
            patience: Default::default(),
            network: None,
            hosts: Default::default(),
        };
        let program = Program::new(mdtest, Path::new("/a"), &control);
        let of = |phase| program.args(phase).unwrap().join(" ");
        let same = "-u -n 10 -N 1 -w 100 -e 50 -d /a/tree";
        assert_eq!(of(Phase::Create(Entry::File)), format!("-F -C {same}"));
        assert_eq!(of(Phase::Fetch), format!("-F -E {same}"));
        assert_eq!(of(Phase::Remove(Entry::Dir)), format!("-D -r {same}"));
    }

    #[test]
    fn its_summary_is_read() {
        // As 1.9 and as 4.0 print it.
        let old = "File creation : 1\n\nSUMMARY: (of 1 iterations)\n   Operation  Max  Min\n   \
                   Directory stat    :    1509.324   1509.324   1509.324   0.000\n   \
                   File creation     :     845.634    845.634    845.634   0.000\n";
        assert_eq!(rate(old, Phase::Create(Entry::File)).unwrap(), 845.634);
        assert_eq!(rate(old, Phase::Stat(Entry::Dir)).unwrap(), 1509.324);
        let new = "SUMMARY rate: (of 1 iterations)\n   Operation   Max   Min   Mean   Std Dev\n   \
                   File removal               12345.678      12345.678      12345.678   0.000\n   \
                   File read                      0.000          0.000          0.000   0.000\n";
        assert_eq!(rate(new, Phase::Remove(Entry::File)).unwrap(), 12345.678);
        let error = rate(new, Phase::Fetch).unwrap_err().to_string();
        assert!(error.contains("\"File read\""), "{error}");
    }
}
