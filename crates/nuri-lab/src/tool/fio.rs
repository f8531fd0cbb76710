//! IOR's transfers by fio: a job for each process, a run for each phase.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::run;
use crate::job::{Moved, Order};
use crate::machine::Usage;
use crate::rank_group::{Control, Hands, Timed};
use crate::workload::Phase;
use crate::workload::ior::Ior;
use crate::{LabError, Result, at};

pub(crate) const NAME: &str = "fio";

pub(crate) struct Fio {
    ior: Ior,
    dirs: Vec<PathBuf>,
    control: Control,
}

impl Fio {
    pub(crate) fn new(ior: Ior, dirs: &[PathBuf], control: &Control) -> Fio {
        Fio { ior, dirs: dirs.to_vec(), control: control.clone() }
    }

    fn dir(&self, rank: usize) -> &Path {
        &self.dirs[rank % self.dirs.len()]
    }

    fn args(&self, order: Order) -> Vec<String> {
        let ior = &self.ior;
        let reads = order.phase == Phase::Read;
        let what = if reads { "read" } else { "write" };
        let mode = if ior.random { format!("rand{what}") } else { what.into() };
        let mut args: Vec<String> = ["json", "psync", "none"]
            .into_iter()
            .zip(["output-format", "ioengine", "fallocate"])
            .map(|(value, name)| format!("--{name}={value}"))
            .collect();
        // Caches are seen to before, and the kernel is told nothing, as by our own processes.
        let same = ["--thread", "--group_reporting", "--invalidate=0", "--fadvise_hint=0"];
        args.extend(same.map(String::from));
        args.push(format!("--rw={mode}"));
        args.push(format!("--bs={}", ior.transfer));
        args.push(format!("--size={}", ior.block()));
        args.push(format!("--randseed={}", order.seed.max(1)));
        if !reads && ior.sync {
            args.push("--end_fsync=1".into());
        }
        for rank in 0..ior.np {
            let (owner, dir) = match reads && ior.reorder {
                true => ((rank + 1) % ior.np, self.dir((rank + 1) % ior.np + 1)),
                false => (rank, self.dir(rank)),
            };
            let from = ior.offsets(owner).next().unwrap_or(0);
            args.push(format!("--name=rank{rank}"));
            // A colon would part two files.
            let path = ior.path(dir, owner).display().to_string().replace(':', "\\:");
            args.push(format!("--filename={path}"));
            args.push(format!("--offset={from}"));
        }
        args
    }
}

impl Hands for Fio {
    fn run(&mut self, order: Order) -> Result<Option<Timed>> {
        let network = self.control.network.as_ref();
        let before = Usage::now(network);
        let printed = run(NAME, &self.args(order), &self.control)?;
        let used = Usage::now(network).since(before);
        let (seconds, moved) = parse(&printed, order.phase)?;
        Ok(Some(Timed { seconds, straggling: None, moved, used, memory: None }))
    }
}

#[derive(Deserialize)]
struct Printed {
    jobs: Vec<Group>,
}

/// All jobs together.
#[derive(Deserialize)]
struct Group {
    read: Side,
    write: Side,
}

#[derive(Deserialize)]
struct Side {
    io_bytes: u64,
    bw_bytes: u64,
    total_ios: u64,
}

/// Notes may stand before the JSON.
fn parse(printed: &str, phase: Phase) -> Result<(f64, Moved)> {
    let json = printed.find('{').map_or("", |at| &printed[at..]);
    let printed: Printed = serde_json::from_str(json).map_err(at("what fio printed"))?;
    let group = printed.jobs.into_iter().next().ok_or(LabError::new("fio ran no job"))?;
    let side = if phase == Phase::Read { group.read } else { group.write };
    if side.bw_bytes == 0 {
        return Err(LabError::new("fio measured nothing; move more bytes (-b)"));
    }
    let seconds = side.io_bytes as f64 / side.bw_bytes as f64;
    Ok((seconds, Moved { bytes: side.io_bytes, operations: side.total_ios }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::Stop;
    use crate::workload::Workload;
    use crate::workload::tests::parse as workload;

    #[test]
    fn options_become_jobs() {
        let line = "ior --tool fio --np 2 -t 64k -b 1m -e -z -C";
        let Workload::Ior(ior) = workload(line).unwrap() else { panic!("no ior") };
        let control = Control {
            served: Vec::new(),
            stop: Stop::default(),
            patience: Default::default(),
            network: None,
            hosts: Default::default(),
        };
        let fio = Fio::new(ior, &["/a".into(), "/b:c".into()], &control);
        let args = fio.args(Order { phase: Phase::Write, seed: 7 }).join(" ");
        for part in [
            "--rw=randwrite --bs=65536 --size=1048576 --randseed=7 --end_fsync=1",
            "--name=rank0 --filename=/a/data --offset=0",
            "--name=rank1 --filename=/b\\:c/data --offset=1048576",
        ] {
            assert!(args.contains(part), "{args}");
        }
        let args = fio.args(Order { phase: Phase::Read, seed: 7 }).join(" ");
        assert!(args.contains("--name=rank0 --filename=/a/data --offset=1048576"), "{args}");
        assert!(!args.contains("end_fsync"), "{args}");
    }

    #[test]
    fn what_fio_prints_is_read() {
        let text = "note: x\n{\"jobs\": [{\"read\": {\"io_bytes\": 0, \"bw_bytes\": 0, \
                    \"total_ios\": 0}, \"write\": {\"io_bytes\": 2000, \"bw_bytes\": 1000, \
                    \"total_ios\": 4, \"bw\": 1}}]}";
        let (seconds, moved) = parse(text, Phase::Write).unwrap();
        assert_eq!((seconds, moved), (2.0, Moved { bytes: 2000, operations: 4 }));
        assert!(parse(text, Phase::Read).unwrap_err().to_string().contains("nothing"));
        assert!(parse("fio: no", Phase::Read).unwrap_err().to_string().contains("what fio"));
    }
}
