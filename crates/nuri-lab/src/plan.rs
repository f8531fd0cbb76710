//! A study as a file: its question, what it varies, which workload runs at each point, and what was
//! published. Built-in plans lie in `plans/`; a user's own plans have the same form.

use std::collections::BTreeMap;
use std::path::Path;

use nuri_watch::unit::Unit;
use serde::{Deserialize, Serialize};

use crate::bed::Bed;
use crate::server::Served;
use crate::{LabError, Result, at};

/// More points than this are a mistake in the plan.
const MOST_POINTS: usize = 10_000;

/// The plans that come with Nuri, by file.
const BUILT_IN: &[&str] = &[
    include_str!("../plans/block-paths.toml"),
    include_str!("../plans/cache-effect.toml"),
    include_str!("../plans/db-stress.toml"),
    include_str!("../plans/db-stress-postgres.toml"),
    include_str!("../plans/flow-buffer.toml"),
    include_str!("../plans/flow-clients.toml"),
    include_str!("../plans/io500-like.toml"),
    include_str!("../plans/ipc-cores.toml"),
    include_str!("../plans/ipc-latency.toml"),
    include_str!("../plans/ipc-throughput.toml"),
    include_str!("../plans/metadata.toml"),
    include_str!("../plans/parallel-io.toml"),
    include_str!("../plans/sios-bandwidth.toml"),
    include_str!("../plans/sios-clients.toml"),
    include_str!("../plans/sios-nodes.toml"),
    include_str!("../plans/sios-paths.toml"),
    include_str!("../plans/stripe-sweep.toml"),
    include_str!("../plans/transfer-size.toml"),
];

/// See the module's text. Unknown keys are refused.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub study: String,
    /// In one sentence with a question mark.
    pub question: String,
    /// Where the question comes from.
    #[serde(default)]
    pub source: String,
    /// What is compared and how, in plain words.
    #[serde(default)]
    pub setup: String,
    pub workload: Workload,
    /// The cluster that is made for each point. Without it the study runs where it is told to.
    pub testbed: Option<Bed>,
    /// Every combination of these runs, the last name varying fastest. The name `place` says
    /// where: `space` (directories that are given), `local` (the reference), or what a testbed
    /// serves that has `serve = "{place}"`.
    pub sweep: Vec<Axis>,
    /// How often each point is measured; the rounds go over all points.
    pub repeat: usize,
    /// What `--quick` changes.
    #[serde(default)]
    pub quick: Quick,
    pub report: View,
    #[serde(default)]
    pub published: Vec<Published>,
    #[serde(default)]
    pub published_ratio: Vec<PublishedRatio>,
}

/// A workload's name and options; `{name}` in them stands for the swept value.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    pub name: String,
    pub options: String,
}

/// What is varied and the values, as they stand in the workload's options.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    pub name: String,
    pub values: Vec<String>,
}

/// The short form: its own options, values of some axes, repetitions.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quick {
    pub options: Option<String>,
    pub sweep: Vec<Axis>,
    pub repeat: Option<usize>,
}

/// How the report shows it: one axis along the plot, one line per combination of the others.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct View {
    pub x: String,
    /// Whose lines are compared with each other.
    #[serde(default)]
    pub against: Against,
}

/// One value of an axis, and those that it is compared with where all else is the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Against {
    pub name: String,
    pub of: String,
    pub to: Vec<String>,
}

impl Default for Against {
    /// The space with the local file system.
    fn default() -> Against {
        Against { name: "place".into(), of: "space".into(), to: vec!["local".into()] }
    }
}

/// A figure that the study's authors printed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Of which metric, and at which point of the sweep as far as it names one.
    pub metric: String,
    #[serde(default)]
    pub at: BTreeMap<String, String>,
    pub value: f64,
    pub unit: Unit,
}

/// A ratio that the study's authors printed: of one line to another, at each point.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedRatio {
    pub metric: String,
    /// Values of the axis that [`View::against`] names.
    pub of: String,
    pub to: String,
    pub low: f64,
    /// None where they said no more than "at least".
    pub high: Option<f64>,
}

/// The values at one point, by name.
pub type Point = BTreeMap<String, String>;

impl Plan {
    /// The plan of that name, or of a file where the name has a slash or ends in `.toml`.
    pub fn open(name: &str) -> Result<Plan> {
        if name.contains('/') || name.ends_with(".toml") {
            let text = std::fs::read_to_string(Path::new(name)).map_err(at(name))?;
            return Plan::parse(&text).map_err(at(name));
        }
        Plan::parse(Plan::text(name)?)
    }

