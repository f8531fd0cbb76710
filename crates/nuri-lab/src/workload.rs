//! The workloads of ranks. These are IOR's transfers, mdtest's operations and Bonnie's phases, with
//! the option letters of those tools. Others are blocks of a device, statements on a database, and
//! messages between two processes.

pub mod block;
pub mod bonnie;
mod collective;
pub mod database;
mod flow;
pub mod io500;
pub mod ior;
pub mod ipc;
mod library;
pub mod mdtest;
mod opened;
mod pattern;
mod remote;
pub(crate) mod striping;
mod transfer;

use std::path::PathBuf;

use block::Block;
use bonnie::Bonnie;
use clap::Parser;
use database::DbStress;
use io500::{Io500, Kind, Step};
use ior::Ior;
use ipc::Ipc;
use mdtest::Mdtest;
use nuri_watch::unit::Unit;
use serde::{Deserialize, Serialize};

use crate::hosts::Hosts;
use crate::job::{Job, Moved, Part};
use crate::server::{Served, Server, Through};
use crate::{LabError, Result, at};

const MOST_PROCESSES: usize = 4096;
/// Of transfers and small files: a process holds a few of them in memory.
const LARGEST: u64 = 1 << 30;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Workload {
    Ior(Ior),
    Mdtest(Mdtest),
    Bonnie(Bonnie),
    Block(Block),
    DbStress(DbStress),
    Ipc(Ipc),
    Io500(Io500),
}

/// A step that all ranks take together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Phase {
    Write,
    /// Reads every byte back; no figure comes of it.
    Verify,
    Read,
    /// A byte at a time through a small buffer.
    WriteCharacters,
    ReadCharacters,
    /// Reads and writes every block in place.
    Rewrite,
    /// Reads at random places, and writes some back.
    Seek,
    /// Blocks at random places: durable all together, and one by one.
    WriteBlocks,
    WriteSynced,
    ReadBlocks,
    Create(Entry),
    Stat(Entry),
    /// Reads small files.
    Fetch,
    Remove(Entry),
    /// Fills the table in one transaction.
    Insert,
    /// Statements of one row each, by key, in one transaction.
    Select(Key),
    Update(Key),
    Delete(Key),
    /// Rows in a row by one statement.
    DeleteRange,
    /// Statements of one row, each a transaction of its own.
    Commit,
    /// A message to another process and back.
    PingPong,
    /// Messages to another process, one after the other.
    Stream,
    /// A phase of one of several workloads.
    Of(Kind, Step),
}

/// How a statement finds its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Key {
    Primary,
    Index,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Entry {
    File,
    Dir,
}

impl Phase {
    /// The name of its figure.
    pub fn metric(self) -> Option<&'static str> {
        Some(match self {
            Phase::Write => "write",
            Phase::Verify => return None,
            Phase::Read | Phase::Fetch => "read",
            Phase::WriteCharacters => "character write",
            Phase::ReadCharacters => "character read",
            Phase::Rewrite => "rewrite",
            Phase::Seek => "seek",
            Phase::WriteBlocks => "random write",
            Phase::WriteSynced => "synced write",
            Phase::ReadBlocks => "random read",
            Phase::Create(Entry::File) => "create",
            Phase::Stat(Entry::File) => "stat",
            Phase::Remove(Entry::File) => "remove",
            Phase::Create(Entry::Dir) => "create directory",
            Phase::Stat(Entry::Dir) => "stat directory",
            Phase::Remove(Entry::Dir) => "remove directory",
            Phase::Insert => "insert",
            Phase::Select(Key::Primary) => "select",
            Phase::Select(Key::Index) => "select by index",
            Phase::Update(Key::Primary) => "update",
            Phase::Update(Key::Index) => "update by index",
            Phase::Delete(Key::Primary) => "delete",
            Phase::Delete(Key::Index) => "delete by index",
            Phase::DeleteRange => "delete of a range",
            Phase::Commit => "commit",
            Phase::PingPong => "latency",
            Phase::Stream => "throughput",
            Phase::Of(kind, step) => kind.metric(step),
        })
    }

    /// As the workload that runs it names it.
    pub(crate) fn own(self) -> Phase {
        if let Phase::Of(kind, step) = self { kind.phase(step) } else { self }
    }

    pub fn unit(self) -> Unit {
        match self.own() {
            Phase::Write
            | Phase::Verify
            | Phase::Read
            | Phase::WriteCharacters
            | Phase::ReadCharacters
            | Phase::Rewrite
            | Phase::Stream => Unit::MibPerSecond,
            Phase::PingPong => Unit::Microseconds,
            _ => Unit::OpsPerSecond,
        }
    }
}

