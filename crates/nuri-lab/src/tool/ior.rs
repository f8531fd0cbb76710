//! IOR's transfers by IOR: a run for each phase, read from its table of results.

use std::path::{Path, PathBuf};

use super::mpi::run_ranks;
use crate::job::{Moved, Order};
use crate::machine::Usage;
use crate::rank_group::{Control, Hands, Timed};
use crate::workload::Phase;
use crate::workload::ior::Ior;
use crate::{LabError, Result};

pub(crate) const NAME: &str = "ior";
const MIB: f64 = (1 << 20) as f64;

pub(crate) struct Program {
    ior: Ior,
    dir: PathBuf,
    control: Control,
}

impl Program {
    pub(crate) fn new(ior: Ior, dir: &Path, control: &Control) -> Program {
        Program { ior, dir: dir.to_owned(), control: control.clone() }
    }

    fn args(&self, phase: Phase) -> Vec<String> {
        let ior = &self.ior;
        let reads = phase == Phase::Read;
        // What it wrote is read by a run of its own, and removed by us.
        let mut args = vec!["-a".into(), "POSIX".into(), "-k".into()];
        args.push(if reads { "-r" } else { "-w" }.into());
        args.extend(["-t".into(), ior.transfer.to_string()]);
        args.extend(["-b".into(), ior.block().to_string()]);
        args.extend(["-s".into(), ior.segments().to_string()]);
        let switches = [
            (ior.has_own_files(), "-F"),
            (ior.reorder && reads, "-C"),
            (ior.sync && !reads, "-e"),
            (ior.random, "-z"),
        ];
        args.extend(switches.iter().filter(|(is_on, _)| *is_on).map(|(_, s)| (*s).into()));
        args.extend(["-o".into(), ior.base(&self.dir).display().to_string()]);
        args
    }
}

impl Hands for Program {
    fn run(&mut self, order: Order) -> Result<Option<Timed>> {
        let network = self.control.network.as_ref();
        let before = Usage::now(network);
        let printed = run_ranks(NAME, self.ior.np, self.args(order.phase), &self.control)?;
        let used = Usage::now(network).since(before);
        let bytes = self.ior.bytes().unwrap_or_default();
        let moved = Moved { bytes, operations: bytes / self.ior.transfer };
        let seconds = bytes as f64 / (rate(&printed, order.phase)? * MIB);
        Ok(Some(Timed { seconds, straggling: None, moved, used, memory: None }))
    }
}

/// MiB a second of the phase. The table's columns differ from version to version: its head tells
/// which is which.
fn rate(printed: &str, phase: Phase) -> Result<f64> {
    let wanted = if phase == Phase::Read { "read" } else { "write" };
    let rows = || printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let head = rows().find(|row| row.first() == Some(&"access")).unwrap_or_default();
    let column = head.iter().position(|name| *name == "bw(MiB/s)");
    let row = rows().find(|row| row.len() >= head.len() && row.first() == Some(&wanted));
    let field = column.and_then(|column| row.as_ref()?.get(column).copied());
    match field.and_then(|field| field.parse::<f64>().ok()) {
        Some(rate) if rate > 0.0 => Ok(rate),
        _ => Err(LabError(format!(
            "ior printed no bw(MiB/s) for {wanted} in its results: is it version 3 or later?"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::Stop;
    use crate::workload::Workload;
    use crate::workload::tests::parse as workload;

    #[test]
    fn options_are_its_own() {
        let Workload::Ior(ior) =
            workload("ior --tool ior --np 2 -t 64k -b 1m -s 2 -F -e -z -C").unwrap()
        else {
            panic!("no ior")
        };
        let control = Control {
            served: Vec::new(),
            stop: Stop::default(),
            patience: Default::default(),
            network: None,
            hosts: Default::default(),
        };
        let program = Program::new(ior, Path::new("/a"), &control);
        let of = |phase| program.args(phase).join(" ");
        let sizes = "-t 65536 -b 1048576 -s 2 -F";
        assert_eq!(of(Phase::Write), format!("-a POSIX -k -w {sizes} -e -z -o /a/data"));
        assert_eq!(of(Phase::Read), format!("-a POSIX -k -r {sizes} -C -z -o /a/data"));
    }

    #[test]
    fn its_table_is_read_by_its_head() {
        // As 3.0 and as 3.3 print it.
        let old = "Summary:\n\tapi = POSIX\n\naccess    bw(MiB/s)  block(KiB) xfer(KiB)  \
                   open(s)    wr/rd(s)   close(s)   total(s)   iter\n------    ---------  \
                   ---------- ---------  --------   --------   --------   --------   ----\n\
                   write     1024.5     1024.00    256.00     0.000100   0.003900   0.000010   \
                   0.004000   0\n\nMax Write: 1 MiB/sec\nwrite 1 2 3 4 5 6 7 8 9\n";
        assert_eq!(rate(old, Phase::Write).unwrap(), 1024.5);
        assert!(rate(old, Phase::Read).unwrap_err().to_string().contains("for read"));
        let new = "access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    \
                   wr/rd(s)   close(s)   total(s)   iter\nread      2.5  7 0.1 1024.00 256.00 \
                   0.000100   0.003900   0.000010   0.004000   0\n";
        assert_eq!(rate(new, Phase::Read).unwrap(), 2.5);
        assert!(rate("ior: no", Phase::Read).is_err());
    }
}
