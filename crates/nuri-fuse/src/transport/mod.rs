//! How requests come: over io_uring rings where the kernel allows it, else by `/dev/fuse`.

pub(crate) mod dev_fuse;
pub mod device;
pub(crate) mod kernel_size;
pub(crate) mod load;
pub(crate) mod notify;
pub(crate) mod probe;
pub(crate) mod ring;
mod ring_entry;
pub(crate) mod serving;

use std::fmt;
use std::io;
use std::str::FromStr;

use device::Device;
use probe::Probe;

/// The kernel offers rings to mounts that begin while this is `Y`. Root may write it.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Extended attribute of a mount's root: shows which way requests come, and how many references
/// the kernel has given back.
pub(crate) const TRANSPORT_ATTRIBUTE: &[u8] = b"nuri.transport";

/// What the administrator wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// Rings where they can be had.
    #[default]
    Auto,
    /// Readers of `/dev/fuse`.
    Classic,
    /// Rings, or no mount.
    Uring,
}

/// Why requests come the classic way.
#[derive(Debug, thiserror::Error)]
pub enum NoRings {
    #[error("it was asked for")]
    Asked,
    #[error("this kernel has no FUSE over io_uring (Linux 6.14 has)")]
    Kernel,
    #[error("fuse.enable_uring is N and cannot be set: {0}")]
    Switch(io::Error),
    #[error("io_uring is refused here: {0}")]
    Refused(io::Error),
    #[error("the kernel did not offer it")]
    NotOffered,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Auto => "auto",
            Transport::Classic => "classic",
            Transport::Uring => "uring",
        })
    }
}

/// A text that names no transport.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown transport {0:?}: expected auto, classic or uring")]
pub struct UnknownTransport(String);

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Transport, UnknownTransport> {
        match text {
            "auto" => Ok(Transport::Auto),
            "classic" => Ok(Transport::Classic),
            "uring" => Ok(Transport::Uring),
            _ => Err(UnknownTransport(text.into())),
        }
    }
}

/// Whether a mount made now could use rings. Changes nothing: a mount by root may still set the
/// switch.
///
/// # Errors
/// Says why not.
pub fn available() -> Result<Switch, NoRings> {
    // Also loads the module.
    let device = Device::open().map_err(NoRings::Refused)?;
    let switch = match std::fs::read_to_string(SWITCH) {
        Ok(text) if text.starts_with('Y') => Switch::On,
        Ok(_) => Switch::Off,
        Err(_) => return Err(NoRings::Kernel),
    };
    Probe::new(&device).map_err(NoRings::Refused)?;
    Ok(switch)
}

/// The state of `fuse.enable_uring`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    On,
    Off,
}

/// Gets the kernel ready to offer rings to the next mount.
///
/// # Errors
/// Says why it will not.
pub fn prepare() -> Result<(), NoRings> {
    if available()? == Switch::Off {
        std::fs::write(SWITCH, "Y").map_err(NoRings::Switch)?;
    }
    Ok(())
}