/// Options alone, as a plan has them.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line<O: clap::Args> {
    #[command(flatten)]
    options: O,
}

fn options<O: clap::Args>(words: &[String]) -> Result<O> {
    let parsed = Line::<O>::try_parse_from(words);
    parsed.map(|line| line.options).map_err(|error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        LabError::new(line.trim_start_matches("error: "))
    })
}

/// Reads a number of processes.
fn processes(text: &str) -> Result<usize> {
    let most = MOST_PROCESSES;
    let number: usize = text.parse().map_err(at(format!("{text:?}")))?;
    let fits = (1..=most).contains(&number);
    if fits { Ok(number) } else { Err(LabError(format!("{number} is not in 1..={most}"))) }
}

/// Files, as far as they are there.
fn remove(paths: &[PathBuf]) -> Result<()> {
    for path in paths.iter().filter(|path| path.exists()) {
        std::fs::remove_file(path).map_err(at(path.display()))?;
    }
    Ok(())
}

impl Workload {
    /// From its name and options in a plan.
    pub fn parse(name: &str, words: &[String]) -> Result<Workload> {
        let workload = match name {
            "ior" => Workload::Ior(options(words)?),
            "mdtest" => Workload::Mdtest(options(words)?),
            "bonnie" => Workload::Bonnie(options(words)?),
            "block" => Workload::Block(options(words)?),
            "db-stress" => Workload::DbStress(options(words)?),
            "ipc" => Workload::Ipc(options(words)?),
            "io500-like" => Workload::Io500(options(words)?),
            _ => {
                let known = "ior, mdtest, bonnie, block, db-stress, ipc, io500-like";
                return Err(LabError(format!("no workload is named '{name}'; there are: {known}")));
            }
        };
        workload.check()?;
        Ok(workload)
    }

    /// Refuses what cannot be meant.
    pub fn check(&self) -> Result<()> {
        match self {
            Workload::Ior(ior) => ior.check(),
            Workload::Mdtest(mdtest) => mdtest.check(),
            Workload::Bonnie(bonnie) => bonnie.check(),
            Workload::Block(block) => block.check(),
            Workload::DbStress(db) => db.check(),
            Workload::Ipc(ipc) => ipc.check(),
            Workload::Io500(io500) => io500.check(),
        }
    }

    /// Refuses what only ranks of one machine can do together.
    pub(crate) fn check_hosts(&self, hosts: &Hosts) -> Result<()> {
        let is_bound = match self {
            Workload::Ior(ior) => ior.is_bound(),
            Workload::Bonnie(bonnie) => bonnie.tool.is_some(),
            Workload::Mdtest(mdtest) => mdtest.tool.is_some(),
            Workload::Block(_) | Workload::Io500(_) => false,
            Workload::DbStress(_) | Workload::Ipc(_) => true,
        };
        if !is_bound || !hosts.are_others() {
            return hosts.check();
        }
        Err(LabError::new(
            "--node goes with ior, mdtest, bonnie, block and io500-like, without -a collective, \
             --tool and --flow-...",
        ))
    }

