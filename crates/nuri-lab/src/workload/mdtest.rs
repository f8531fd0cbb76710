//! mdtest's options, and one rank's operations on files and directories.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use nuri_proto::size::human;
use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::{Entry, LARGEST, Phase};
use crate::job::{Job, Moved, Order, Part};
use crate::{LabError, Result, at, tool};

const DEFAULT_ITEMS: u64 = 1000;
/// What an entry takes at most besides its bytes.
const ENTRY: u64 = 4096;
/// The directory in which the run works.
const TREE: &str = "tree";

#[derive(Args, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mdtest {
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = super::processes)]
    pub np: usize,
    /// Files and directories of each process (default 1000)
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    items: Option<u64>,
    /// Files and directories of all processes together
    #[arg(long, value_name = "N", conflicts_with = "items")]
    total: Option<u64>,
    /// A directory for each process (default: one for all)
    #[arg(short = 'u')]
    own_dirs: bool,
    /// Files only
    #[arg(short = 'F')]
    files_only: bool,
    /// Directories only
    #[arg(short = 'D', conflicts_with = "files_only")]
    dirs_only: bool,
    /// Create (default: all phases)
    #[arg(short = 'C')]
    create: bool,
    /// Stat
    #[arg(short = 'T')]
    stat: bool,
    /// Read the files
    #[arg(short = 'E')]
    read: bool,
    /// Remove
    #[arg(short = 'r')]
    remove: bool,
    /// Bytes written to each file
    #[arg(short = 'w', value_name = "SIZE", default_value = "0",
        value_parser = nuri_proto::size::parse)]
    write_bytes: u64,
    /// Bytes read of each file
    #[arg(short = 'e', value_name = "SIZE", default_value = "0",
        value_parser = nuri_proto::size::parse)]
    read_bytes: u64,
    /// Stat what the process N ranks on made; read what the process 2N ranks on made, and remove
    /// what the process 3N ranks on made. Where several directories are given, through another one
    #[arg(short = 'N', value_name = "N", default_value_t = 0)]
    pub stride: usize,
    /// Repetitions of all phases
    #[arg(short = 'i', value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub repetitions: u64,
    /// Let another program do the work: mdtest itself
    #[arg(long, value_name = "PROGRAM", value_parser = [tool::mdtest::NAME])]
    pub tool: Option<String>,
}

impl Mdtest {
    /// Whether each rank asks in a phase for what was made through another mount.
    pub(crate) fn crosses(&self, phase: Phase, dirs: usize, hosts: usize) -> bool {
        let away = self.stride.saturating_mul(strides(phase)) % self.np.max(1);
        let on_others = hosts > 1 && self.np.is_multiple_of(hosts) && !away.is_multiple_of(hosts);
        self.stride > 0 && (dirs > 1 || on_others)
    }

    pub(super) fn check(&self) -> Result<()> {
        let refuse = |text: String| Err(LabError(text));
        if let (Some(total), 0) = (self.total, self.each()) {
            return refuse(format!("--total {total} leaves no item to some process"));
        }
        if (self.stat || self.read || self.remove) && !self.create {
            return refuse("what is stat'ed, read or removed needs -C, which makes it".into());
        }
        let (w, e) = (self.write_bytes, self.read_bytes);
        if w > LARGEST {
            return refuse(format!("-w: at most {}", human(LARGEST)));
        }
        if e > w {
            return refuse(format!("-e {e} reads more than -w {w} writes"));
        }
        if self.read && e == 0 {
            return refuse("-E needs -e BYTES and -w BYTES".into());
        }
        Ok(())
    }

    /// Items of each kind and process.
    pub(crate) fn each(&self) -> u64 {
        match self.total {
            Some(total) => total / self.np as u64,
            None => self.items.unwrap_or(DEFAULT_ITEMS),
        }
    }

    /// Of all processes.
    pub(crate) fn items(&self) -> u64 {
        self.each().saturating_mul(self.np as u64)
    }

    pub(super) fn space(&self) -> u64 {
        let kinds = self.entries().count() as u64;
        self.items().saturating_mul(kinds).saturating_mul(self.write_bytes.saturating_add(ENTRY))
    }

