//! The classic transport: readers of `/dev/fuse`, as many as there are waiting requests.
//!
//! Beside rings one reader stays: forgotten inodes and interruptions come this way only.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use zerocopy::IntoBytes;

use crate::op::Dispatcher;
use crate::protocol::abi::{BATCH_FORGET, FORGET, INTERRUPT, OutHeader};
use crate::protocol::limits::MAX_WRITE;
use crate::protocol::reply::{Body, Later, Parking, Replier, Reply};
use crate::protocol::request::Request;
use crate::transport::device::Device;
use crate::transport::serving::Serving;

/// What one read of the device must have room for, bytes.
pub(crate) const BUFFER: usize = MAX_WRITE as usize + 4096 * 2;
const MAX_READERS: usize = 64;

/// All readers of a mount.
pub(crate) struct Readers {
    dispatcher: Arc<Dispatcher>,
    device: Device,
    serving: Serving,
    /// Readers that wait for a request now, and all of them.
    idle: AtomicUsize,
    count: AtomicUsize,
}

impl Readers {
    /// Starts `count` readers. They end with the mount.
    ///
    /// # Errors
    /// Where not even one can be started.
    pub(crate) fn start(
        dispatcher: &Arc<Dispatcher>,
        device: &Device,
        serving: &Serving,
        count: usize,
    ) -> io::Result<()> {
        let readers = Arc::new(Readers {
            dispatcher: dispatcher.clone(),
            device: device.duplicate()?,
            serving: serving.clone(),
            idle: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
        });
        readers.spawn()?;
        for _ in 1..count {
            let _ = readers.spawn();
        }
        Ok(())
    }

    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        let device = Arc::new(self.device.clone_queue()?);
        let (readers, part) = (self.clone(), self.serving.enter());
        self.count.fetch_add(1, Ordering::SeqCst);
        let body = move || {
            readers.read_loop(&device);
            drop(part);
        };
        let spawned = std::thread::Builder::new().name("fuse".into()).spawn(body);
        if spawned.is_err() {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
        spawned.map(|_| ())
    }

    /// Reads and answers requests until the mount is gone.
    fn read_loop(self: &Arc<Self>, device: &Arc<Device>) {
        let mut buf = vec![0; BUFFER];
        let mut scratch = Vec::new();
        loop {
            self.idle.fetch_add(1, Ordering::SeqCst);
            let read = device.read(&mut buf);
            let idle = self.idle.fetch_sub(1, Ordering::SeqCst) - 1;
            let len = match read {
                Ok(len) => len,
                Err(e) if passes(&e) => continue,
                Err(_) => break,
            };
            let Some(request) = Request::parse(&buf[..len]) else {
                continue;
            };
            // A request may wait for another client: somebody must go on reading.
            let quick = matches!(request.header.opcode, FORGET | BATCH_FORGET | INTERRUPT);
            if idle == 0 && !quick && self.count.load(Ordering::SeqCst) < MAX_READERS {
                let _ = self.spawn();
            }
            let unique = request.header.unique;
            let parking = Held { device, unique };
            let pool = &self.dispatcher.buffers;
            let mut replier = Replier::new(pool, &mut [], &mut scratch, &parking);
            self.dispatcher.answer(request, &mut replier);
            let reply = replier.finish();
            send(device, unique, &reply, &scratch);
        }
        // Programs that wait for locks have been told by the kernel.
        self.dispatcher.client.locks().abandon_waits();
    }
}

/// A request that waits holds nothing but its number: the kernel keeps it with the descriptor.
struct Held<'d> {
    device: &'d Arc<Device>,
    unique: u64,
}

impl Parking for Held<'_> {
    fn later(&self) -> Option<Later> {
        let (device, unique) = (self.device.clone(), self.unique);
        Some(Later::new(move |error| {
            send(&device, unique, &Reply { error, body: Body::Empty, ..Reply::default() }, &[]);
        }))
    }
}

/// Errors after which reading goes on: a signal, or a request that was taken back.
fn passes(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ENOENT))
}

/// Writes a reply, unless there is none. The gate, if one is held, ends with the value.
pub(crate) fn send(device: &Device, unique: u64, reply: &Reply<'_>, scratch: &[u8]) {
    let body = match &reply.body {
        Body::Silent | Body::Parked => return,
        Body::Empty | Body::Room(_) => &[],
        Body::Scratch => scratch,
        Body::Pooled(bytes) => &bytes[..],
    };
    let len = (size_of::<OutHeader>() + body.len()) as u32;
    let header = OutHeader { len, error: reply.error, unique };
    // A request that was aborted meanwhile wants no reply.
    let _ = device.write(&[IoSlice::new(header.as_bytes()), IoSlice::new(body)]);
}
