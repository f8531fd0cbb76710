//! `nuri fs convert`: makes old files lie as new ones would, while programs use them.
//!
//! A file is copied into one without a name that lies as wanted, and then the two exchange what
//! they hold, in one step at the metadata server: inode, names, attributes and open descriptors
//! stay. Where the file was written meanwhile the exchange is refused, and it is copied again.
//! Whatever is interrupted leaves the file as it was; the next call goes on with those that are
//! left.

use std::collections::HashSet;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nuri_proto::layout::Shape;
use rustix::fs::{OFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;
use serde::Serialize;

use super::layout::LAYOUT_ATTRIBUTE;
use super::{AttributeError, attribute, fields, tree};
use crate::Failure;
use crate::cli::Convert;
use crate::logs::plain;
use crate::show::{human, print_json};

/// Shows a file's change counter, and exchanges what two files hold.
const SWAP_ATTRIBUTE: &str = "nuri.swap";
/// So often a file is copied that is written meanwhile.
const TRIES: u32 = 3;
/// Bytes copied at once.
const PART: usize = 1 << 20;
const TELL_EVERY: Duration = Duration::from_secs(1);

/// `nuri fs convert --json`.
#[derive(Default, Serialize)]
struct Done {
    files: u64,
    converted: u64,
    /// That were copied.
    bytes: u64,
    /// That had the layout before.
    as_wanted: u64,
    /// Not converted, why.
    left: Vec<String>,
}

/// Why a file was not converted.
#[derive(Debug, thiserror::Error)]
enum ConvertError {
    #[error(transparent)]
    Layout(#[from] AttributeError),
    #[error("only root, or the user who mounted the space, converts files")]
    NotPermitted,
    #[error("{shape} needs more targets than the space has")]
    TooFewTargets { shape: String },
    #[error("there is no room for a copy of it")]
    NoRoom,
    #[error("it is written all the time: convert it when it is left alone for a while")]
    Busy,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ConvertError {
    /// Of an attempt to give a file this layout.
    fn of(error: io::Error, wanted: &LayoutText) -> ConvertError {
        match Errno::from_io_error(&error) {
            Some(Errno::PERM) => ConvertError::NotPermitted,
            Some(Errno::INVAL) => ConvertError::TooFewTargets { shape: wanted.shape.clone() },
            Some(Errno::NOSPC) => ConvertError::NoRoom,
            _ => ConvertError::Io(error),
        }
    }
}

/// Ends with 1 where a file was not converted.
pub(super) fn run(args: &Convert) -> Result<ExitCode, Failure> {
    // Says where that is no mount.
    attribute(&args.path, SWAP_ATTRIBUTE)?;
    let mut convert = Converter::new(args);
    let walked = tree::walk(&args.path, |path, meta| convert.one(path, meta))?;
    let Converter { mut done, .. } = convert;
    done.files = walked.files;
    done.left = walked.unknown.iter().map(ToString::to_string).collect();
    if args.json {
        print_json(&done)?;
    } else {
        let (converted, wanted) = (done.converted, done.as_wanted);
        println!("{converted} of {} files converted, {}", done.files, human(done.bytes));
        println!("{wanted} had that layout already, {} are left", done.left.len());
        done.left.iter().for_each(|what| eprintln!("nuri: {}", plain(what)));
    }
    Ok(if done.left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Converter {
    shape: Option<Shape>,
    rate: Rate,
    done: Done,
    /// Of files with several names, those that were looked at.
    seen: HashSet<u64>,
}

/// The layout of a file, or of new files of a directory, as the mount writes it.
#[derive(PartialEq, Eq)]
struct LayoutText {
    shape: String,
    chunk_size: String,
    /// Of a directory: groups of a new file. Of a file it says nothing about what is wanted.
    width: String,
}

impl LayoutText {
    fn of(path: &Path) -> Result<LayoutText, AttributeError> {
        let text = attribute(path, LAYOUT_ATTRIBUTE)?;
        let fields = fields(&text);
        let field = |name| fields.get(name).map(|value| (*value).to_owned()).unwrap_or_default();
        let [shape, chunk_size, width] = ["shape", "chunk_size", "width"].map(field);
        Ok(LayoutText { shape, chunk_size, width })
    }

    fn is_as(&self, wanted: &LayoutText) -> bool {
        (&self.shape, &self.chunk_size) == (&wanted.shape, &wanted.chunk_size)
    }
}

impl Converter {
    fn new(args: &Convert) -> Converter {
        let (done, seen) = Default::default();
        Converter { shape: args.shape, rate: Rate::new(args.rate), done, seen }
    }

    fn one(&mut self, path: &Path, meta: &Metadata) -> Result<(), ConvertError> {
        if meta.nlink() > 1 && !self.seen.insert(meta.ino()) {
            return Ok(());
        }
        let dir = path.parent().unwrap_or(Path::new("/"));
        let mut wanted = LayoutText::of(dir)?;
        if let Some(shape) = self.shape {
            wanted.shape = shape.to_string();
        }
        if LayoutText::of(path)?.is_as(&wanted) {
            self.done.as_wanted += 1;
            return Ok(());
        }
        for _ in 0..TRIES {
            let attempt = self.attempt(path, dir, &wanted);
            if attempt.map_err(|error| ConvertError::of(error, &wanted))? {
                self.done.converted += 1;
                return Ok(());
            }
        }
        Err(ConvertError::Busy)
    }

    /// Copies and exchanges. False: it was written meanwhile.
    fn attempt(&mut self, path: &Path, dir: &Path, wanted: &LayoutText) -> io::Result<bool> {
        let file = File::open(path)?;
        file.sync_all()?;
        let change = text_of(&file, SWAP_ATTRIBUTE)?;
        let mut copy = OpenOptions::new();
        copy.read(true).write(true).mode(0o600).custom_flags(OFlags::TMPFILE.bits() as i32);
        let copy = copy.open(dir)?;
        let LayoutText { shape, chunk_size, width } = wanted;
        let layout = format!("shape={shape} chunk_size={chunk_size} width={width}");
        rustix::fs::fsetxattr(&copy, LAYOUT_ATTRIBUTE, layout.as_bytes(), XattrFlags::empty())?;
        self.copy(path, &file, &copy)?;
        copy.sync_all()?;
        let exchange = format!("with={} change={change}", copy.metadata()?.ino());
        let outcome =
            rustix::fs::fsetxattr(&file, SWAP_ATTRIBUTE, exchange.as_bytes(), XattrFlags::empty());
        match outcome {
            // It has another size, or was written since.
            Err(Errno::BUSY | Errno::INVAL) => Ok(false),
            outcome => outcome.map(|()| true).map_err(io::Error::from),
        }
    }

    /// Holes stay holes.
    fn copy(&mut self, path: &Path, from: &File, to: &File) -> io::Result<()> {
        let size = from.metadata()?.len();
        to.set_len(size)?;
        let (mut part, mut at, mut told) = (vec![0; PART], 0, Instant::now());
        while at < size {
            let data = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => break,
                outcome => outcome?,
            };
            let hole = rustix::fs::seek(from, SeekFrom::Hole(data))?;
            at = data;
            while at < hole {
                let len = part.len().min((hole - at) as usize);
                let len = from.read_at(&mut part[..len], at)?;
                if len == 0 {
                    return Ok(());
                }
                to.write_all_at(&part[..len], at)?;
                at += len as u64;
                self.done.bytes += len as u64;
                self.rate.spend(len as u64);
                if told.elapsed() > TELL_EVERY && io::stderr().is_terminal() {
                    told = Instant::now();
                    let name = path.display().to_string();
                    eprint!("\r{} of {}: {} ", human(at), human(size), plain(&name));
                }
            }
        }
        Ok(())
    }
}

fn text_of(file: &File, name: &str) -> io::Result<String> {
    let mut buf = [0; 64];
    let len = rustix::fs::fgetxattr(file, name, &mut buf)?;
    Ok(String::from_utf8_lossy(&buf[..len]).into_owned())
}

/// Bytes per second, at most.
struct Rate {
    rate: u64,
    since: Instant,
    spent: u64,
}

impl Rate {
    fn new(rate: u64) -> Rate {
        Rate { rate: rate.max(1), since: Instant::now(), spent: 0 }
    }

    fn spend(&mut self, bytes: u64) {
        self.spent += bytes;
        let due = Duration::from_secs_f64(self.spent as f64 / self.rate as f64);
        std::thread::sleep(due.saturating_sub(self.since.elapsed()));
    }
}
