//! The command-line arguments of `nuri fs`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use nuri_fuse::Transport;
use nuri_proto::layout::Shape;
use nuri_proto::size::{SizeError, parse as parse_size};
use nuri_volume::transfer;

use super::DEFAULT_DIR;

#[derive(Subcommand)]
pub(crate) enum Fs {
    /// Mount a space
    Mount(Mount),
    /// Unmount
    Umount(Umount),
    /// Show or set how files are spread over targets
    #[command(subcommand)]
    Layout(Layout),
    /// Show or force how a mount moves bulk data: flow buffers, reading ahead, writing behind
    #[command(subcommand, alias = "flow")]
    Tune(Tune),
    /// Show capacity by target
    Df(Df),
    /// List files below a path that cannot be read whole now, and how many bytes of each
    Lost(Lost),
    /// Convert existing files to the layout of new files, while programs use them
    Convert(Convert),
}

#[derive(Args)]
pub(crate) struct Mount {
    /// The space: the directory given to `up`, or HOST:PORT of its first node
    pub(crate) space: OsString,
    /// An empty directory; created if it does not exist
    pub(crate) mountpoint: PathBuf,
    /// File with the space's secret (needed with HOST:PORT)
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// How the kernel passes requests to the mount: auto (uring where available), classic, uring
    ///
    /// uring is FUSE over io_uring. It is quicker, and needs Linux 6.14 and fuse.enable_uring=Y.
    /// auto and uring set that parameter themselves (as root). Mounts that `up` makes take the
    /// environment variable.
    #[arg(long, env = "NURI_TRANSPORT", default_value = "auto", verbatim_doc_comment)]
    pub(crate) transport: Transport,
    /// Files and directories that the mount caches, at most, beside those that programs use
    ///
    /// Each one costs about half a KiB of memory in the mount and one KiB in the kernel. The bound
    /// needs Linux 6.18; an earlier kernel forgets inodes only when it needs memory. Mounts that
    /// `up` makes take the environment variable.
    #[arg(long, value_name = "N", env = "NURI_INODES", default_value_t = 200_000,
        value_parser = clap::value_parser!(u32).range(100..))]
    pub(crate) inodes: u32,
    /// Let programs on the mount run with the rights of their owner (setuid)
    #[arg(long)]
    pub(crate) suid: bool,
    /// Let programs open device files on the mount
    #[arg(long)]
    pub(crate) dev: bool,
    /// Refuse to start programs on the mount
    #[arg(long)]
    pub(crate) noexec: bool,
    /// Do not change access times on reads
    #[arg(long)]
    pub(crate) noatime: bool,
    /// Source that the table of mounts shows
    #[arg(long, value_name = "TEXT", default_value = "nuri", hide = true)]
    pub(crate) source: String,
    /// Refuse all changes through this mount
    #[arg(long)]
    pub(crate) ro: bool,
    /// Seconds to wait for the first node to answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) wait: u16,
    /// Stay in the foreground
    #[arg(long)]
    pub(crate) foreground: bool,
}

impl Mount {
    pub(crate) fn wait(&self) -> Duration {
        Duration::from_secs(self.wait.into())
    }

    /// The same options with absolute paths; relative ones are taken from `dir`.
    pub(crate) fn said_in(self, dir: &Path) -> Mount {
        let absolute = |path: &Path| {
            let path = dir.join(path);
            std::path::absolute(&path).unwrap_or(path)
        };
        let space = absolute(Path::new(&self.space));
        let space = if space.is_dir() { space.into() } else { self.space };
        let token_file = self.token_file.as_deref().map(absolute);
        Mount { space, mountpoint: absolute(&self.mountpoint), token_file, ..self }
    }
}

#[derive(Args)]
pub(crate) struct Umount {
    pub(crate) mountpoint: PathBuf,
    /// Detach at once, even while programs use the mount
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Subcommand)]
pub(crate) enum Layout {
    /// Show the layout of a file, or the layout that a directory's new files inherit
    Get {
        path: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Set the layout that a directory's new files inherit
    Set {
        path: PathBuf,
        /// Bytes per chunk, a power of two from 64K to 64M
        #[arg(long, value_parser = parse_size)]
        chunk_size: Option<u64>,
        /// Number of groups over which a file's stripes rotate (0: all)
        #[arg(long)]
        width: Option<u16>,
        /// stripe, mirror:N (N copies) or parity:K+M (K data and M parity members)
        #[arg(long)]
        shape: Option<Shape>,
    },
}

#[derive(Subcommand)]
pub(crate) enum Tune {
    /// Show the forced settings, the settings in use, and what the network paths carry
    Get {
        /// A mount, or anything in it
        path: PathBuf,
        #[arg(long)]
        json: bool,
    },
    /// Force a setting, until it is set to auto or the mount ends
    ///
    /// A mount fits its flow buffers to what the network path carries, and the other settings suit
    /// most programs. Force a setting to measure (nuri lab tune), or for a program with other
    /// needs.
    Set(TuneSet),
}

#[derive(Args)]
pub(crate) struct TuneSet {
    /// A mount, or anything in it
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) overrides: Overrides,
}

