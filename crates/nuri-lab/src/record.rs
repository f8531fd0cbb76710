//! A record: one result with all that is needed to judge it, as a JSON line of a run's file.

use std::collections::BTreeMap;
use std::path::Path;

use nuri_watch::unit::Unit;
use serde::{Deserialize, Serialize};

use crate::hosts::Hosts;
use crate::stats::Interval;
use crate::{LabError, Result, at};

/// Of the lines written by this version.
pub const FORMAT: u32 = 1;

/// Of the program that writes them.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What this machine can do at best, measured in the same run, in the record's unit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// Such as `disk write`, `memory copy`.
    pub name: String,
    pub value: f64,
}

/// What a result took besides time; medians over the repetitions.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Costs {
    /// Of all processes of the machine, per GiB moved.
    pub cpu_seconds_per_gib: Option<f64>,
    /// The same per operation, in microseconds.
    pub cpu_us_per_op: Option<f64>,
    /// Bytes sent and received by the machine's network devices per byte of the workload.
    pub wire_bytes_per_byte: Option<f64>,
    /// Seconds between the first process that was done and the last.
    pub straggling: Option<f64>,
    /// MiB that the workload's own processes had resident at most, together.
    pub memory_mib: Option<f64>,
}

/// The machine that ran it.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    pub name: String,
    pub cpu: String,
    pub cores: usize,
    pub memory_mib: u64,
    pub kernel: String,
    /// Of the place: what is mounted there and from where.
    pub file_system: String,
    pub device: String,
    /// Machines that ranks ran on, if not this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
}

impl Host {
    pub(crate) fn with_nodes(self, hosts: &Hosts) -> Host {
        Host { nodes: hosts.names().to_vec(), ..self }
    }
}

/// One result. Times are UTC as in RFC 3339.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Record {
    pub format: u32,
    pub version: String,
    pub run: String,
    pub study: String,
    pub at: String,
    /// What was varied: the values at this point, by name.
    pub point: BTreeMap<String, String>,
    /// The workload and its options at this point.
    #[serde(default)]
    pub options: String,
    /// The workload's phase, such as `write` or `create`.
    pub metric: String,
    pub unit: Unit,
    /// One per repetition, warm-ups left out.
    pub samples: Vec<f64>,
    pub interval: Interval,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    #[serde(default)]
    pub costs: Costs,
    /// What a reader should know before trusting it: noise, caches that could not be dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Why there are fewer samples than asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// How caches stood, as the workload controlled them: `cold`, `warm`, `other node`; of writes
    /// whether they were `synced` or `not synced`.
    #[serde(default)]
    pub caches: String,
    pub host: Host,
}

impl Record {
    /// As a fraction of the limit; above 1 where a time is longer than it could be.
    pub fn fraction(&self) -> Option<f64> {
        let limit = self.limit.as_ref().filter(|limit| limit.value > 0.0)?;
        Some(self.interval.median / limit.value)
    }

    pub fn to_line(&self) -> Result<String> {
        serde_json::to_string(self).map_err(at("a record"))
    }
}

/// Reads a run's file. A torn last line (a run that was ended in mid-write) is left out; any other
/// line that is no record is an error with its number.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let text = std::fs::read_to_string(path).map_err(at(path.display()))?;
    parse(&text).map_err(at(path.display()))
}

fn parse(text: &str) -> Result<Vec<Record>> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut records = Vec::new();
    for (i, line) in whole.lines().enumerate() {
        let place = format!("line {}", i + 1);
        let record: Record = serde_json::from_str(line).map_err(at(&place))?;
        if record.format > FORMAT {
            let newer = "written by a newer version of Nuri; use that one to read it";
            return Err(LabError(format!("{place}: {newer}")));
        }
        records.push(record);
    }
    Ok(records)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(study: &str, point: &[(&str, &str)], samples: &[f64]) -> Record {
        Record {
            format: FORMAT,
            version: "0.1.0".into(),
            run: "r1".into(),
            study: study.into(),
            at: "2026-11-22T00:00:00Z".into(),
            point: point.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            options: "ior -w".into(),
            metric: "write".into(),
            unit: Unit::MibPerSecond,
            samples: samples.to_vec(),
            interval: Interval::of(samples),
            limit: Some(Limit { name: "disk write".into(), value: 200.0 }),
            costs: Costs::default(),
            warnings: Vec::new(),
            partial: None,
            caches: "cold".into(),
            host: Host::default(),
        }
    }

    #[test]
    fn a_record_survives_its_line() {
        let record = sample("transfer-size", &[("transfer", "16KiB")], &[90.0, 100.0, 120.0]);
        let text = record.to_line().unwrap() + "\n";
        assert_eq!(parse(&text).unwrap(), std::slice::from_ref(&record));
        assert_eq!(record.fraction(), Some(0.5));
    }

    #[test]
    fn a_torn_end_is_left_out_and_nonsense_is_named() {
        let line = sample("s", &[], &[1.0]).to_line().unwrap() + "\n";
        assert_eq!(parse(&format!("{line}{}", &line[..20])).unwrap().len(), 1);
        let error = parse(&format!("{line}no\n{line}")).unwrap_err().to_string();
        assert!(error.starts_with("line 2: "), "{error}");
        let newer = line.replace("\"format\":1", "\"format\":2");
        assert!(parse(&newer).unwrap_err().to_string().contains("newer version"));
    }
}
