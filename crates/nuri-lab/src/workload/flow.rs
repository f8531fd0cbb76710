//! Forces the flow buffers of the mounts that a run uses, and leaves them to the mounts again after
//! the run.

use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use nuri_proto::size::{self, SizeError};
use serde::{Deserialize, Serialize};

use crate::{LabError, Result, at, nuri_program};

/// Shows and forces the flow buffers of a mount.
const FLOW: &str = "nuri.flow";
const AUTO: &str = "auto";

#[derive(Args, Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct FlowBuffers {
    /// Bytes that a mount moves in one call, e.g. 256k, or auto; only on a Nuri space
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    flow_buffer: Option<String>,
    /// Flow buffers in flight at once, or auto; only on a Nuri space
    #[arg(long, value_name = "N")]
    flow_streams: Option<String>,
}

/// A size in bytes, or `auto`.
fn parse_size(text: &str) -> std::result::Result<String, SizeError> {
    if text == AUTO { Ok(text.into()) } else { size::parse(text).map(|bytes| bytes.to_string()) }
}

impl FlowBuffers {
    pub(super) fn is_asked(&self) -> bool {
        *self != FlowBuffers::default()
    }

    /// Forces them on the mounts of all directories. What somebody else forced stays as it is.
    pub(super) fn force(&self, dirs: &[PathBuf]) -> Result<()> {
        if !self.is_asked() {
            return Ok(());
        }
        for dir in dirs {
            let mut text = [0; 1024];
            let len = rustix::fs::getxattr(dir, FLOW, &mut text);
            let len = len.map_err(|_| {
                LabError(format!("--flow-...: {} is not on a mounted space", dir.display()))
            })?;
            if !String::from_utf8_lossy(&text[..len]).starts_with("buffer=auto streams=auto") {
                return Err(LabError(format!(
                    "--flow-...: flow buffers are forced at {} already: nuri fs tune set --buffer \
                     auto --streams auto",
                    dir.display()
                )));
            }
        }
        let word = |asked: &Option<String>| asked.clone().unwrap_or(AUTO.into());
        set(dirs, &word(&self.flow_buffer), &word(&self.flow_streams))
    }

    /// Leaves them to the mounts.
    pub(super) fn release(&self, dirs: &[PathBuf]) -> Result<()> {
        if self.is_asked() { set(dirs, AUTO, AUTO) } else { Ok(()) }
    }
}

fn set(dirs: &[PathBuf], buffer: &str, streams: &str) -> Result<()> {
    let nuri = nuri_program()?;
    for dir in dirs {
        let mut command = Command::new(&nuri);
        command.args(["fs", "tune", "set", "--buffer", buffer, "--streams", streams]).arg(dir);
        let out = command.output().map_err(at("nuri fs tune set"))?;
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr);
            let said = said.trim().trim_start_matches("nuri: ");
            return Err(LabError(format!("--flow-...: {said}")));
        }
    }
    Ok(())
}
