//! `nuri fs`: mounts, and what can be asked and changed of files on them.

mod convert;
mod df;
mod layout;
mod lost;
pub(super) mod mount;
mod tree;
mod umount;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nuri_rpc::Secret;
use rustix::io::Errno;

use crate::Failure;
use crate::cli::{Fs, Layout, Mount};
use crate::space::Space;

pub(crate) use umount::sync_mount;

pub(crate) fn run(fs: Fs) -> Result<ExitCode, Failure> {
    let done = match fs {
        Fs::Mount(args) if args.foreground => mount::run(&args),
        Fs::Mount(args) => mount::in_background(&args),
        Fs::Umount(args) => umount::run(&args),
        Fs::Layout(Layout::Get { path, json }) => layout::get(&path, json),
        Fs::Layout(Layout::Set { path, chunk_size, width, shape }) => {
            layout::set(&path, chunk_size, width, shape)
        }
        Fs::Tune(tune) => super::tune::run(tune),
        Fs::Df(args) => df::run(&args),
        Fs::Lost(args) => return lost::run(&args),
        Fs::Convert(args) => return convert::run(&args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Where a space is and how to prove that we may use it.
fn resolve(args: &Mount) -> Result<(String, Secret), Failure> {
    let dir = Path::new(&args.space);
    let token = |default: PathBuf| args.token_file.clone().unwrap_or(default);
    if dir.is_dir() {
        let space = Space::at(dir);
        let secret = Secret::load(&token(space.token_path())).map_err(Failure::new)?;
        return Ok((space.address()?, secret.for_mounts()));
    }
    let address = args.space.to_string_lossy();
    if !address.contains(':') {
        let text = format!("{address} is neither a space's directory nor HOST:PORT");
        return Err(Failure(text));
    }
    let Some(file) = &args.token_file else {
        return Err(Failure("mounting by address needs --token-file".into()));
    };
    Ok((address.into_owned(), Secret::load(file).map_err(Failure::new)?.for_mounts()))
}

/// Why no mount answers for a path.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttributeError {
    #[error("{} does not exist", .0.display())]
    NoPath(PathBuf),
    #[error("{} is not on a mounted space", .0.display())]
    NotMounted(PathBuf),
}

impl From<AttributeError> for Failure {
    fn from(error: AttributeError) -> Failure {
        Failure::new(error)
    }
}

/// What a mount says of itself, or of a file.
pub(super) fn attribute(path: &Path, name: &str) -> Result<String, AttributeError> {
    let mut buf = vec![0; 64 << 10];
    let read = rustix::fs::getxattr(path, name, &mut buf);
    let len = read.map_err(|errno| match errno {
        Errno::NOENT => AttributeError::NoPath(path.into()),
        _ => AttributeError::NotMounted(path.into()),
    })?;
    Ok(String::from_utf8_lossy(&buf[..len]).into_owned())
}

/// What an attribute of a mount shows: `key=value`, apart by spaces.
pub(super) fn fields(text: &str) -> BTreeMap<&str, &str> {
    text.split_whitespace().filter_map(|w| w.split_once('=')).collect()
}
