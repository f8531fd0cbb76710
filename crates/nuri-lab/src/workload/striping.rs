//! Sets how the files of a run are striped, on the run's own directory, as a user does it.

use std::path::Path;
use std::process::Command;

use clap::Args;
use nuri_proto::size;
use serde::{Deserialize, Serialize};

use crate::{LabError, Result, at, nuri_program};

#[derive(Args, Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Striping {
    /// Number of groups that a file is striped over (0: all); only on a Nuri space
    #[arg(long, value_name = "N")]
    stripe_count: Option<u16>,
    /// Bytes of each chunk of a file, e.g. 1m; only on a Nuri space
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    stripe_size: Option<u64>,
}

impl Striping {
    /// Over so many groups.
    pub(crate) fn of_width(groups: u16) -> Striping {
        Striping { stripe_count: Some(groups), stripe_size: None }
    }

    pub(super) fn is_asked(&self) -> bool {
        *self != Striping::default()
    }

    /// Files made in the directory from here on are striped so.
    pub(crate) fn set(&self, dir: &Path) -> Result<()> {
        if !self.is_asked() {
            return Ok(());
        }
        let mut command = Command::new(nuri_program()?);
        command.args(["fs", "layout", "set"]).arg(dir);
        if let Some(count) = self.stripe_count {
            command.args(["--width", &count.to_string()]);
        }
        if let Some(size) = self.stripe_size {
            command.args(["--chunk-size", &size.to_string()]);
        }
        let out = command.output().map_err(at("nuri fs layout set"))?;
        if out.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&out.stderr);
        Err(LabError(format!("--stripe-...: {}", said.trim().trim_start_matches("nuri: "))))
    }
}
