//! Shows what a search found, as sentences and as JSON.

use serde_json::{Value, json};

use super::search::{Found, Stage};
use super::settings::Axis;

/// What was done with it.
pub(crate) struct Outcome<'a> {
    pub(crate) dir: &'a str,
    pub(crate) goal: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) is_set: bool,
    /// Why the mount's settings were not searched, if they were to be.
    pub(crate) left: Option<String>,
}

/// A line for each stage, then what to do.
pub(crate) fn sentences(found: &Found, outcome: &Outcome) -> Vec<String> {
    let Outcome { dir, unit, is_set, left, .. } = outcome;
    let line = |stage: &Stage| {
        let best = stage.better().map_or(stage.choices[0], |(choice, _)| choice);
        let i = stage.choices.iter().position(|choice| *choice == best).unwrap_or(0);
        let rate = match stage.race.median(i) {
            rate if rate.is_nan() => "not measured".into(),
            rate => format!("{rate:.0} {unit}"),
        };
        format!("{:<12} {rate:>14}  {}", stage.name(), stage.verdict())
    };
    let mut lines: Vec<String> = found.stages.iter().map(line).collect();
    if found.is_cut() {
        lines.push("time was up before all was measured: see --budget".into());
    }
    lines.extend(left.clone());
    let Some((choice, times)) = &found.better else {
        lines.push("nothing is clearly better than what is set".into());
        return lines;
    };
    let axes = choice.differs(&found.before);
    let (new, old) = (choice.words(&axes), found.before.words(&axes));
    lines.push(format!("{new}: {times:.2} times as fast as {old}"));
    if *is_set {
        let files = axes.contains(&Axis::Layout).then(|| format!("new files of {dir}"));
        let mount = axes.iter().any(|axis| axis.is_of_mount());
        let mount = mount.then(|| "the mount, as long as it is mounted".to_string());
        let what: Vec<_> = files.into_iter().chain(mount).collect();
        lines.push(format!("set for {}; undo: nuri lab tune --undo {dir}", what.join(" and for ")));
    } else {
        let commands = choice.commands(&found.before, dir);
        lines.extend(commands.iter().map(|command| format!("to set it: {command}")));
    }
    lines
}

pub(crate) fn as_json(found: &Found, outcome: &Outcome) -> Value {
    let of = |stage: &Stage| {
        let one = |(i, choice): (usize, &super::settings::Choice)| {
            let mut all = choice.as_json();
            all["stage"] = json!(stage.name());
            all["samples"] = json!(stage.race.scores(i));
            all
        };
        stage.choices.iter().enumerate().map(one).collect::<Vec<_>>()
    };
    let better = |better: Option<(super::settings::Choice, f64)>| {
        better.map(|(choice, times)| {
            let mut all = choice.as_json();
            all["times"] = json!(times);
            all
        })
    };
    let stage = |stage: &Stage| {
        json!({
            "stage": stage.name(), "better": better(stage.better()), "complete": !stage.is_cut,
            "verdict": stage.verdict(),
        })
    };
    json!({
        "dir": outcome.dir,
        "goal": outcome.goal,
        "unit": outcome.unit,
        "before": found.before.as_json(),
        "measured": found.stages.iter().flat_map(of).collect::<Vec<_>>(),
        "stages": found.stages.iter().map(stage).collect::<Vec<_>>(),
        "best": better(found.better),
        "applied": outcome.is_set,
        "complete": !found.is_cut(),
        "left_alone": outcome.left,
    })
}
