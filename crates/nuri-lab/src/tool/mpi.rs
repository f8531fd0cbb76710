//! Programs of MPI: `mpiexec` starts their ranks.

use super::run;
use crate::rank_group::Control;
use crate::{LabError, Result};

const STARTER: &str = "mpiexec";

/// Runs so many ranks of a program; returns what they printed.
pub(super) fn run_ranks(
    program: &str,
    np: usize,
    args: Vec<String>,
    control: &Control,
) -> Result<String> {
    if !is_installed(program) {
        return Err(LabError(format!(
            "{program} is not installed: build it (github.com/hpc/ior has ior and mdtest; \
             distributions seldom do) and put it into the PATH, or leave --tool out"
        )));
    }
    if !is_installed(STARTER) {
        return Err(LabError(format!(
            "{STARTER}, which starts {program}, is not installed: install the MPI that {program} \
             was built with, e.g. apt install mpich"
        )));
    }
    let ranks = ["-n".to_owned(), np.to_string(), program.to_owned()];
    run(STARTER, &[ranks.to_vec(), args].concat(), control)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
