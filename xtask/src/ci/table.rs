//! The table of minutes: what each suite took, beside what it took when the table in
//! `docs/testing.md` was written.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pool::Ended;
use crate::shell::root;

const DOCUMENT: &str = "docs/testing.md";
const BEGIN: &str = "<!-- written by `cargo xtask ci --update` -->";
const END: &str = "<!-- end of the table -->";
/// A suite that takes so much more of the processors than its line says is named.
const MORE: f64 = 1.5;
/// Minutes that are no difference.
const NOISE: f64 = 0.3;

/// One suite.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Line {
    pub(crate) jobs: usize,
    pub(crate) failed: usize,
    /// Minutes of its jobs, one after the other.
    pub(crate) minutes: f64,
    /// Minutes of processors.
    pub(crate) processor: f64,
}

/// In the order in which the suites first ended.
#[derive(Default)]
pub(crate) struct Table {
    names: Vec<&'static str>,
    lines: BTreeMap<&'static str, Line>,
}

fn minutes(time: Duration) -> f64 {
    time.as_secs_f64() / 60.0
}

impl Table {
    pub(crate) fn add(&mut self, ended: &Ended) {
        let suite = ended.job.suite;
        if !self.names.contains(&suite) {
            self.names.push(suite);
        }
        let line = self.lines.entry(suite).or_default();
        line.jobs += 1;
        line.failed += usize::from(ended.failure.is_some());
        line.minutes += minutes(ended.took);
        line.processor += minutes(ended.processor);
    }

    pub(crate) fn print(&self, whole: Duration) {
        println!("\n{:<30} {:>5} {:>9} {:>11}", "suite", "jobs", "minutes", "processors");
        for name in &self.names {
            let Line { jobs, failed, minutes, processor } = self.lines[name];
            let verdict = if failed > 0 { format!("  {failed} FAILED") } else { String::new() };
            println!("{name:<30} {jobs:>5} {minutes:>9.1} {processor:>11.1}{verdict}");
        }
        let (jobs, processor) = self.sums();
        println!("{:<30} {jobs:>5} {:>9.1} {processor:>11.1}", "together", minutes(whole));
    }

    fn sums(&self) -> (usize, f64) {
        let lines = self.lines.values();
        lines.fold((0, 0.0), |(jobs, sum), line| (jobs + line.jobs, sum + line.processor))
    }

    /// Suites that take much more of the processors than the document says.
    pub(crate) fn grown(&self) -> Vec<String> {
        let text = std::fs::read_to_string(root().join(DOCUMENT)).unwrap_or_default();
        let known = known(&text);
        let grown = |name: &&'static str| {
            let (now, then) = (self.lines[*name].processor, *known.get(*name)?);
            let is_grown = now > MORE * then && now > then + NOISE;
            is_grown.then(|| format!("{name}: {now:.1} minutes of processors, not {then:.1}"))
        };
        self.names.iter().filter_map(grown).collect()
    }

    /// Writes the document's table anew.
    pub(crate) fn update(&self, whole: Duration) -> Result<(), String> {
        let path = root().join(DOCUMENT);
        let at = |e: std::io::Error| format!("{}: {e}", path.display());
        let text = std::fs::read_to_string(&path).map_err(at)?;
        let (head, rest) = text.split_once(BEGIN).ok_or("the document has no table")?;
        let (_, tail) = rest.split_once(END).ok_or("the document's table has no end")?;
        let table = self.markdown(whole);
        std::fs::write(&path, format!("{head}{BEGIN}\n{table}{END}{tail}")).map_err(at)
    }

    fn markdown(&self, whole: Duration) -> String {
        let mut text =
            "\n| suite | jobs | minutes | of processors |\n|---|---|---|---|\n".to_string();
        for name in &self.names {
            let Line { jobs, minutes, processor, .. } = self.lines[name];
            text += &format!("| {name} | {jobs} | {minutes:.1} | {processor:.1} |\n");
        }
        let (jobs, processor) = self.sums();
        text += &format!("| together | {jobs} | {:.1} | {processor:.1} |\n\n", minutes(whole));
        text
    }
}

/// Minutes of processors by suite, as the document has them.
fn known(text: &str) -> BTreeMap<&str, f64> {
    let table = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
    table.map_or("", |(table, _)| table).lines().filter_map(cells).collect()
}

/// Name and minutes of processors.
fn cells(line: &str) -> Option<(&str, f64)> {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    match cells[..] {
        [name, _, _, processor] => Some((name, processor.parse().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_table_is_read_as_it_is_written() {
        let mut table = Table { names: vec!["fuzz"], ..Table::default() };
        let line = Line { jobs: 2, failed: 0, minutes: 1.5, processor: 1.25 };
        table.lines.insert("fuzz", line);
        let text = format!("x\n{BEGIN}\n{}{END}\ny", table.markdown(Duration::from_secs(90)));
        assert_eq!(known(&text)["fuzz"], 1.2);
        assert!(known("no table").is_empty());
    }
}
