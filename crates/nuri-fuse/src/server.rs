//! Serves a mount: the handshake, then the transport that the handshake chose.

use std::io;
use std::path::Path;
use std::sync::Arc;

use nuri_client::{Client, KernelCache};
use zerocopy::IntoBytes;

use crate::bypass::{Bypass, Passed};
use crate::growing::Growing;
use crate::mount_tuning::MountTuning;
use crate::op::{Dispatcher, Kernel, Own};
use crate::protocol::abi::{
    ASYNC_DIO, ASYNC_READ, BIG_WRITES, CACHE_SYMLINKS, DIRECT_IO_ALLOW_MMAP, DO_READDIRPLUS,
    DONT_MASK, EXPLICIT_INVAL_DATA, EXPORT_SUPPORT, FLOCK_LOCKS, HANDLE_KILLPRIV_V2, INIT,
    INIT_EXT, InHeader, InitIn, InitOut, MAJOR, MAX_PAGES, MINOR, MINOR_EPOCH, MINOR_PRUNE,
    OVER_IO_URING, PARALLEL_DIROPS, POSIX_ACL, POSIX_LOCKS, READDIRPLUS_AUTO, SETXATTR_EXT,
};
use crate::protocol::limits::MAX_WRITE;
use crate::protocol::reply::{Body, Reply};
use crate::protocol::request::Request;
use crate::transport::dev_fuse::{BUFFER, Readers, send};
use crate::transport::device::Device;
use crate::transport::kernel_size::{KernelSizes, UnsureSizes};
use crate::transport::load::Load;
use crate::transport::notify::Notifier;
use crate::transport::probe::Probe;
use crate::transport::ring::Rings;
use crate::transport::serving::Serving;
use crate::transport::{NoRings, Transport};

/// Readers of the device that wait at first; beside rings one is enough.
const FIRST_READERS: usize = 4;

/// Settings of the front end.
#[derive(Clone, Debug)]
pub struct FuseConfig {
    /// How far the kernel may read ahead, bytes.
    pub max_readahead: u32,
    pub transport: Transport,
    /// Nothing may be changed through this mount.
    pub read_only: bool,
    /// Where what goes past the kernel is counted.
    pub passed: Arc<Passed>,
}

impl Default for FuseConfig {
    fn default() -> Self {
        let (transport, passed) = Default::default();
        FuseConfig { max_readahead: 8 << 20, transport, read_only: false, passed }
    }
}

/// What the handshake settled.
struct Agreed {
    minor: u32,
    /// INIT flags that both sides have.
    flags: u64,
    rings: Result<Probe, NoRings>,
}

/// Serves the device that is mounted at `point` until it is unmounted.
///
/// # Errors
/// Where the kernel speaks another protocol, no thread can be started, or rings are demanded and
/// cannot be had.
pub fn serve(
    device: Device,
    client: Arc<Client>,
    config: FuseConfig,
    point: &Path,
) -> io::Result<()> {
    let Agreed { minor, flags, rings } = handshake(&device, &config)?;
    let load = Arc::new(Load::of_machine());
    // Before the first request: what its reply lets the kernel cache may be recalled at once.
    let (unsure, prunes) = (Arc::new(UnsureSizes::new()), minor >= MINOR_PRUNE);
    let (own, likewise) = (device.duplicate()?, unsure.clone());
    let notifier = Notifier { device: own, load: load.clone(), prunes, unsure: likewise };
    let notifier: Arc<dyn KernelCache> = Arc::new(notifier);
    client.set_kernel_cache(notifier.clone());
    let kernel = Kernel {
        epochs: minor >= MINOR_EPOCH,
        long_setxattr: flags & SETXATTR_EXT != 0,
        read_only: config.read_only,
    };
    let growing = Arc::new(Growing::new());
    let bypass = match kernel.epochs {
        true => {
            let (client, pages, growing) = (client.clone(), notifier.clone(), growing.clone());
            Bypass::start(client, pages, config.read_only, growing, config.passed)
        }
        false => Err(io::Error::other("it needs Linux 6.16")),
    };
    let bypass =
        bypass.inspect_err(|why| tracing::info!("fuse: no way past the kernel: {why}")).ok();
    let sizes = KernelSizes::new(unsure, load.clone(), point.to_owned());
    let tuning = MountTuning::of(point);
    let own = Own { bypass: bypass.clone(), growing, tuning, sizes, pages: notifier };
    let dispatcher = Arc::new(Dispatcher::new(client, kernel, own));
    let serving = Serving::default();
    let start = |probe| Rings::start(&dispatcher, &device, (&serving, point), (load, probe));
    let rings = rings.and_then(start);
    match &rings {
        Ok(()) => tracing::info!("fuse: requests come over io_uring"),
        Err(why) if config.transport == Transport::Uring => {
            return Err(io::Error::other(format!("no FUSE over io_uring: {why}")));
        }
        Err(why) => tracing::info!("fuse: requests come over /dev/fuse: {why}"),
    }
    let readers = if rings.is_ok() { 1 } else { FIRST_READERS };
    Readers::start(&dispatcher, &device, &serving, readers)?;
    serving.wait_for_the_last();
    bypass.inspect(|bypass| bypass.stop());
    Ok(())
}

