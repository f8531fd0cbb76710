//! The file of a run: one record a line, each on disk before the next is measured.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::plan::Point;
use crate::record::{self, Record};
use crate::{LabError, Result, at};

pub(crate) struct Output {
    path: PathBuf,
    file: File,
    /// What the file had already, whole and partial.
    known: Vec<Record>,
    begun: Vec<Record>,
}

impl Output {
    /// A new file.
    pub(crate) fn create(path: &Path) -> Result<Output> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(at(dir.display()))?;
        }
        let name = path.display();
        if path.exists() {
            return Err(LabError(format!("{name} exists: go on with --resume, or name another")));
        }
        let file = File::create_new(path).map_err(at(name))?;
        Ok(Output { path: path.into(), file, known: Vec::new(), begun: Vec::new() })
    }

    /// One that an earlier run left. Records that are partial leave it, as others take their place.
    pub(crate) fn resume(path: &Path, study: &str) -> Result<Output> {
        let known = record::read(path)?;
        if let Some(other) = known.iter().find(|record| record.study != study) {
            let (path, other) = (path.display(), &other.study);
            return Err(LabError(format!("{path} holds results of the study '{other}'")));
        }
        let (begun, known): (Vec<_>, Vec<_>) = known.into_iter().partition(|r| r.partial.is_some());
        let fresh = path.with_extension("jsonl.new");
        let name = fresh.display().to_string();
        let mut file = File::create(&fresh).map_err(at(&name))?;
        for record in &known {
            append(&mut file, record).map_err(at(&name))?;
        }
        std::fs::rename(&fresh, path).map_err(at(&name))?;
        let file = OpenOptions::new().append(true).open(path).map_err(at(path.display()))?;
        Ok(Output { path: path.into(), file, known, begun })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the run that began the file.
    pub(crate) fn run(&self) -> Option<&str> {
        self.known.iter().chain(&self.begun).next().map(|record| record.run.as_str())
    }

    /// Whether the file had this one already.
    pub(crate) fn has(&self, new: &Record) -> bool {
        let of =
            |r: &Record| (r.study.clone(), r.point.clone(), r.options.clone(), r.metric.clone());
        self.known.iter().any(|known| of(known) == of(new))
    }

    /// What the file had of a point.
    pub(crate) fn of(&self, point: &Point, options: &str) -> Vec<&Record> {
        let all = self.known.iter().chain(&self.begun);
        all.filter(|record| record.point == *point && record.options == options).collect()
    }

    pub(crate) fn add(&mut self, record: &Record) -> Result<()> {
        append(&mut self.file, record).map_err(at(self.path.display()))
    }
}

fn append(file: &mut File, record: &Record) -> Result<()> {
    let line = record.to_line()? + "\n";
    file.write_all(line.as_bytes()).and_then(|()| file.sync_data()).map_err(LabError::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;

    #[test]
    fn resuming_keeps_what_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs/r.jsonl");
        let mut output = Output::create(&path).unwrap();
        let whole = sample("s", &[("x", "1")], &[1.0]);
        let partial =
            Record { partial: Some("interrupted".into()), ..sample("s", &[("x", "2")], &[2.0]) };
        output.add(&whole).unwrap();
        output.add(&partial).unwrap();
        output.file.write_all(b"{\"torn").unwrap();
        assert!(Output::create(&path).is_err(), "it is not overwritten");

        let mut output = Output::resume(&path, "s").unwrap();
        assert!(output.has(&whole) && !output.has(&partial));
        assert_eq!(output.run(), Some("r1"));
        assert_eq!(output.of(&partial.point, &partial.options), [&partial]);
        let done = Record { partial: None, ..partial };
        output.add(&done).unwrap();
        assert_eq!(record::read(&path).unwrap().len(), 2);
        let other = Record { options: "ior -w -b 1m".into(), ..whole };
        assert!(!output.has(&other), "other options are another measurement");
    }
}