    /// The text of the plan of that name.
    pub fn text(name: &str) -> Result<&'static str> {
        for text in BUILT_IN.iter().copied() {
            if Plan::parse(text)?.study == name {
                return Ok(text);
            }
        }
        Err(unknown(name))
    }

    /// Reads and checks a plan.
    pub fn parse(text: &str) -> Result<Plan> {
        let plan: Plan = toml::from_str(text).map_err(|e| LabError(e.message().to_string()))?;
        plan.check()?;
        plan.quickened().check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<()> {
        if self.repeat == 0 {
            return Err(LabError::new("repeat: at least 1"));
        }
        for axis in &self.sweep {
            if axis.values.is_empty() {
                return Err(LabError(format!("sweep '{}' has no values", axis.name)));
            }
        }
        self.points()?;
        if !self.sweep.iter().any(|axis| axis.name == self.report.x) {
            return Err(LabError(format!("report.x: nothing sweeps '{}'", self.report.x)));
        }
        self.check_ratios()?;
        self.check_names()
    }

    fn check_ratios(&self) -> Result<()> {
        let own = &self.report.against;
        let compared = |p: &&PublishedRatio| p.of != own.of || !own.to.contains(&p.to);
        if let Some(PublishedRatio { metric, of, to, .. }) =
            self.published_ratio.iter().find(compared)
        {
            let text = format!("published_ratio of {metric}: {of} is not compared with {to}");
            return Err(LabError(text));
        }
        Ok(())
    }

    fn check_names(&self) -> Result<()> {
        for (i, axis) in self.sweep.iter().enumerate() {
            if self.sweep[..i].iter().any(|earlier| earlier.name == axis.name) {
                return Err(LabError(format!("'{}' is swept twice", axis.name)));
            }
            let places = axis.name == "place";
            let serves = self.is_of_cluster(&axis.name);
            let known = |value: &&String| match value.as_str() {
                "space" | "local" => true,
                other => serves && Served::named(other).is_some(),
            };
            if let (true, Some(odd)) = (places, axis.values.iter().find(|value| !known(value))) {
                let text = "there are 'space' and 'local'; 'nfs', 'volume', 'disk' and \
                            'filesystem' where the testbed has serve = \"{place}\"";
                return Err(LabError(format!("place '{odd}': {text}")));
            }
            if !places && !self.is_of_workload(&axis.name) && !self.is_of_cluster(&axis.name) {
                let name = &axis.name;
                return Err(LabError(format!("the workload's options never use {{{name}}}")));
            }
        }
        let point = self.points()?.into_iter().next().unwrap_or_default();
        self.testbed.iter().try_for_each(|bed| bed.at(&point).map(drop))?;
        self.options(&point).map(drop)
    }

    fn is_of_workload(&self, axis: &str) -> bool {
        self.workload.options.contains(&format!("{{{axis}}}"))
    }

    fn is_of_cluster(&self, axis: &str) -> bool {
        self.testbed.as_ref().is_some_and(|bed| bed.names(axis))
    }

    /// Only the points with these values, which need not be among those of the plan.
    pub fn pinned(mut self, values: &[(String, String)]) -> Result<Plan> {
        for (i, (name, value)) in values.iter().enumerate() {
            if values[..i].iter().any(|(earlier, _)| earlier == name) {
                return Err(LabError(format!("--at {name}=...: one value of each name")));
            }
            let Some(axis) = self.sweep.iter_mut().find(|axis| axis.name == *name) else {
                let known: Vec<_> = self.sweep.iter().map(|axis| axis.name.as_str()).collect();
                let (study, known) = (&self.study, known.join(", "));
                return Err(LabError(format!("{study} does not vary '{name}', but {known}")));
            };
            axis.values = vec![value.clone()];
        }
        Ok(self)
    }

    /// What differs only with the cluster, and so cannot be varied on one that is there.
    pub fn varied_by_clusters(&self) -> Vec<&Axis> {
        let only =
            |axis: &&Axis| self.is_of_cluster(&axis.name) && !self.is_of_workload(&axis.name);
        self.sweep.iter().filter(only).filter(|axis| axis.values.len() > 1).collect()
    }

    /// This plan in its short form.
    pub fn quickened(&self) -> Plan {
        let mut plan = self.clone();
        for axis in &self.quick.sweep {
            match plan.sweep.iter_mut().find(|own| own.name == axis.name) {
                Some(own) => own.values = axis.values.clone(),
                None => plan.sweep.push(axis.clone()),
            }
        }
        plan.repeat = self.quick.repeat.unwrap_or(self.repeat);
        if let Some(options) = &self.quick.options {
            plan.workload.options = options.clone();
        }
        plan
    }

    /// All points, in the order in which a round visits them.
    pub fn points(&self) -> Result<Vec<Point>> {
        let mut points = vec![Point::new()];
        for axis in &self.sweep {
            if points.len().saturating_mul(axis.values.len()) > MOST_POINTS {
                return Err(LabError(format!("more than {MOST_POINTS} points")));
            }
            let with = |point: &Point, value: &String| {
                let mut point = point.clone();
                point.insert(axis.name.clone(), value.clone());
                point
            };
            let all = points.iter().flat_map(|p| axis.values.iter().map(move |v| with(p, v)));
            points = all.collect();
        }
        Ok(points)
    }

    /// The workload's options at a point, as words.
    pub fn options(&self, point: &Point) -> Result<Vec<String>> {
        let options = filled(&self.workload.options, point)
            .map_err(|unswept| LabError(format!("the workload's options name {unswept}")))?;
        Ok(options.split_whitespace().map(String::from).collect())
    }
}

