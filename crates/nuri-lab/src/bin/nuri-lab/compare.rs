//! `nuri lab compare`: finds what became slower between two runs.

use std::process::ExitCode;

use nuri_lab::compare::{Change, Comparison, compare};
use nuri_lab::{LabError, Result};
use serde_json::{Value, json};

use crate::cli::Compare;

pub(super) fn run(args: &Compare) -> Result<ExitCode> {
    let read = nuri_lab::record::read;
    let comparison = compare(&read(&args.before)?, &read(&args.after)?);
    if comparison.changes.is_empty() {
        return Err(LabError::new(
            "the two runs have no result in common: run the same study twice",
        ));
    }
    match args.json {
        true => println!("{:#}", as_json(&comparison)),
        false => print(&comparison),
    }
    Ok(if comparison.has_regressions() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(comparison: &Comparison) {
    for change in &comparison.changes {
        let Change { what, unit, before, after, speed, verdict } = change;
        let (old, new, unit) = (before.median, after.median, unit.name());
        println!("{:<7} {speed:5.2} x  {what}: {old:.2} to {new:.2} {unit}", verdict.name());
    }
    for (which, names) in [("first", &comparison.only_before), ("second", &comparison.only_after)] {
        for name in names {
            println!("only in the {which} run: {name}");
        }
    }
}

fn as_json(comparison: &Comparison) -> Value {
    let changes = comparison.changes.iter().map(|change| {
        json!({
            "what": change.what,
            "unit": change.unit,
            "before": change.before,
            "after": change.after,
            "speed": change.speed,
            "verdict": change.verdict.name(),
        })
    });
    json!({
        "changes": changes.collect::<Value>(),
        "only_before": comparison.only_before,
        "only_after": comparison.only_after,
    })
}