    fn entries(&self) -> impl Iterator<Item = Entry> + use<> {
        let wanted = [(!self.files_only, Entry::Dir), (!self.dirs_only, Entry::File)];
        wanted.into_iter().filter(|(wanted, _)| *wanted).map(|(_, entry)| entry)
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        let all = !self.create;
        let of = |entry: Entry| {
            let reads = entry == Entry::File && self.read_bytes > 0;
            let phases = [
                (true, Phase::Create(entry)),
                (all || self.stat, Phase::Stat(entry)),
                (reads && (all || self.read), Phase::Fetch),
                (all || self.remove, Phase::Remove(entry)),
            ];
            phases.into_iter().filter(|(wanted, _)| *wanted).map(|(_, phase)| phase)
        };
        self.entries().flat_map(of).collect()
    }

    pub(crate) fn has_own_dirs(&self) -> bool {
        self.own_dirs
    }

    /// Of each file.
    pub(crate) fn write_bytes(&self) -> u64 {
        self.write_bytes
    }

    /// Of each file.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// What all entries lie in.
    pub(crate) fn tree(&self, dir: &Path) -> PathBuf {
        dir.join(TREE)
    }

    fn dir(&self, dir: &Path, rank: usize) -> PathBuf {
        let tree = self.tree(dir);
        if self.own_dirs { tree.join(format!("rank.{rank}")) } else { tree }
    }

    pub(super) fn lay_out(&self, dirs: &[PathBuf]) -> Result<()> {
        let made = if self.own_dirs { self.np } else { 1 };
        (0..made)
            .map(|rank| self.dir(&dirs[0], rank))
            .try_for_each(|dir| fs::create_dir_all(&dir).map_err(at(dir.display())))
    }

    pub(super) fn clear(&self, dirs: &[PathBuf]) -> Result<()> {
        let tree = self.tree(&dirs[0]);
        fs::remove_dir_all(&tree).map_err(at(tree.display()))
    }
}

pub(super) struct Operations {
    mdtest: Mdtest,
    job: Job,
    phase: Phase,
    /// Whose entries, and where this rank sees them.
    owner: usize,
    dir: PathBuf,
    pattern: Pattern,
    buffer: Vec<u8>,
}

impl Operations {
    pub(super) fn new(mdtest: Mdtest, job: Job) -> Operations {
        let dir = mdtest.dir(job.dir(), job.rank);
        let owner = job.rank;
        let buffer = vec![0; mdtest.read_bytes as usize];
        let phase = Phase::Create(Entry::File);
        let pattern = Pattern::new(0, owner, mdtest.write_bytes as usize);
        Operations { mdtest, job, phase, owner, dir, pattern, buffer }
    }

    fn path(&self, entry: Entry, i: u64) -> PathBuf {
        let kind = if entry == Entry::File { "file" } else { "dir" };
        self.dir.join(format!("{kind}.{}.{i}", self.owner))
    }

    /// One operation; returns the bytes that it moved.
    fn operate(&mut self, i: u64) -> std::io::Result<u64> {
        match self.phase {
            Phase::Create(Entry::Dir) => fs::create_dir(self.path(Entry::Dir, i)).map(|()| 0),
            Phase::Create(Entry::File) => {
                let mut file = File::create_new(self.path(Entry::File, i))?;
                let data = self.pattern.at(i * self.mdtest.write_bytes);
                file.write_all(data).map(|()| data.len() as u64)
            }
            Phase::Stat(entry) => fs::symlink_metadata(self.path(entry, i)).map(|_| 0),
            Phase::Remove(Entry::File) => fs::remove_file(self.path(Entry::File, i)).map(|()| 0),
            Phase::Remove(Entry::Dir) => fs::remove_dir(self.path(Entry::Dir, i)).map(|()| 0),
            Phase::Fetch => {
                File::open(self.path(Entry::File, i))?.read_exact(&mut self.buffer)?;
                match self.pattern.wrong_byte(&self.buffer, i * self.mdtest.write_bytes) {
                    Some(_) => Err(std::io::Error::other("does not hold what was written")),
                    None => Ok(self.buffer.len() as u64),
                }
            }
            _ => Err(std::io::Error::other("mdtest has no such phase")),
        }
    }