/// Answers INIT; says what the kernel offers.
fn handshake(device: &Device, config: &FuseConfig) -> io::Result<Agreed> {
    let mut buf = vec![0; BUFFER];
    let len = device.read(&mut buf)?;
    let protocol = || io::Error::other("the kernel's FUSE protocol is not the one we know");
    let mut request = Request::parse(&buf[..len]).ok_or_else(protocol)?;
    let header: InHeader = request.header;
    if header.opcode != INIT {
        return Err(protocol());
    }
    let init: InitIn = request.take().map_err(|_| protocol())?;
    if init.major != MAJOR || init.minor < 31 {
        return Err(protocol());
    }
    let offered = u64::from(init.flags) | u64::from(init.flags2) << 32;
    // The kernel waits for the rings once the flag is set: only with proof that they can be made.
    let rings = match config.transport {
        Transport::Classic => Err(NoRings::Asked),
        _ if offered & OVER_IO_URING == 0 => Err(NoRings::NotOffered),
        _ => Probe::new(device).map_err(NoRings::Refused),
    };
    let reply = init_out(&init, offered, &rings, config);
    let body = Reply { body: Body::Scratch, ..Reply::default() };
    send(device, header.unique, &body, reply.as_bytes());
    let flags = u64::from(reply.flags) | u64::from(reply.flags2) << 32;
    Ok(Agreed { minor: init.minor, flags, rings })
}

fn init_out(
    init: &InitIn,
    offered: u64,
    rings: &Result<Probe, NoRings>,
    config: &FuseConfig,
) -> InitOut {
    let wanted = ASYNC_READ
        | POSIX_LOCKS
        | FLOCK_LOCKS
        | EXPORT_SUPPORT
        | BIG_WRITES
        | DO_READDIRPLUS
        | READDIRPLUS_AUTO
        | ASYNC_DIO
        | PARALLEL_DIROPS
        | MAX_PAGES
        | CACHE_SYMLINKS
        | EXPLICIT_INVAL_DATA
        | INIT_EXT
        | HANDLE_KILLPRIV_V2
        | DONT_MASK
        | POSIX_ACL
        | SETXATTR_EXT
        | DIRECT_IO_ALLOW_MMAP;
    let flags = offered & if rings.is_ok() { wanted | OVER_IO_URING } else { wanted };
    InitOut {
        major: MAJOR,
        minor: MINOR,
        max_readahead: config.max_readahead.min(init.max_readahead.max(config.max_readahead)),
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        max_background: 64,
        congestion_threshold: 48,
        max_write: MAX_WRITE,
        time_gran: 1,
        max_pages: (MAX_WRITE / 4096) as u16,
        ..InitOut::default()
    }
}