/// The rest of a text, which begins with a name that a point has no value for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}, which nothing sweeps")]
pub(crate) struct Unswept(String);

/// With the values of a point for the names in it.
pub(crate) fn filled(text: &str, point: &Point) -> std::result::Result<String, Unswept> {
    let mut text = text.to_string();
    for (name, value) in point {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    match text.find('{') {
        Some(open) => Err(Unswept(text[open..].to_string())),
        None => Ok(text),
    }
}

/// All plans that come with Nuri.
pub fn built_in() -> Result<Vec<Plan>> {
    BUILT_IN.iter().map(|text| Plan::parse(text)).collect()
}

fn unknown(name: &str) -> LabError {
    let known: Vec<_> = built_in().into_iter().flatten().map(|plan| plan.study).collect();
    let known = known.join(", ");
    LabError(format!("no study is named '{name}'; there are: {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        study = "s"
        question = "?"
        repeat = 3
        workload = { name = "ior", options = "-t {transfer} -b 64m" }
        sweep = [
            { name = "place", values = ["local", "space"] },
            { name = "transfer", values = ["16k", "2m"] },
        ]
        report = { x = "transfer" }
        quick = { repeat = 1, sweep = [{ name = "transfer", values = ["1m"] }] }
    "#;

    #[test]
    fn points_are_all_combinations_in_order() {
        let plan = Plan::parse(PLAN).unwrap();
        let points = plan.points().unwrap();
        let words: Vec<_> =
            points.iter().map(|p| format!("{}{}", p["place"], p["transfer"])).collect();
        assert_eq!(words, ["local16k", "local2m", "space16k", "space2m"]);
        assert_eq!(plan.options(&points[0]).unwrap(), ["-t", "16k", "-b", "64m"]);
        let quick = plan.quickened();
        assert_eq!((quick.points().unwrap().len(), quick.repeat), (2, 1));
    }

    #[test]
    fn nonsense_is_one_clear_sentence() {
        let cases = [
            ("repeat = 3", "repeat = 0", "repeat: at least 1"),
            ("study = \"s\"", "studdy = \"s\"", "unknown field `studdy`"),
            ("x = \"transfer\"", "x = \"np\"", "nothing sweeps 'np'"),
            ("-b 64m", "-b {block}", "name {block}, which nothing sweeps"),
            ("-t {transfer}", "-t 1m", "never use {transfer}"),
            (
                "repeat = 3",
                "repeat = 3\npublished_ratio = [{ metric = 'read', of = 'space', to = 'disk', \
                 low = 1 }]",
                "published_ratio of read: space is not compared with disk",
            ),
            ("[\"local\", \"space\"]", "[\"lokal\"]", "place 'lokal'"),
            ("[\"16k\", \"2m\"]", "[]", "'transfer' has no values"),
            (
                "name = \"place\", values = [\"local\", \"space\"]",
                "name = \"transfer\", values = [\"1m\"]",
                "'transfer' is swept twice",
            ),
        ];
        for (from, to, told) in cases {
            let error = Plan::parse(&PLAN.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(told), "{to}: {error}");
        }
    }

    #[test]
    fn built_in_plans_are_sound_and_have_distinct_names() {
        let mut names: Vec<_> = built_in().unwrap().into_iter().map(|plan| plan.study).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        let error = Plan::open("no-such").unwrap_err().to_string();
        assert!(error.contains("transfer-size"), "{error}");
    }
}
