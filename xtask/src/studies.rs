//! The laboratory's studies in their short form, on a cluster of namespaces, by the
//! program that tests run.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::shell::{Build, build, root, script, todays_share};

/// Of what prepares and reports.
const LIMIT: Duration = Duration::from_secs(60);
/// Of a short study: by its own guess half a minute, on a disk that nobody else uses.
const STUDY: Duration = Duration::from_secs(240);
const NODES: u64 = 4;

/// A testbed with two mounts; taken away with the value.
struct Bed {
    nuri: String,
    dir: tempfile::TempDir,
}

impl Bed {
    fn up() -> Result<Bed, String> {
        let nuri = build(Build::Tests)?.display().to_string();
        let dir = tempfile::Builder::new().prefix("nuri-studies-").tempdir_in("/var/tmp");
        let dir = dir.map_err(|e| format!("no temporary directory: {e}"))?;
        let bed = Bed { nuri, dir };
        let (nuri, place) = (&bed.nuri, bed.place());
        // PostgreSQL runs as another user and must reach what lies below.
        script(
            &format!(
                "chmod 755 {dir}
                 mkdir {dir}/local
                 {nuri} lab testbed --nodes {NODES} --mounts 2 --dir {place}",
                dir = bed.dir.path().display()
            ),
            2 * LIMIT,
        )?;
        Ok(bed)
    }

    fn place(&self) -> String {
        self.dir.path().join("bed").display().to_string()
    }

    /// All studies, and whether they make their clusters.
    fn studies(&self) -> Result<Vec<(String, bool)>, String> {
        let listed = script(&format!("{} lab list --json", self.nuri), LIMIT)?;
        let studies: serde_json::Value =
            serde_json::from_str(&listed).map_err(|e| e.to_string())?;
        let names = studies.as_array().into_iter().flatten();
        let study = |study: &serde_json::Value| {
            Some((study["study"].as_str()?.to_string(), study["testbed"].as_bool()?))
        };
        Ok(names.filter_map(study).collect())
    }

    fn run(&self, (study, is_made): &(String, bool), results: &Path) -> Result<(), String> {
        let (nuri, bed, dir) = (&self.nuri, self.place(), self.dir.path().display());
        let file = results.join(format!("{study}.jsonl"));
        let place = match is_made {
            true => format!("--testbed {dir}/made"),
            false => format!("--dir {bed}/mnt0 --dir {bed}/mnt1"),
        };
        let run = format!(
            "rm -f {file}
             {nuri} lab run {study} --quick {place} --local {dir}/local -o {file}",
            file = file.display()
        );
        script(&run, STUDY).map(drop).map_err(|e| format!("{study}: {e}"))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = script(&format!("{} lab testbed down --dir {}", self.nuri, self.place()), LIMIT);
    }
}

/// Runs every n-th study, today's share, and writes a report of them.
pub(crate) fn run(every: usize) -> Result<(), String> {
    let results: PathBuf = root().join("target/studies");
    std::fs::create_dir_all(&results).map_err(|e| format!("{}: {e}", results.display()))?;
    let bed = Bed::up()?;
    let studies = bed.studies()?;
    let mut runs = String::new();
    for study in todays_share(&studies, every) {
        let start = Instant::now();
        bed.run(study, &results)?;
        let study = &study.0;
        println!("{study:<16} {:5.1} s", start.elapsed().as_secs_f64());
        runs.push_str(&format!(" {}/{study}.jsonl", results.display()));
    }
    let (nuri, page) = (&bed.nuri, results.join("report"));
    let outputs = format!("-o {0}.html -o {0}.md", page.display());
    script(&format!("{nuri} lab report {runs} {outputs}"), LIMIT).map(|told| print!("{told}"))
}
