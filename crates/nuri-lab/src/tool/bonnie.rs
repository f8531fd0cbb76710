//! Bonnie's phases by bonnie++: one run for all phases, read from its line for spreadsheets.

use std::path::{Path, PathBuf};

use super::run;
use crate::job::{Moved, Order};
use crate::rank_group::{Control, Hands, Timed};
use crate::workload::Phase;
use crate::workload::bonnie::Bonnie;
use crate::{LabError, Result};

pub(crate) const NAME: &str = "bonnie++";
/// Of the line, format 1.98.
const FORMAT: &str = "1.98";

pub(crate) struct Program {
    bonnie: Bonnie,
    dir: PathBuf,
    control: Control,
    /// The line of the repetition whose phases are asked for.
    line: Option<(u64, String)>,
}

impl Program {
    pub(crate) fn new(bonnie: Bonnie, dir: &Path, control: &Control) -> Program {
        Program { bonnie, dir: dir.to_owned(), control: control.clone(), line: None }
    }

    fn args(&self) -> Vec<String> {
        let (file, chunk, seeks) = (self.bonnie.bytes() >> 20, self.bonnie.chunk(), self.seeks());
        let mut args = vec!["-q".into(), "-u".into(), "root".into()];
        args.extend(["-d".into(), self.dir.display().to_string()]);
        args.extend(["-s".into(), format!("{file}:{chunk}:{seeks}")]);
        // Its own checks against the memory's size are off, files in numbers left out.
        args.extend(["-r", "0", "-n", "0", "-m", "nuri-lab"].map(String::from));
        if self.bonnie.is_fast() {
            args.push("-f".into());
        }
        args
    }

    /// Its five processes share them.
    fn seeks(&self) -> u64 {
        self.bonnie.seeks().max(5)
    }
}

impl Hands for Program {
    fn run(&mut self, order: Order) -> Result<Option<Timed>> {
        if self.line.as_ref().is_none_or(|(seed, _)| *seed != order.seed) {
            self.line = Some((order.seed, run(NAME, &self.args(), &self.control)?));
        }
        let line = self.line.as_ref().map(|(_, line)| line.as_str()).unwrap_or_default();
        let Some(rate) = rate(line, order.phase)? else {
            let name = order.phase.metric().unwrap_or_default();
            let why = "bonnie++ has none for what took less than half a second";
            eprintln!("{name}: no figure: {why}; use a larger -s");
            return Ok(None);
        };
        let (seconds, moved) = match order.phase {
            Phase::Seek => {
                let operations = self.seeks();
                (operations as f64 / rate, Moved { bytes: 0, operations })
            }
            _ => {
                let bytes = self.bonnie.bytes();
                let operations = bytes / self.bonnie.chunk();
                (bytes as f64 / (rate * 1024.0), Moved { bytes, operations })
            }
        };
        // What each phase cost is not known: the tool does not stop between them.
        let (used, memory) = Default::default();
        Ok(Some(Timed { seconds, straggling: None, moved, used, memory }))
    }
}

/// Its figure of a phase: KiB a second, or seeks; none where the phase was too short for it.
fn rate(line: &str, phase: Phase) -> Result<Option<f64>> {
    let fields: Vec<&str> = line.lines().last().unwrap_or_default().split(',').collect();
    if fields.first() != Some(&FORMAT) {
        return Err(LabError(format!("what bonnie++ printed is not its format {FORMAT}: {line}")));
    }
    let at = match phase {
        Phase::WriteCharacters => 9,
        Phase::Write => 11,
        Phase::Rewrite => 13,
        Phase::ReadCharacters => 15,
        Phase::Read => 17,
        _ => 19,
    };
    match fields.get(at) {
        Some(field) if field.starts_with('+') => Ok(None),
        field => field
            .and_then(|field| field.parse().ok())
            .map(Some)
            .ok_or_else(|| LabError(format!("bonnie++ printed no figure in field {at}: {line}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_line_is_read() {
        let line = "1.98,2.00a,host,1,1795453239,64M,,8192,5,1238,99,83644,30,+++++,+++,1989,99,\
                    4000,50,900.5,12,,,\n";
        let of = |phase| rate(line, phase).map_err(|error| error.to_string());
        assert_eq!(of(Phase::WriteCharacters), Ok(Some(1238.0)));
        assert_eq!(of(Phase::Write), Ok(Some(83644.0)));
        assert_eq!(of(Phase::ReadCharacters), Ok(Some(1989.0)));
        assert_eq!((of(Phase::Read), of(Phase::Seek)), (Ok(Some(4000.0)), Ok(Some(900.5))));
        assert_eq!(of(Phase::Rewrite), Ok(None), "too short");
        assert!(rate("2.0,x", Phase::Read).unwrap_err().to_string().contains("format 1.98"));
        assert!(rate("1.98,x", Phase::Read).is_err());
    }
}
