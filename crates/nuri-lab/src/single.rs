//! Runs one workload with options from the command line. The result is printed as a table, or as
//! records in JSON lines.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use nuri_watch::calendar;

use crate::hosts::Hosts;
use crate::measure::measure;
use crate::plan::Point;
use crate::rank_group::Control;
use crate::record::Record;
use crate::request::{Patience, check_dirs};
use crate::results::{Origin, Subject, records};
use crate::run::fits;
use crate::stop::Stop;
use crate::work::WorkDir;
use crate::workload::Workload;
use crate::{LabError, Result, host, score};

#[derive(Args, Clone, Debug)]
pub struct Where {
    /// A directory to work in. Several are mounts of the same directory, which processes use in
    /// turn. None is needed if --through names a server
    #[arg(value_name = "DIR")]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    pub how: How,
}

#[derive(Args, Clone, Debug)]
pub struct How {
    /// Print records as JSON lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    hosts: Hosts,
}

impl Where {
    /// The directories; one for the run itself where the workload needs none.
    pub fn dirs(&self, workload: &Workload) -> Result<Vec<PathBuf>> {
        match self.dirs.is_empty() {
            false => Ok(self.dirs.clone()),
            true if workload.is_elsewhere() => Ok(vec![std::env::temp_dir()]),
            true => Err(LabError(format!("say where: nuri lab {} DIR", workload.name()))),
        }
    }
}

/// Runs a workload in one directory as several mounts show it and prints what came out.
pub fn run(workload: &Workload, dirs: &[PathBuf], how: &How, stop: Stop) -> Result<()> {
    workload.check()?;
    if let Some(why) = workload.obstacle() {
        return Err(LabError(why));
    }
    workload.check_hosts(&how.hosts)?;
    check_dirs(dirs.iter())?;
    if !workload.is_elsewhere() {
        fits(workload, &dirs[0])?;
    }
    let records = measured(workload, dirs, how, stop)?;
    let lines: Result<Vec<String>> = match how.json {
        true => records.iter().map(Record::to_line).collect(),
        false => Ok(table(&records)),
    };
    let text = lines?.join("\n") + "\n";
    std::io::stdout().write_all(text.as_bytes()).map_err(LabError::new)
}

fn measured(workload: &Workload, dirs: &[PathBuf], how: &How, stop: Stop) -> Result<Vec<Record>> {
    let mut samples = Vec::new();
    let control = Control { hosts: how.hosts.clone(), ..how.patience.control(stop) };
    if workload.is_confined() {
        let work = WorkDir::make(dirs)?;
        measure(workload, work.views(), 0, &control, &mut samples)?;
    } else {
        measure(workload, dirs, 0, &control, &mut samples)?;
    }
    let origin = Origin { run: calendar::utc(calendar::unix_now()), study: workload.name().into() };
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<_> = words.skip_while(|word| word != workload.name()).collect();
    let subject = Subject {
        point: &Point::new(),
        options: words.join(" "),
        workload,
        host: host::facts(&dirs[0]).with_nodes(&how.hosts),
        limit: &|_| None,
    };
    Ok(records(&origin, &subject, &samples, None))
}

/// A head and a row for each record, then what is to be known of them.
fn table(records: &[Record]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:<17} {:>12} {:>12} {:>12}       {:<11} {:>10} {:>10} {:>10} {:>11} {:>8}",
        "",
        "median",
        "low",
        "high",
        "caches",
        "CPU s/GiB",
        "CPU us/op",
        "wire B/B",
        "straggling",
        "MiB"
    )];
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    for record in records {
        let (i, costs) = (&record.interval, &record.costs);
        lines.push(format!(
            "{:<17} {:>12.1} {:>12.1} {:>12.1} {:<5} {:<11} {:>10} {:>10} {:>10} {:>9} s {:>8}",
            record.metric,
            i.median,
            i.low,
            i.high,
            record.unit.name(),
            record.caches,
            number(costs.cpu_seconds_per_gib),
            number(costs.cpu_us_per_op),
            number(costs.wire_bytes_per_byte),
            number(costs.straggling),
            number(costs.memory_mib),
        ));
    }
    let warned = records.iter().flat_map(|r| r.warnings.iter().map(move |w| (&r.metric, w)));
    lines.extend(warned.map(|(metric, warning)| format!("{metric}: {warning}")));
    lines.extend(score::lines(records));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;

    #[test]
    fn a_table_has_a_row_for_each_record_and_its_warnings() {
        let mut record = sample("ior", &[], &[100.0, 120.0]);
        record.warnings.push("short: it took 3 ms".into());
        let lines = table(&[record]);
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0].len(), lines[1].len(), "columns lie under their heads");
        assert!(lines[1].starts_with("write") && lines[1].contains("110.0"), "{}", lines[1]);
        assert_eq!(lines[2], "write: short: it took 3 ms");
    }
}