    pub fn name(&self) -> &'static str {
        match self {
            Workload::Ior(_) => "ior",
            Workload::Mdtest(_) => "mdtest",
            Workload::Bonnie(_) => "bonnie",
            Workload::Block(_) => "block",
            Workload::DbStress(_) => "db-stress",
            Workload::Ipc(_) => "ipc",
            Workload::Io500(_) => "io500-like",
        }
    }

    pub fn processes(&self) -> usize {
        match self {
            Workload::Ior(ior) => ior.np,
            Workload::Mdtest(mdtest) => mdtest.np,
            Workload::Bonnie(bonnie) => bonnie.np,
            Workload::Block(block) => block.np,
            Workload::DbStress(_) => 1,
            Workload::Ipc(_) => 2,
            Workload::Io500(io500) => io500.np,
        }
    }

    pub fn repetitions(&self) -> u64 {
        match self {
            Workload::Ior(ior) => ior.repetitions,
            Workload::Mdtest(mdtest) => mdtest.repetitions,
            Workload::Bonnie(bonnie) => bonnie.repetitions,
            Workload::Block(block) => block.repetitions,
            Workload::DbStress(db) => db.repetitions,
            Workload::Ipc(ipc) => ipc.repetitions,
            Workload::Io500(io500) => io500.repetitions,
        }
    }

    pub fn phases(&self) -> Vec<Phase> {
        match self {
            Workload::Ior(ior) => ior.phases(),
            Workload::Mdtest(mdtest) => mdtest.phases(),
            Workload::Bonnie(bonnie) => bonnie.phases(),
            Workload::Block(block) => block.phases(),
            Workload::DbStress(db) => db.phases(),
            Workload::Ipc(ipc) => ipc.phases(),
            Workload::Io500(io500) => io500.phases(),
        }
    }

    /// Bytes that its files take at most.
    pub fn space(&self) -> u64 {
        match self {
            Workload::Ior(ior) => ior.bytes().unwrap_or(u64::MAX),
            Workload::Mdtest(mdtest) => mdtest.space(),
            Workload::Bonnie(bonnie) => bonnie.bytes(),
            Workload::Block(block) => block.bytes(),
            Workload::DbStress(db) => db.space(),
            Workload::Ipc(_) => 0,
            Workload::Io500(io500) => io500.space(),
        }
    }

    /// What one run of all phases takes time for: bytes, or operations on entries.
    pub fn amount(&self) -> Moved {
        let phases = self.phases().len() as u64 * self.repetitions();
        match self {
            Workload::Ior(ior) => {
                let bytes = ior.bytes().unwrap_or(u64::MAX).saturating_mul(phases);
                Moved { bytes, operations: 0 }
            }
            Workload::Mdtest(mdtest) => {
                Moved { bytes: 0, operations: mdtest.items().saturating_mul(phases) }
            }
            Workload::Bonnie(bonnie) => {
                Moved { bytes: bonnie.bytes().saturating_mul(phases), operations: 0 }
            }
            // Blocks at random places take about as long as those in a row.
            Workload::Block(block) => {
                Moved { bytes: block.bytes().saturating_mul(phases), operations: 0 }
            }
            Workload::DbStress(db) => db.amount(),
            Workload::Ipc(_) => Moved::default(),
            Workload::Io500(io500) => io500.amount(),
        }
    }

    /// What its ranks reach their files through.
    fn through(&self) -> &Through {
        match self {
            Workload::Bonnie(bonnie) => bonnie.through(),
            Workload::Block(block) => block.through(),
            _ => &Through::Directory,
        }
    }

    /// Whether its bytes are at a server that was named, and in no directory.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.through(), Through::Server(_))
    }

    /// What a testbed would have to serve and does not.
    pub(crate) fn lacks(&self, served: Option<Served>) -> Option<Served> {
        match self.through() {
            Through::Testbed(what) if served != Some(*what) => Some(*what),
            _ => None,
        }
    }

    /// Refuses what only a testbed serves where there is none.
    pub(crate) fn check_served(&self, served: &[Server]) -> Result<()> {
        match self.through() {
            Through::Testbed(what) if served.is_empty() => {
                let text = "nothing serves it here: name a server (nbd://HOST/EXPORT), or run a \
                            study with --testbed";
                Err(LabError(format!("{what}: {text}")))
            }
            _ => Ok(()),
        }
    }

    /// Seconds that it takes whatever it moves, where that is asked for.
    pub fn lasts(&self) -> f64 {
        if let Workload::Ipc(ipc) = self { ipc.lasts() } else { 0.0 }
    }

    /// Why it cannot be measured on this machine.
    pub fn obstacle(&self) -> Option<String> {
        match self {
            Workload::Ipc(ipc) => ipc.obstacle(),
            Workload::DbStress(db) => db.obstacle(),
            _ => None,
        }
    }

    /// Whether the workload of that name measures a directory.
    pub fn is_placed(name: &str) -> bool {
        name != "ipc"
    }

    /// Whether all its files lie in a directory that the run makes and removes.
    pub fn is_confined(&self) -> bool {
        !matches!(self, Workload::Ior(ior) if ior.name.is_some())
    }

    /// The seed of a repetition's data: what an earlier one left must not pass for it. Files that
    /// are kept can be read by a later run, which knows only the user's own seed.
    pub(crate) fn seed(&self, repetition: u64) -> u64 {
        match self {
            Workload::Ior(ior) if !self.is_confined() => ior.seed,
            Workload::Ior(ior) => ior.seed.wrapping_add(repetition),
            // A server may have what an earlier run left.
            _ if *self.through() != Through::Directory => {
                repetition.wrapping_add(u64::from(std::process::id()) << 20)
            }
            _ => repetition,
        }
    }

    /// What must be there before the phases.
    pub(crate) fn lay_out(&self, dirs: &[PathBuf]) -> Result<()> {
        match self {
            Workload::Ior(ior) => ior.lay_out(dirs),
            Workload::Mdtest(mdtest) => mdtest.lay_out(dirs),
            Workload::Bonnie(_) | Workload::Block(_) => Ok(()),
            Workload::DbStress(db) => db.lay_out(dirs),
            Workload::Ipc(ipc) => ipc.lay_out(&dirs[0]),
            Workload::Io500(io500) => io500.lay_out(dirs),
        }
    }

    /// Removes what the phases left.
    pub(crate) fn clear(&self, dirs: &[PathBuf]) -> Result<()> {
        match self {
            Workload::Ior(ior) => ior.clear(dirs),
            Workload::Mdtest(mdtest) => mdtest.clear(dirs),
            Workload::Bonnie(bonnie) => remove(&bonnie.paths(&dirs[0])),
            Workload::Block(block) => remove(&block.paths(&dirs[0])),
            Workload::DbStress(db) => db.clear(dirs),
            Workload::Ipc(ipc) => remove(&ipc.paths(&dirs[0])),
            Workload::Io500(io500) => io500.clear(dirs),
        }
    }

    /// One rank's part.
    pub(crate) fn part(self, job: Job) -> Box<dyn Part> {
        match self {
            Workload::Ior(ior) => Box::new(transfer::Transfers::new(ior, job)),
            Workload::Mdtest(mdtest) => Box::new(mdtest::Operations::new(mdtest, job)),
            Workload::Bonnie(bonnie) => Box::new(bonnie::Stream::new(bonnie, job)),
            Workload::Block(block) => Box::new(block::Blocks::new(block, &job)),
            Workload::DbStress(db) => Box::new(database::Client::new(db, job)),
            Workload::Ipc(ipc) => Box::new(ipc::Pair::new(ipc, job)),
            Workload::Io500(io500) => Box::new(io500::Parts::new(&io500, &job)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn parse(line: &str) -> Result<Workload> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        Workload::parse(&words[0], &words[1..])
    }

    #[test]
    fn nonsense_is_one_clear_sentence() {
        let cases = [
            ("iozone", "no workload is named 'iozone'; there are: ior, mdtest, bonnie, block"),
            ("ior -x", "unexpected argument '-x'"),
            ("ior -t", "a value is required for '-t"),
            ("ior -t 3q", "unknown unit"),
            ("ior --np 0", "0 is not in 1..="),
            ("ior -t 2m -b 1m", "-t 2.0 MiB is larger than -b 1.0 MiB"),
            ("ior -t 0", "-t: at least 8 bytes"),
            ("ior -t 12 -b 24", "-t 12 is not a multiple of 8"),
            ("ior -t 1m -b 1536k", "-b 1.5 MiB is not a multiple of -t 1.0 MiB"),
            ("ior --np 64 --total 16m -t 1m", "--total 16.0 MiB leaves no transfer"),
            ("ior -b 1m --total 1m", "cannot be used with"),
            ("ior -b 9000000t --np 9", "too large"),
            ("ior -k", "-k needs -o NAME"),
            ("ior -r", "-r without -w needs -o NAME"),
            ("ior -o a/b", "-o a/b: a file name without directories"),
            ("ior -F --files shared", "cannot be used with"),
            ("mdtest -F -D", "cannot be used with"),
            ("mdtest -n 0", "0 is not in 1.."),
            ("mdtest --total 3 --np 4", "--total 3 leaves no item"),
            ("mdtest -T", "needs -C"),
            ("mdtest -F -w 10 -e 20", "-e 20 reads more than -w 10 writes"),
            ("bonnie -s 1m:3", "a chunk is a multiple of 8"),
            ("mdtest -C -E", "-E needs -e BYTES"),
            ("ior --aggregators 2", "--aggregators needs -a collective"),
            ("ior -a collective -F", "is for a shared file: leave out -F"),
            ("ior -a collective -o x", "goes without --tool and -o"),
            ("ior -a collective --np 9 -t 512m -b 512m", "-t times --np is at most 1.0 GiB"),
            ("ior -a collective -z -t 8 -b 1g", "-z: at most 16777216 transfers"),
            ("ior -a hdf5", "invalid value 'hdf5'"),
            ("ior --tool iozone", "invalid value 'iozone'"),
            ("ior --tool fio -W", "--tool fio has no -s, -W, -R"),
            ("ior --tool ior -R", "--tool ior has no -W, -R"),
            ("mdtest --tool fio", "invalid value 'fio'"),
            ("block -b 100", "-b: a multiple of 512 bytes"),
            ("block -s 100k", "a multiple of 1 MiB"),
            ("block -s 3m -b 2m", "a multiple of 1 MiB, and that of the block"),
            ("block -n 9", "9 is not in 10..="),
            ("block --through http://a/", "'http://a/' is none of directory, nfs"),
            ("bonnie --through nbd://:x/", "':x' is no HOST or HOST:PORT"),
            ("bonnie --tool bonnie++ --warm --through nfs://a/", "leave --through out"),
            ("bonnie --tool bonnie++", "drops no caches: say --warm"),
            ("bonnie --tool bonnie++ --warm --np 2", "is one process: leave --np out"),
            ("bonnie --tool bonnie++ --warm -s 3m:24k", "chunks of a power of two"),
            ("db-stress --rows 0", "0 is not in 5..="),
            ("db-stress --rows 100 --touched 21", "--touched 21: at most a fifth of --rows 100"),
            ("db-stress --commits 20000", "--commits 20000 is more than --touched 10000"),
            ("db-stress --journal memory", "invalid value 'memory'"),
            ("db-stress --engine oracle", "invalid value 'oracle'"),
            ("db-stress --engine postgres --journal wal", "--journal is of SQLite: leave it out"),
            ("db-stress --cache 5t", "--cache is too large"),
            ("io500-like --easy 5k", "--easy 5.0 KiB is not a multiple of 1 MiB"),
            ("io500-like --records 0", "0 is not in 1.."),
            ("ipc -t 3", "-t: at least 4 bytes, at most 64.0 MiB"),
            ("ipc --through mail", "invalid value 'mail'"),
            ("ipc --cores three", "'one', 'two' or two numbers such as 0,3"),
            ("ipc --cores 0,x", "\"x\" is no processor"),
            ("ipc --cores 0,1000000", "--cores 0,1000000: processor 1000000 may not be used"),
            ("ipc --seconds 0", "more than 0, at most 3600"),
        ];
        for (line, told) in cases {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(told), "{line}: {error}");
            assert!(!error.contains('\n'), "{line}: {error}");
        }
    }

    #[test]
    fn each_built_in_study_has_sound_options() {
        for plan in crate::plan::built_in().unwrap() {
            for plan in [plan.quickened(), plan] {
                for point in plan.points().unwrap() {
                    Workload::parse(&plan.workload.name, &plan.options(&point).unwrap()).unwrap();
                }
            }
        }
    }
}
