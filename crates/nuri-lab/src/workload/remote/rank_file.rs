//! The file that a rank writes and reads: in its directory, or at a server.

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::Result as IoResult;
use std::path::PathBuf;

use super::{Share, nbd, nfs};
use crate::server::{Protocol, Server, Through};
use crate::workload::opened::Opened;
use crate::{Result, at};

pub(in crate::workload) struct RankFile {
    /// In the directory.
    path: PathBuf,
    remote: Option<(Server, Share)>,
    /// Nothing is there that somebody misses.
    is_checked: Cell<bool>,
}

impl RankFile {
    /// Of `len` bytes; at a server only what is empty is written, unless it says otherwise.
    pub(in crate::workload) fn new(
        (rank, served): (usize, &[Server]),
        path: PathBuf,
        (through, overwrites): (&Through, bool),
        len: u64,
    ) -> RankFile {
        // A testbed's devices are nobody's.
        let overwrites = overwrites || matches!(through, Through::Testbed(_));
        let share = |server: Server| {
            let rank = match server.protocol {
                Protocol::Nbd => through.turn(served, rank),
                // Its own file, whoever else uses the server.
                Protocol::Nfs => rank,
            };
            (server, Share { rank, len, overwrites })
        };
        RankFile {
            path,
            remote: through.server(served, rank).map(share),
            is_checked: Cell::new(false),
        }
    }

    /// For messages.
    pub(in crate::workload) fn name(&self) -> String {
        let name = |(server, _): &(Server, Share)| server.to_string();
        self.remote.as_ref().map_or_else(|| self.path.display().to_string(), name)
    }

    /// Before anything is written by any rank: whether it may be.
    pub(in crate::workload) fn check(&self) -> Result<()> {
        match &self.remote {
            Some((server, share)) if server.protocol == Protocol::Nbd && !self.is_checked.get() => {
                nbd::check(server, *share).map_err(at(self.name()))?;
                self.is_checked.set(true);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Anew: an older file goes first.
    pub(in crate::workload) fn create(&self) -> IoResult<Box<dyn Opened>> {
        let Some((server, share)) = &self.remote else {
            let mut anew = OpenOptions::new();
            return Ok(Box::new(anew.write(true).create(true).truncate(true).open(&self.path)?));
        };
        match server.protocol {
            Protocol::Nbd => nbd::open(server, *share),
            Protocol::Nfs => nfs::create(server, *share),
        }
    }

    /// What [`RankFile::create`] made, to write and read.
    pub(in crate::workload) fn open(&self) -> IoResult<Box<dyn Opened>> {
        match &self.remote {
            Some((server, share)) => match server.protocol {
                Protocol::Nbd => nbd::open(server, *share),
                Protocol::Nfs => nfs::open(server, *share),
            },
            None => Ok(Box::new(OpenOptions::new().read(true).write(true).open(&self.path)?)),
        }
    }

    /// Takes it away from a server. Files of directories are removed by who made the directory.
    pub(in crate::workload) fn leave(&self) -> Result<()> {
        let Some((server, share)) = &self.remote else { return Ok(()) };
        let left = match server.protocol {
            Protocol::Nbd => nbd::clear(server, *share),
            Protocol::Nfs => nfs::remove(server, *share),
        };
        left.map_err(at(self.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Served;

    /// Which part of its server a rank of three uses, where a testbed serves two mounts.
    fn parts(served: Served, addresses: [&str; 2]) -> Vec<usize> {
        let servers = addresses.map(|address| served.at(address, ""));
        let through = Through::Testbed(served);
        let of = |rank| RankFile::new((rank, &servers[..]), PathBuf::new(), (&through, false), 1);
        (0..3).filter_map(|rank| of(rank).remote).map(|(_, share)| share.rank).collect()
    }

    #[test]
    fn ranks_share_devices_and_no_file() {
        assert_eq!(parts(Served::Disk, ["10.0.0.1", "10.0.0.2"]), [0, 0, 1]);
        assert_eq!(parts(Served::Nfs, ["10.0.0.1", "10.0.0.1"]), [0, 1, 2]);
    }
}