    fn place(&self, i: u64) -> PathBuf {
        let entry = match self.phase {
            Phase::Create(entry) | Phase::Stat(entry) | Phase::Remove(entry) => entry,
            _ => Entry::File,
        };
        self.path(entry, i)
    }
}

/// How many strides away the entries of a phase are: another number for each, as in mdtest.
fn strides(phase: Phase) -> usize {
    match phase {
        Phase::Stat(_) => 1,
        Phase::Fetch => 2,
        Phase::Remove(_) => 3,
        _ => 0,
    }
}

impl Part for Operations {
    fn prepare(&mut self, order: Order) -> Result<()> {
        let (job, np) = (&self.job, self.mdtest.np);
        let away = self.mdtest.stride.saturating_mul(strides(order.phase)) % np;
        self.phase = order.phase;
        self.owner = (job.rank + away) % np;
        let through = if away == 0 { self.owner } else { self.owner + 1 };
        self.dir = self.mdtest.dir(job.dir_of(through), self.owner);
        self.pattern = Pattern::new(order.seed, self.owner, self.mdtest.write_bytes as usize);
        Ok(())
    }

    fn run(&mut self) -> Result<Moved> {
        let mut moved = Moved::default();
        for i in 0..self.mdtest.each() {
            moved.bytes += self.operate(i).map_err(|e| at(self.place(i).display())(e))?;
            moved.operations += 1;
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Workload;
    use super::super::tests::parse;
    use super::*;

    fn mdtest(options: &str) -> Mdtest {
        match parse(&format!("mdtest {options}")).unwrap() {
            Workload::Mdtest(mdtest) => mdtest,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn phases_are_those_asked_for() {
        let (file, dir) = (Entry::File, Entry::Dir);
        assert_eq!(mdtest("-F -C").phases(), [Phase::Create(file)]);
        let all = [Phase::Create(dir), Phase::Stat(dir), Phase::Remove(dir)];
        assert_eq!(mdtest("-D").phases(), all);
        let reads = mdtest("-F -w 10 -e 5").phases();
        let all = [Phase::Create(file), Phase::Stat(file), Phase::Fetch, Phase::Remove(file)];
        assert_eq!(reads, all);
        assert_eq!(mdtest("-n 5 --np 3").items(), 15);
        assert_eq!(mdtest("--total 16 --np 3").items(), 15);
    }

    #[test]
    fn every_phase_works_and_leaves_nothing() {
        let all = ["-w 3901 -e 3901", "-u", "-N 1 -w 10 -e 10", "-u -N 1 -w 10 -e 10"];
        for options in all.map(|options| format!("--np 2 -n 5 {options}")) {
            let dir = tempfile::tempdir().unwrap();
            let dirs = [dir.path().to_path_buf(), dir.path().join(".")];
            let workload = parse(&format!("mdtest {options}")).unwrap();
            workload.lay_out(&dirs).unwrap();
            let job = |rank| Job::new(workload.clone(), rank, dirs.to_vec());
            let mut ranks: Vec<_> = (0..2).map(|r| workload.clone().part(job(r))).collect();
            for phase in workload.phases() {
                for rank in &mut ranks {
                    rank.prepare(Order { phase, seed: 1 }).unwrap();
                    assert_eq!(rank.run().unwrap().operations, 5);
                }
            }
            workload.clear(&dirs).unwrap();
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_wrong_byte_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = vec![dir.path().to_path_buf()];
        let workload = parse("mdtest -F -n 1 -w 100 -e 100").unwrap();
        workload.lay_out(&dirs).unwrap();
        let mut rank = workload.clone().part(Job::new(workload, 0, dirs));
        rank.prepare(Order { phase: Phase::Create(Entry::File), seed: 1 }).unwrap();
        rank.run().unwrap();
        fs::write(dir.path().join("tree/file.0.0"), [0; 100]).unwrap();
        rank.prepare(Order { phase: Phase::Fetch, seed: 1 }).unwrap();
        let error = rank.run().unwrap_err().to_string();
        assert!(error.contains("file.0.0: does not hold"), "{error}");
    }
}
