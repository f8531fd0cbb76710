//! Where points run: in existing directories, or on a cluster that is made for them.

use std::path::{Path, PathBuf};

use nuri_netns::Network;

use crate::bed::Cluster;
use crate::hosts::Hosts;
use crate::limit::{Limits, WIRE, free};
use crate::progress::tell;
use crate::record::Host;
use crate::request::Request;
use crate::server::Server;
use crate::testbed::Testbed;
use crate::work::WorkDir;
use crate::{LabError, Result, host};

/// Kept while its points run.
pub(crate) struct Ground {
    work: WorkDir,
    bed: Option<Testbed>,
    pub(crate) host: Host,
    pub(crate) limits: Limits,
}

impl Ground {
    /// In directories of the request. The limits are those of the machine.
    pub(crate) fn of(dirs: &[PathBuf], limits: &Limits) -> Result<Ground> {
        let work = WorkDir::make(dirs)?;
        Ok(Ground { work, bed: None, host: host::facts(&dirs[0]), limits: limits.clone() })
    }

    /// On a cluster of its own, which goes with the value.
    pub(crate) fn made(cluster: &Cluster, dir: &Path, limits: &Limits) -> Result<Ground> {
        let bed = cluster.make(dir).map_err(|LabError(e)| LabError(format!("{cluster}: {e}")))?;
        match Ground::on(&bed, limits) {
            Ok(mut ground) => {
                ground.bed = Some(bed);
                Ok(ground)
            }
            Err(error) => {
                bed.down()?;
                Err(error)
            }
        }
    }

    fn on(bed: &Testbed, limits: &Limits) -> Result<Ground> {
        let limits = match bed.wire()? {
            Some(wire) => limits.clone().with(WIRE, wire),
            None => limits.clone(),
        };
        Ground::of(&bed.views(), &limits)
    }

    /// By ranks of other machines.
    pub(crate) fn worked_by(mut self, hosts: &Hosts) -> Ground {
        self.host = std::mem::take(&mut self.host).with_nodes(hosts);
        self
    }

    pub(crate) fn views(&self) -> &[PathBuf] {
        self.work.views()
    }

    /// Of the cluster that was made: its network, and what it serves beside its mounts.
    pub(crate) fn testbed(&self) -> (Option<Network>, Vec<Server>) {
        let bed = self.bed.as_ref();
        (bed.map(|bed| bed.network.clone()), bed.map(Testbed::served).unwrap_or_default())
    }

    /// Takes it away.
    pub(crate) fn leave(mut self) -> Result<()> {
        self.take_down()
    }

    fn take_down(&mut self) -> Result<()> {
        match self.bed.take() {
            // The working directory goes with the cluster.
            Some(bed) => bed.down().map_err(|LabError(text)| {
                let hint = "nuri lab testbed clean";
                LabError(format!("the cluster is not taken away: {text}; {hint}"))
            }),
            None => Ok(()),
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Err(LabError(text)) = self.take_down() {
            tell(&text);
        }
    }
}

/// Bytes that points may still write there.
pub(crate) fn room(request: &Request) -> Result<u64> {
    match &request.testbed {
        // The directory is not there yet.
        Some(dir) => free(dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"))),
        None => free(&request.dir[0]),
    }
}
