//! IOR's options: which bytes of which file each rank writes and reads.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;
use nuri_proto::size::{self, human};
use serde::{Deserialize, Serialize};

use super::flow::FlowBuffers;
use super::striping::Striping;
use super::{LARGEST, Phase, library};
use crate::tool;
use crate::{LabError, Result, at, work};

const DEFAULT_BLOCK: u64 = 1 << 20;
const WORD: u64 = 8;
/// What O_DIRECT wants of lengths and places.
const ALIGN: u64 = 4096;
/// Each rank that goes together with others has the places of all in memory.
const MOST_SHUFFLED: u64 = 1 << 24;

#[derive(Args, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ior {
    /// How the ranks reach the file
    #[arg(short = 'a', value_enum, value_name = "API", default_value_t = Api::Posix,
        ignore_case = true)]
    api: Api,
    /// Ranks that write and read for all (default: one for each directory)
    #[arg(long, value_name = "N", value_parser = super::processes)]
    aggregators: Option<usize>,
    /// The space's token, for -a library
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = super::processes)]
    pub np: usize,
    /// Bytes of one transfer, e.g. 16k, 2m
    #[arg(short = 't', value_name = "SIZE", default_value = "256k", value_parser = size::parse)]
    pub transfer: u64,
    /// Contiguous bytes of each process in each segment (default 1m)
    #[arg(short = 'b', value_name = "SIZE", value_parser = size::parse)]
    block: Option<u64>,
    /// Bytes of all processes and segments together; sets -b
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "block")]
    total: Option<u64>,
    /// Number of segments; in each, every process has its block
    #[arg(short = 's', value_name = "N", default_value_t = 1)]
    segments: u64,
    /// A file for each process
    #[arg(short = 'F')]
    own_files: bool,
    /// The same as -F, in words: own (as -F) or shared
    #[arg(long, value_enum, conflicts_with = "own_files")]
    files: Option<Files>,
    /// Read what the next process wrote; where several directories are given, through another one
    #[arg(short = 'C')]
    pub reorder: bool,
    /// Sync before a file is closed; the time of the sync counts
    #[arg(short = 'e')]
    pub sync: bool,
    /// Write (default: write and read)
    #[arg(short = 'w')]
    write: bool,
    /// Read
    #[arg(short = 'r')]
    read: bool,
    /// Keep the files
    #[arg(short = 'k')]
    keep: bool,
    /// Do the transfers in random order
    #[arg(short = 'z')]
    pub random: bool,
    /// Repetitions of all phases
    #[arg(short = 'i', value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    pub repetitions: u64,
    /// Name of the file in the directory (default: one in a directory of the run)
    #[arg(short = 'o', value_name = "NAME")]
    pub name: Option<String>,
    /// Check every byte after writing (not timed)
    #[arg(short = 'W')]
    verify_write: bool,
    /// Check every byte that is read (timed; by default only the ends of each transfer are checked)
    #[arg(short = 'R')]
    pub verify_read: bool,
    /// Seed of the data
    #[arg(short = 'G', value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Read without dropping caches first
    #[arg(long)]
    pub warm: bool,
    /// Bypass the kernel's cache (O_DIRECT)
    #[arg(long)]
    pub direct: bool,
    /// Let another program do the work: fio, or IOR itself
    #[arg(long, value_name = "PROGRAM", value_parser = [tool::fio::NAME, tool::ior::NAME])]
    pub tool: Option<String>,
    #[command(flatten)]
    striping: Striping,
    #[command(flatten)]
    flow: FlowBuffers,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Files {
    Own,
    Shared,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Api {
    /// Each rank by itself
    Posix,
    /// All ranks together, in two phases as in MPI-IO: few ranks write and read for all
    Collective,
    /// Each rank by itself, by Nuri's library instead of the kernel
    Library,
}

impl Ior {
    pub(super) fn check(&self) -> Result<()> {
        let t = self.transfer;
        let refuse = |text: String| Err(LabError(text));
        if !(WORD..=LARGEST).contains(&t) {
            return refuse(format!("-t: at least {WORD} bytes, at most {}", human(LARGEST)));
        }
        let b = self.block();
        if !t.is_multiple_of(WORD) {
            return refuse(format!("-t {t} is not a multiple of {WORD}"));
        }
        if let (Some(total), 0) = (self.total, b) {
            let total = human(total);
            return refuse(format!("--total {total} leaves no transfer to some process"));
        }
        if t > b {
            return refuse(format!("-t {} is larger than -b {}", human(t), human(b)));
        }
        if !b.is_multiple_of(t) {
            return refuse(format!("-b {} is not a multiple of -t {}", human(b), human(t)));
        }
        if self.segments == 0 {
            return refuse("-s: at least 1".into());
        }
        if self.bytes().is_none_or(|bytes| bytes > i64::MAX as u64) {
            return refuse("-b, -s and --np together are too large for any file system".into());
        }
        self.check_tool()?;
        if self.direct && !t.is_multiple_of(ALIGN) {
            return refuse(format!("--direct: -t {t} is not a multiple of {ALIGN}"));
        }
        if self.direct && (self.tool.is_some() || self.api != Api::Posix) {
            return refuse("--direct goes without --tool and -a".into());
        }
        self.check_api()?;
        self.check_name()
    }

    fn check_tool(&self) -> Result<()> {
        let verifies = self.verify_write || self.verify_read;
        match self.tool.as_deref() {
            Some(tool::fio::NAME) if self.segments > 1 || verifies => {
                Err(LabError::new("--tool fio has no -s, -W, -R"))
            }
            Some(tool::ior::NAME) if verifies => Err(LabError::new("--tool ior has no -W, -R")),
            _ => Ok(()),
        }
    }

    fn check_api(&self) -> Result<()> {
        if self.aggregators.is_some() && self.api != Api::Collective {
            return Err(LabError::new("--aggregators needs -a collective"));
        }
        if self.token_file.is_some() && self.api != Api::Library {
            return Err(LabError::new("--token-file needs -a library"));
        }
        match self.api {
            Api::Posix => Ok(()),
            Api::Collective => self.check_collective(),
            Api::Library => self.check_library(),
        }
    }

    fn check_library(&self) -> Result<()> {
        let refuse = |text: &str| Err(LabError::new(text));
        if self.token_file.is_none() {
            return refuse("-a library needs --token-file FILE, the file `token` of the space");
        }
        if self.warm || self.tool.is_some() || self.flow.is_asked() {
            return refuse("-a library goes without --warm, --tool and --flow-...");
        }
        Ok(())
    }

    fn check_collective(&self) -> Result<()> {
        let refuse = |text: &str| Err(LabError::new(text));
        if self.has_own_files() {
            return refuse("-a collective is for a shared file: leave out -F");
        }
        if self.tool.is_some() || self.name.is_some() {
            return refuse("-a collective goes without --tool and -o");
        }
        if self.transfer.saturating_mul(self.np as u64) > LARGEST {
            let most = human(LARGEST);
            return Err(LabError(format!("-a collective: -t times --np is at most {most}")));
        }
        let transfers = self.bytes().unwrap_or(u64::MAX) / self.transfer;
        if self.random && transfers > MOST_SHUFFLED {
            return Err(LabError(format!("-a collective -z: at most {MOST_SHUFFLED} transfers")));
        }
        Ok(())
    }

    /// Ranks that write and read for all, where all go together.
    pub(super) fn together(&self, dirs: usize) -> Option<usize> {
        let is_asked = self.api == Api::Collective;
        is_asked.then(|| self.aggregators.unwrap_or(dirs).min(self.np))
    }

    /// The token of the space whose library is used.
    pub(super) fn by_library(&self) -> Option<&Path> {
        self.token_file.as_deref()
    }

    /// Whether each rank reads what came through another mount: through another directory, or on
    /// another of the machines that take turns.
    pub(crate) fn crosses(&self, dirs: usize, hosts: usize) -> bool {
        self.reorder && (dirs > 1 || hosts > 1 && !(self.np - 1).is_multiple_of(hosts))
    }

    /// Whether all ranks must be on this machine.
    pub(super) fn is_bound(&self) -> bool {
        self.api == Api::Collective || self.tool.is_some() || self.flow.is_asked()
    }

    fn check_name(&self) -> Result<()> {
        let Some(name) = &self.name else {
            let reads_only = self.read && !self.write;
            return match (self.keep, reads_only) {
                (true, _) => Err(LabError::new(
                    "-k needs -o NAME: other files lie in a directory that the run removes",
                )),
                (_, true) => Err(LabError::new("-r without -w needs -o NAME, a file that -k kept")),
                _ => Ok(()),
            };
        };
        if self.striping.is_asked() {
            return Err(LabError::new("--stripe-... is for the run's own directory: leave out -o"));
        }
        match Path::new(name).file_name() {
            Some(file) if file == name.as_str() => Ok(()),
            _ => Err(LabError(format!("-o {name}: a file name without directories"))),
        }
    }

    /// Bytes in a row.
    pub(crate) fn block(&self) -> u64 {
        let Some(total) = self.total else { return self.block.unwrap_or(DEFAULT_BLOCK) };
        let parts = (self.np as u64).saturating_mul(self.segments.max(1));
        total / parts / self.transfer * self.transfer
    }

    /// Of all ranks; none where no number holds it.
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.block().checked_mul(self.segments)?.checked_mul(self.np as u64)
    }

    pub(crate) fn segments(&self) -> u64 {
        self.segments
    }

    pub(crate) fn has_own_files(&self) -> bool {
        self.own_files || self.files == Some(Files::Own)
    }

    fn writes(&self) -> bool {
        self.write || !self.read
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        let reads = self.read || !self.write;
        let all = [
            (self.writes(), Phase::Write),
            (self.writes() && self.verify_write, Phase::Verify),
            (reads, Phase::Read),
        ];
        all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, phase)| phase).collect()
    }

    /// The file with a rank's data.
    pub(crate) fn path(&self, dir: &Path, rank: usize) -> PathBuf {
        let mut path = self.base(dir).into_os_string();
        if self.has_own_files() {
            path.push(format!(".{rank:08}"));
        }
        path.into()
    }

    /// The file's path, without what tells ranks apart.
    pub(crate) fn base(&self, dir: &Path) -> PathBuf {
        dir.join(self.name.as_deref().unwrap_or("data"))
    }

    /// Where a rank's transfers begin in its file, in order.
    pub(crate) fn offsets(&self, rank: usize) -> impl Iterator<Item = u64> + use<> {
        let (block, transfer) = (self.block(), self.transfer);
        let (blocks, own) =
            if self.has_own_files() { (1, 0) } else { (self.np as u64, rank as u64) };
        (0..self.segments).flat_map(move |segment| {
            let from = (segment * blocks + own) * block;
            (0..block / transfer).map(move |i| from + i * transfer)
        })
    }

    /// All files.
    pub(crate) fn paths(&self, dir: &Path) -> Vec<PathBuf> {
        let files = if self.has_own_files() { self.np } else { 1 };
        (0..files).map(|rank| self.path(dir, rank)).collect()
    }

    /// The run's directory, before its files. A file that is there is somebody's.
    pub(super) fn lay_out(&self, dirs: &[PathBuf]) -> Result<()> {
        if let Some(token) = self.by_library() {
            library::prepare(dirs, token)?;
        }
        self.striping.set(&dirs[0])?;
        if self.api == Api::Collective {
            let private = work::private(dirs);
            let mode = std::fs::DirBuilder::new().mode(0o700).create(&private);
            mode.map_err(at(private.display()))?;
        }
        let taken = self.paths(&dirs[0]).into_iter().find(|path| path.exists());
        match taken.filter(|_| self.writes()) {
            Some(path) => Err(LabError(format!(
                "{} exists: remove it, or read it with -r alone",
                path.display()
            ))),
            None => self.flow.force(dirs),
        }
    }

    /// What was only read stays.
    pub(super) fn clear(&self, dirs: &[PathBuf]) -> Result<()> {
        self.flow.release(dirs)?;
        if self.api == Api::Collective {
            work::remove(&work::private(dirs));
        }
        if self.keep || !self.writes() {
            return Ok(());
        }
        super::remove(&self.paths(&dirs[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Workload;
    use super::super::tests::parse;
    use super::*;

    fn ior(options: &str) -> Ior {
        match parse(&format!("ior {options}")).unwrap() {
            Workload::Ior(ior) => ior,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_shared_file_is_segments_of_blocks_of_transfers() {
        let shared = ior("--np 2 -t 8 -b 16 -s 2");
        let places: Vec<Vec<u64>> = (0..2).map(|rank| shared.offsets(rank).collect()).collect();
        assert_eq!(places, [[0, 8, 32, 40], [16, 24, 48, 56]]);
        assert_eq!(shared.path(Path::new("/d"), 1), Path::new("/d/data"));
        let own = ior("--np 2 -t 8 -b 16 -s 2 -F -o x");
        assert_eq!(own.offsets(1).collect::<Vec<_>>(), [0, 8, 16, 24]);
        assert_eq!(own.path(Path::new("/d"), 1), Path::new("/d/x.00000001"));
        assert_eq!(own.bytes(), Some(64));
    }

    #[test]
    fn a_total_is_shared_out_in_whole_transfers() {
        assert_eq!(ior("--np 3 --total 16m -t 1m").block(), 5 << 20);
        assert_eq!(ior("--np 3 --total 16m -t 1m --files own").bytes(), Some(15 << 20));
    }

    #[test]
    fn phases_are_those_asked_for() {
        assert_eq!(ior("").phases(), [Phase::Write, Phase::Read]);
        assert_eq!(ior("-w -W").phases(), [Phase::Write, Phase::Verify]);
        assert_eq!(ior("-r -o x").phases(), [Phase::Read]);
    }

    #[test]
    fn files_of_others_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().to_path_buf()];
        std::fs::write(dir.path().join("x"), "dear").unwrap();
        let error = ior("-w -o x").lay_out(&dirs).unwrap_err().to_string();
        assert!(error.contains("exists: remove it"), "{error}");
        let reads = ior("-r -o x");
        reads.lay_out(&dirs).unwrap();
        reads.clear(&dirs).unwrap();
        assert!(dir.path().join("x").exists());
    }
}
