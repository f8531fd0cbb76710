//! Empties or keeps caches, so that the next read comes from where the record says it comes from.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise, syncfs};

use crate::workload::{Phase, Workload, io500};
use crate::{Result, at};

const SWITCH: &str = "/proc/sys/vm/drop_caches";

/// How caches stood in a phase, as a record says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Caches {
    pub(crate) name: &'static str,
    pub(crate) warning: Option<String>,
}

/// Makes ready for a phase: before cold reads, everything is written out and dropped.
/// `hosts` are the machines whose ranks take turns.
pub(crate) fn ready(
    workload: &Workload,
    phase: Phase,
    dirs: &[PathBuf],
    hosts: usize,
) -> Result<Caches> {
    let named = |name| Ok(Caches { name, warning: None });
    match (workload, phase) {
        (Workload::Io500(io500), Phase::Of(kind, step)) => {
            ready(&io500.part(kind)?, kind.phase(step), &io500::of(dirs, kind), hosts)
        }
        (Workload::Io500(_), _) => named(""),
        (Workload::Mdtest(mdtest), Phase::Stat(_)) if mdtest.crosses(phase, dirs.len(), hosts) => {
            named("other node")
        }
        (Workload::Mdtest(_), _) => named("warm"),
        (Workload::Ipc(_), _) => named(""),
        (Workload::Ior(ior), Phase::Write | Phase::Verify) if !ior.sync => named("not synced"),
        (_, Phase::Write | Phase::Verify | Phase::WriteCharacters) => named("synced"),
        (Workload::DbStress(db), Phase::Select(_)) if !db.warm => {
            let warning = drop_all(dirs, |dir| db.paths(dir))?;
            Ok(Caches { name: "cold", warning })
        }
        (Workload::DbStress(_), Phase::Select(_)) => named("warm"),
        (Workload::DbStress(_), _) => named("synced"),
        (Workload::Ior(ior), _) if ior.warm => named("warm"),
        (Workload::Block(_), Phase::WriteBlocks | Phase::WriteSynced) => named("synced"),
        (Workload::Block(block), _) if block.warm => named("warm"),
        (Workload::Block(_) | Workload::Bonnie(_), _) if workload.is_elsewhere() => {
            let warning = Some("caches of the server's machine may be warm".into());
            Ok(Caches { name: "cold", warning })
        }
        (Workload::Block(block), _) => {
            let warning = drop_all(dirs, |dir| block.paths(dir))?;
            Ok(Caches { name: "cold", warning })
        }
        (Workload::Bonnie(bonnie), _) if bonnie.warm => named("warm"),
        (Workload::Bonnie(bonnie), _) => {
            let warning = drop_all(dirs, |dir| bonnie.paths(dir))?;
            Ok(Caches { name: "cold", warning })
        }
        (Workload::Ior(ior), _) => {
            let warning = drop_all(dirs, |dir| ior.paths(dir))?;
            let crosses = ior.crosses(dirs.len(), hosts);
            Ok(Caches { name: if crosses { "other node" } else { "cold" }, warning })
        }
    }
}

/// Returns what could not be dropped.
fn drop_all(dirs: &[PathBuf], files: impl Fn(&Path) -> Vec<PathBuf>) -> Result<Option<String>> {
    for dir in dirs {
        let opened = File::open(dir).map_err(at(dir.display()))?;
        syncfs(&opened).map_err(at(dir.display()))?;
    }
    dirs.iter().flat_map(|dir| files(dir)).for_each(|path| drop_pages(&path));
    let dropped = std::fs::write(SWITCH, "3");
    Ok(dropped.err().map(|error| {
        format!("caches may be warm: only the pages of the run's files were dropped ({error})")
    }))
}

fn drop_pages(path: &Path) {
    if let Ok(file) = File::open(path) {
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
}