#[derive(Args)]
pub(crate) struct Overrides {
    /// Bytes of a flow buffer, a power of two from 64K to 1M, or auto
    #[arg(long, value_name = "SIZE", value_parser = parse_buffer)]
    pub(crate) buffer: Option<Override>,
    /// Flow buffers in flight at once, and so the number of writing threads, from 1 to 8, or auto
    #[arg(long, value_name = "N", value_parser = parse_streams)]
    pub(crate) streams: Option<Override>,
    /// Bytes to read ahead, a multiple of 64K up to 8M, or auto; for files opened later
    #[arg(long, value_name = "SIZE", value_parser = parse_ahead)]
    pub(crate) read_ahead: Option<Override>,
    /// Bytes to buffer for writing, from 4M to 256M, or auto
    #[arg(long, value_name = "SIZE", value_parser = parse_behind)]
    pub(crate) write_behind: Option<Override>,
    /// Threads that read ahead for programs that bypass the kernel's cache, from 1 to 8, or auto
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub(crate) threads: Option<Override>,
}

/// A forced number; `None` is the word `auto`.
#[derive(Clone, Copy)]
pub(crate) struct Override(pub(crate) Option<u64>);

#[derive(Args)]
pub(crate) struct Lost {
    /// A directory or file on a mounted space
    pub(crate) path: PathBuf,
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Convert {
    /// A directory or file on a mounted space
    pub(crate) path: PathBuf,
    /// stripe, mirror:N or parity:K+M (default: what each file's directory sets for new files)
    #[arg(long)]
    pub(crate) shape: Option<Shape>,
    /// Bytes per second to copy, at most
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    pub(crate) rate: u64,
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Df {
    /// The space's directory, a path on a mounted space, or HOST:PORT of the first node
    #[arg(default_value = DEFAULT_DIR)]
    pub(crate) space: PathBuf,
    /// File with the space's secret (needed with HOST:PORT)
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    #[arg(long)]
    pub(crate) json: bool,
}

const AUTO: &str = "auto";

/// Why the value of an option of `nuri fs tune set` is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum OverrideError {
    #[error(transparent)]
    Size(#[from] SizeError),
    #[error("{0:?} is neither a number nor \"auto\"")]
    Number(String),
    #[error("{bounds}, or auto")]
    OutOfBounds { bounds: &'static str },
}

fn parse_buffer(text: &str) -> Result<Override, OverrideError> {
    choice(text, parse_size, transfer::is_size, "a power of two from 64K to 1M")
}

fn parse_streams(text: &str) -> Result<Override, OverrideError> {
    choice(text, parse_count, transfer::is_count, "from 1 to 8")
}

fn parse_ahead(text: &str) -> Result<Override, OverrideError> {
    choice(text, parse_size, transfer::is_ahead, "a multiple of 64K up to 8M")
}

fn parse_behind(text: &str) -> Result<Override, OverrideError> {
    choice(text, parse_size, transfer::is_behind, "from 4M to 256M")
}

fn parse_threads(text: &str) -> Result<Override, OverrideError> {
    choice(text, parse_count, transfer::is_crew, "from 1 to 8")
}

/// A number within its bounds, or `auto`.
fn choice<T: TryFrom<u64> + Copy, E: Into<OverrideError>>(
    text: &str,
    parse: fn(&str) -> Result<u64, E>,
    is_good: fn(T) -> bool,
    bounds: &'static str,
) -> Result<Override, OverrideError> {
    if text == AUTO {
        return Ok(Override(None));
    }
    let number = parse(text).map_err(Into::into)?;
    match T::try_from(number) {
        Ok(small) if is_good(small) => Ok(Override(Some(number))),
        _ => Err(OverrideError::OutOfBounds { bounds }),
    }
}

fn parse_count(text: &str) -> Result<u64, OverrideError> {
    text.parse().map_err(|_| OverrideError::Number(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bounds that sentences name are those that a mount obeys.
    #[test]
    fn settings_of_a_mount_have_bounds() {
        let number =
            |parsed: Result<Override, OverrideError>| parsed.ok().and_then(|choice| choice.0);
        assert_eq!(number(parse_behind("4M")), Some(transfer::LEAST_BEHIND));
        assert_eq!(number(parse_behind("256M")), Some(transfer::MOST_BEHIND));
        assert_eq!(number(parse_ahead("8M")), Some(transfer::MOST_AHEAD.into()));
        assert_eq!(number(parse_ahead("64K")), Some(transfer::AHEAD_STEP.into()));
        assert_eq!(number(parse_threads("8")), Some(transfer::MOST_THREADS.into()));
        assert_eq!(number(parse_streams("8")), Some(transfer::MOST_STREAMS.into()));
        assert_eq!(number(parse_ahead("0")), Some(0));
        for odd in ["3M", "257M", "x"] {
            assert!(parse_behind(odd).is_err(), "{odd}");
        }
        assert!(parse_ahead("65k").is_err() && parse_ahead("9M").is_err());
        assert!(parse_threads("9").is_err() && parse_streams("many").is_err());
        assert!(parse_threads("auto").is_ok_and(|choice| choice.0.is_none()));
    }
}
