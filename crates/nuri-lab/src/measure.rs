//! Runs a workload once in its directory, and records what it did and what that took.

use std::path::PathBuf;

use nuri_watch::unit::Unit;

use crate::caches::{self, Caches};
use crate::job::Order;
use crate::machine::Usage;
use crate::rank_group::{Control, Hands, RankGroup, Timed};
use crate::record::Costs;
use crate::workload::{Phase, Workload};
use crate::{LabError, Result, tool};

/// From this share of stolen processor time on a figure says more about the host's other guests.
const STOLEN: f64 = 0.05;
/// A phase that is shorter measures starting and ending, and the kernel counts processor time in
/// hundredths of a second.
const SHORT: f64 = 0.1;

/// One figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    pub phase: Phase,
    pub value: f64,
    pub costs: Costs,
    pub caches: String,
    pub warnings: Vec<String>,
}

/// Adds a sample for each figure, also where a later phase fails. `dirs` are one directory as
/// several mounts show it; `round` makes the data differ from earlier ones.
pub fn measure(
    workload: &Workload,
    dirs: &[PathBuf],
    round: u64,
    control: &Control,
    samples: &mut Vec<Sample>,
) -> Result<()> {
    let mut hands = hands(workload, dirs, control)?;
    for repetition in 0..workload.repetitions() {
        workload.lay_out(dirs)?;
        let seed = workload.seed(round * workload.repetitions() + repetition);
        let places = (dirs, control.hosts.names().len());
        let outcome = phases(workload, places, seed, hands.as_mut(), samples);
        if outcome.is_err() {
            // Ranks that still write would make files anew.
            drop(hands);
            workload.clear(dirs)?;
            return outcome;
        }
        workload.clear(dirs)?;
    }
    Ok(())
}

/// Our own processes, or a tool of others where one is asked for.
fn hands(workload: &Workload, dirs: &[PathBuf], control: &Control) -> Result<Box<dyn Hands>> {
    Ok(match workload {
        Workload::Ior(ior) if ior.tool.as_deref() == Some(tool::ior::NAME) => {
            Box::new(tool::ior::Program::new(ior.clone(), only(dirs)?, control))
        }
        Workload::Ior(ior) if ior.tool.is_some() => {
            Box::new(tool::fio::Fio::new(ior.clone(), dirs, control))
        }
        Workload::Mdtest(mdtest) if mdtest.tool.is_some() => {
            Box::new(tool::mdtest::Program::new(mdtest.clone(), only(dirs)?, control))
        }
        Workload::Bonnie(bonnie) if bonnie.tool.is_some() => {
            Box::new(tool::bonnie::Program::new(bonnie.clone(), &dirs[0], control))
        }
        _ => Box::new(RankGroup::start(workload, dirs, control)?),
    })
}

/// The directory of a tool that knows but one.
fn only(dirs: &[PathBuf]) -> Result<&PathBuf> {
    match dirs {
        [dir] => Ok(dir),
        _ => Err(LabError::new("--tool ior and --tool mdtest work in one directory: give one")),
    }
}

fn phases(
    workload: &Workload,
    (dirs, hosts): (&[PathBuf], usize),
    seed: u64,
    hands: &mut dyn Hands,
    samples: &mut Vec<Sample>,
) -> Result<()> {
    for phase in workload.phases() {
        let mut caches = caches::ready(workload, phase, dirs, hosts)?;
        caches.warning = hands.cool(phase)?.or(caches.warning);
        let timed = hands.run(Order { phase, seed }).map_err(|LabError(text)| {
            LabError(format!("{}: {text}", phase.metric().unwrap_or("verify")))
        })?;
        samples.extend(timed.and_then(|timed| sample(phase, timed, caches)));
    }
    Ok(())
}

/// None of a phase without a figure.
fn sample(phase: Phase, timed: Timed, caches: Caches) -> Option<Sample> {
    phase.metric()?;
    let amount = match phase.unit() {
        Unit::MibPerSecond => timed.moved.bytes as f64 / f64::from(1 << 20),
        _ => timed.moved.operations as f64,
    };
    let mut warnings: Vec<String> = caches.warning.into_iter().collect();
    let stolen = timed.used.stolen_share();
    if stolen > STOLEN {
        let percent = 100.0 * stolen;
        warnings.push(format!("the host took {percent:.0} % of the processors' time"));
    }
    if timed.seconds < SHORT {
        let milliseconds = 1000.0 * timed.seconds;
        warnings.push(format!("short: it took {milliseconds:.0} ms"));
    }
    let value = match phase.unit() {
        Unit::Microseconds => timed.seconds * 1e6 / amount.max(1.0),
        Unit::Seconds => timed.seconds,
        _ => amount / timed.seconds.max(f64::MIN_POSITIVE),
    };
    let (mut costs, caches) = (costs(timed), caches.name.into());
    if phase == Phase::Stream {
        // What passes between processes passes no device.
        costs.wire_bytes_per_byte = None;
    }
    Some(Sample { phase, value, costs, caches, warnings })
}

fn costs(timed: Timed) -> Costs {
    let (bytes, operations) = (timed.moved.bytes as f64, timed.moved.operations as f64);
    let used = Some(timed.used).filter(|used| used.is_known());
    let cpu = used.filter(|_| timed.seconds >= SHORT).map(Usage::cpu_seconds);
    let per = |what: f64, of: f64| (of > 0.0).then(|| what / of);
    Costs {
        cpu_seconds_per_gib: cpu.and_then(|cpu| per(cpu, bytes / f64::from(1 << 30))),
        cpu_us_per_op: cpu.and_then(|cpu| per(cpu * 1e6, operations)),
        wire_bytes_per_byte: used.and_then(|used| per(used.wire as f64, bytes)),
        straggling: timed.straggling,
        memory_mib: timed.memory.map(|kib| kib as f64 / 1024.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Moved;

    fn timed(seconds: f64, bytes: u64, operations: u64) -> Timed {
        let moved = Moved { bytes, operations };
        Timed { seconds, straggling: Some(0.1), moved, used: Usage::default(), memory: Some(2048) }
    }

    #[test]
    fn figures_are_amounts_by_time() {
        let cold = Caches { name: "cold", warning: Some("w".into()) };
        let read = sample(Phase::Read, timed(2.0, 64 << 20, 64), cold.clone()).unwrap();
        assert_eq!((read.value, read.caches.as_str()), (32.0, "cold"));
        assert_eq!(read.costs.memory_mib, Some(2.0));
        assert_eq!(read.warnings, ["w"]);
        let stat = Phase::Stat(crate::workload::Entry::File);
        let stat = sample(stat, timed(0.01, 0, 10), cold.clone()).unwrap();
        assert_eq!(stat.value, 1000.0);
        assert_eq!(stat.costs.cpu_seconds_per_gib, None);
        assert!(stat.warnings[1].contains("short"), "{:?}", stat.warnings);
        let latency = sample(Phase::PingPong, timed(2.0, 0, 1000), cold.clone()).unwrap();
        assert_eq!((latency.value, latency.costs.wire_bytes_per_byte), (2000.0, None));
        assert_eq!(sample(Phase::Verify, timed(1.0, 1, 1), cold), None);
    }
}
