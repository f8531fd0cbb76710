//! Disks of this machine that NBD servers on other machines may use. These servers connect to this
//! machine's door ([`crate::peer::Door`]).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::device::{Device, OpenError, Writes};
use crate::export::{About, Export};
use crate::peer::{Door, Token};
use crate::server::{Limits, Listener, Server};

/// How long an opened disk waits for who asked for it.
const WAIT: Duration = Duration::from_secs(10);
const LIMITS: Limits = Limits { connections: 1024, in_flight: 64 };

/// Which disks other machines may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Allowed {
    None,
    All,
    Some(Vec<PathBuf>),
}

/// A word that says no disk.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no path of a disk: say all, none, or paths such as /dev/sdb,/dev/sdc")]
pub struct NoPath(String);

impl FromStr for Allowed {
    type Err = NoPath;

    fn from_str(text: &str) -> Result<Allowed, NoPath> {
        let path = |word: &str| {
            let path = PathBuf::from(word);
            if path.is_absolute() { Ok(path) } else { Err(NoPath(word.into())) }
        };
        match text {
            "all" => Ok(Allowed::All),
            "none" => Ok(Allowed::None),
            text => text.split(',').map(path).collect::<Result<_, _>>().map(Allowed::Some),
        }
    }
}

impl Allowed {
    /// Links in `/dev/disk` lead to disks too.
    fn has(&self, path: &Path) -> bool {
        let real = |path: &Path| path.canonicalize().ok();
        match self {
            Allowed::None => false,
            Allowed::All => true,
            Allowed::Some(paths) => {
                let asked = real(path);
                let is_it = |own: &PathBuf| own == path || asked.is_some() && real(own) == asked;
                paths.iter().any(is_it)
            }
        }
    }
}

/// Why a disk is not given to another machine.
#[derive(Debug, thiserror::Error)]
pub enum GiveError {
    #[error("{0} is not given to other machines: start the node with --export-disks {0}")]
    NotAllowed(String),
    #[error("{0} is served to another machine already, and not for writing")]
    ReadOnly(String),
    #[error("{0}")]
    Open(#[from] OpenError),
    #[error("the door for other machines cannot be opened: {0}")]
    Door(#[from] io::Error),
}

/// A disk that was opened for another machine.
pub struct Given {
    pub port: u16,
    pub token: Token,
    pub about: About,
}

/// See the module's text.
pub struct GivenDisks {
    allowed: Allowed,
    ip: IpAddr,
    /// Opened when it is first needed.
    door: Mutex<Option<(Arc<Door>, u16)>>,
    open: Mutex<HashMap<PathBuf, Weak<Device>>>,
}

impl GivenDisks {
    /// Other machines reach this one at the address.
    pub fn new(allowed: Allowed, ip: IpAddr) -> GivenDisks {
        GivenDisks { allowed, ip, door: Mutex::default(), open: Mutex::default() }
    }

    /// Whether other machines may use the disk.
    pub fn is_given(&self, path: &Path) -> bool {
        self.allowed.has(path)
    }

    /// Opens a disk, for as long as somebody is connected, and for some seconds until then.
    ///
    /// # Errors
    /// Why it is not given.
    pub fn open(&self, path: &Path, writes: Writes) -> Result<Given, GiveError> {
        let shown = path.display().to_string();
        if !self.allowed.has(path) {
            return Err(GiveError::NotAllowed(shown));
        }
        let (door, port) = self.door()?;
        let device = self.device(path, writes)?;
        let about = device.about();
        if about.read_only && writes == Writes::Allowed {
            return Err(GiveError::ReadOnly(shown));
        }
        let export: Arc<dyn Export> = device;
        let token = door.admit(&export)?;
        let waits = std::thread::Builder::new().name("nbd-disk-waits".into());
        waits.spawn(move || {
            std::thread::sleep(WAIT);
            drop(export);
        })?;
        Ok(Given { port, token, about })
    }

    fn door(&self) -> io::Result<(Arc<Door>, u16)> {
        let mut door = self.door.lock();
        if let Some(door) = &*door {
            return Ok(door.clone());
        }
        let listener = TcpListener::bind((self.ip, 0))?;
        let address = listener.local_addr()?;
        let made = Arc::new(Door::at(address.to_string()));
        Server::new(made.clone(), LIMITS).listen(Listener::Tcp(listener))?;
        Ok(door.insert((made, address.port())).clone())
    }

    /// One disk is opened once.
    fn device(&self, path: &Path, writes: Writes) -> Result<Arc<Device>, OpenError> {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut open = self.open.lock();
        open.retain(|_, device| device.strong_count() > 0);
        if let Some(device) = open.get(&real).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let name = path.display().to_string();
        let device = Arc::new(Device::open(path, name, writes)?);
        open.insert(real, Arc::downgrade(&device));
        Ok(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_said_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, link) = (dir.path().join("disk"), dir.path().join("link"));
        std::fs::write(&disk, "").unwrap();
        std::os::unix::fs::symlink(&disk, &link).unwrap();
        let parse = |text: &str| text.parse::<Allowed>().unwrap();
        let some = parse(&format!("{},/dev/none", disk.display()));
        assert!(some.has(&disk) && some.has(&link));
        assert!(!some.has(dir.path()) && !some.has(Path::new("/dev/other")));
        assert!(some.has(Path::new("/dev/none")), "it may be plugged in later");
        assert!(parse("all").has(&disk) && !parse("none").has(&disk));
        assert!("sdb".parse::<Allowed>().is_err() && "".parse::<Allowed>().is_err());
    }
}
