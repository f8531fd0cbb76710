//! An MPI program with and without `libnuri_mpi` before its MPI library, by 2 and by 4 ranks.
//!
//! The test with MPICH fails where that is not installed (`scripts/setup --test` does it); the one
//! with Open MPI says so and passes.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

mod common;

/// How an MPI library compiles and starts programs.
struct Flavour {
    compiler: &'static str,
    launch: &'static [&'static str],
}

const MPICH: Flavour = Flavour { compiler: "mpicc.mpich", launch: &["mpiexec.mpich"] };
const OPENMPI: Flavour = Flavour {
    compiler: "mpicc.openmpi",
    launch: &["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"],
};

/// All of one run, on a busy machine too.
const SECONDS: &str = "240";

impl Flavour {
    fn is_installed(&self) -> bool {
        let found = Command::new(self.compiler).arg("-show").stdout(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    }

    fn program(&self, dir: &Path) -> PathBuf {
        let out = dir.join("semantics");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mpi/semantics.c");
        // MPICH's MPI_STATUSES_IGNORE is an address at which gcc sees no statuses.
        let args = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-stringop-overflow", "-O1"];
        let args = [&args[..], &[source, "-o"]].concat();
        assert!(Command::new(self.compiler).args(args).arg(&out).status().unwrap().success());
        out
    }

    fn library(&self, dir: &Path) -> PathBuf {
        let out = dir.join("libnuri_mpi.so");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/mpi-library");
        let mut command = Command::new(script);
        command.arg(self.compiler).arg(&out).arg(common::newest_archive());
        assert!(command.status().unwrap().success());
        out
    }

    /// Runs a program; returns what all ranks said.
    fn run(&self, program: &Path, ranks: usize, environment: &[String]) -> String {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", SECONDS]).args(self.launch).args(["-n", &ranks.to_string()]);
        command.arg("env").args(environment).arg(program).stdin(Stdio::null());
        // Open MPI asks for this when it is started by root.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(output.status.success(), "{}: {said}", output.status);
        said
    }

    fn check(&self) {
        let temp = tempfile::tempdir().unwrap();
        let (program, library) = (self.program(temp.path()), self.library(temp.path()));
        let sessions = temp.path().join("sessions");
        std::fs::create_dir(&sessions).unwrap();
        common::make_private(&sessions);
        for ranks in [2, 4] {
            let environment = [
                format!("LD_PRELOAD={}", library.display()),
                format!("XDG_RUNTIME_DIR={}", sessions.display()),
                "NURI_MPI=verbose".to_owned(),
            ];
            let said = self.run(&program, ranks, &environment);
            assert!(said.contains("semantics: ok"), "{said}");
            assert!(said.contains(&format!("nuri-mpi: used, {ranks} ranks")), "{said}");
            let counts = said.matches("a rank sent").count();
            assert_eq!(counts, ranks, "{said}");
            assert!(!said.contains("received 0 messages"), "{said}");
            assert_eq!(std::fs::read_dir(&sessions).unwrap().count(), 0, "nothing stays behind");
            let off = [environment[0].clone(), "NURI_MPI=off".to_owned()];
            assert!(self.run(&program, ranks, &off).contains("semantics: ok"));
        }
    }
}

#[test]
fn mpich_keeps_its_promises() {
    assert!(MPICH.is_installed(), "mpich and libmpich-dev are missing: scripts/setup --test");
    MPICH.check();
}

#[test]
fn openmpi_keeps_its_promises() {
    if OPENMPI.is_installed() {
        OPENMPI.check();
    } else {
        eprintln!("SKIPPED: openmpi-bin and libopenmpi-dev are not installed");
    }
}
