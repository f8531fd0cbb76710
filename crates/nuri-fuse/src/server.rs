//! The loop: readers of the device, as many as there are requests that wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nuri_client::Client;

use crate::abi::{
    ASYNC_DIO, ASYNC_READ, BIG_WRITES, CACHE_SYMLINKS, DIRECT_IO_ALLOW_MMAP, DO_READDIRPLUS,
    EXPLICIT_INVAL_DATA, EXPORT_SUPPORT, INIT_EXT, MAX_PAGES, PARALLEL_DIROPS, READDIRPLUS_AUTO,
};
use crate::abi::{INIT, InHeader, InitIn, InitOut, MAJOR, MINOR, MINOR_EPOCH};
use crate::device::Device;
use crate::dispatch::Dispatcher;
use crate::notify::Notifier;
use crate::reply::Replier;
use crate::request::Request;

/// Largest transfer of one request, bytes.
pub const MAX_WRITE: u32 = 1 << 20;
const BUFFER: usize = MAX_WRITE as usize + 4096 * 2;
/// Readers that wait at first, and at most.
const FIRST_READERS: usize = 4;
const MAX_READERS: usize = 64;

/// Settings of the door.
#[derive(Clone, Copy, Debug)]
pub struct FuseConfig {
    /// How far the kernel may read ahead, bytes.
    pub max_readahead: u32,
}

impl Default for FuseConfig {
    fn default() -> Self {
        FuseConfig { max_readahead: 8 << 20 }
    }
}

struct Loop {
    dispatcher: Dispatcher,
    device: Device,
    /// Readers that wait for a request now, and all of them.
    idle: AtomicUsize,
    readers: AtomicUsize,
}

/// Serves the mounted device until it is unmounted.
///
/// # Errors
/// Where the kernel speaks another protocol, or no reader can be started.
pub fn serve(device: Device, client: Arc<Client>, config: FuseConfig) -> io::Result<()> {
    let minor = handshake(&device, config)?;
    let epochs = minor >= MINOR_EPOCH;
    client.set_kernel_cache(Arc::new(Notifier { device: device.duplicate()? }));
    let dispatcher = Dispatcher::new(client, epochs);
    let shared = Arc::new(Loop {
        dispatcher,
        device,
        idle: AtomicUsize::new(0),
        readers: AtomicUsize::new(0),
    });
    for _ in 1..FIRST_READERS {
        spawn_reader(&shared)?;
    }
    shared.readers.fetch_add(1, Ordering::SeqCst);
    let own = shared.device.duplicate()?;
    read_loop(&shared, &own);
    while shared.readers.load(Ordering::SeqCst) > 0 {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Ok(())
}

fn spawn_reader(shared: &Arc<Loop>) -> io::Result<()> {
    let device = shared.device.clone_queue()?;
    let for_thread = shared.clone();
    shared.readers.fetch_add(1, Ordering::SeqCst);
    let spawned = std::thread::Builder::new()
        .name("fuse".into())
        .spawn(move || read_loop(&for_thread, &device));
    if spawned.is_err() {
        shared.readers.fetch_sub(1, Ordering::SeqCst);
    }
    spawned.map(|_| ())
}

/// Reads and answers requests until the mount is gone.
fn read_loop(shared: &Arc<Loop>, device: &Device) {
    let mut buf = vec![0; BUFFER];
    loop {
        shared.idle.fetch_add(1, Ordering::SeqCst);
        let read = device.read(&mut buf);
        let idle = shared.idle.fetch_sub(1, Ordering::SeqCst) - 1;
        let len = match read {
            Ok(len) => len,
            Err(e)
                if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ENOENT)) =>
            {
                continue;
            }
            Err(_) => break,
        };
        // A request may wait for another client: somebody must go on reading.
        if idle == 0 && shared.readers.load(Ordering::SeqCst) < MAX_READERS {
            let _ = spawn_reader(shared);
        }
        if let Some(request) = Request::parse(&buf[..len]) {
            let unique = request.header.unique;
            shared.dispatcher.answer(request, &Replier { device, unique });
        }
    }
    shared.readers.fetch_sub(1, Ordering::SeqCst);
}

/// Answers INIT; returns the kernel's minor version.
fn handshake(device: &Device, config: FuseConfig) -> io::Result<u32> {
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
    let wanted = ASYNC_READ
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
        | DIRECT_IO_ALLOW_MMAP;
    let flags = offered & wanted;
    let reply = InitOut {
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
    };
    Replier { device, unique: header.unique }.value(&reply);
    Ok(init.minor)
}
