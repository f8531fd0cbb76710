//! The server's side of calls: a reception, one thread per connection, and a [`Service`] that
//! answers.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nuri_io::buf::{BufPool, PooledBuf};
use nuri_proto::Status;
use nuri_proto::codec;
use nuri_proto::header::{COPIED_REPLY, COPIED_REQUEST, Header, Kind};
use nuri_proto::limit::MAX_PAYLOAD;
use nuri_proto::op::near::Echo;
use nuri_proto::op::{Call, Op, Role};
use nuri_rules::broken;
use parking_lot::Mutex;

use crate::conn::CallContext;
use crate::frame::{self, Carry, FrameReader};
use crate::near::{self, Guest};
use crate::reception::Reception;
use crate::secret::Secret;
use crate::stream::{Listener, Stream};

/// Most connections at once; further ones are closed.
const MAX_CONNECTIONS: usize = 4096;
/// Idle payload buffers kept (1 MiB each).
const KEEP_BUFFERS: usize = 16;
/// A payload up to this length takes a short buffer, bytes: many small calls at once would hold a
/// megabyte each.
const SHORT: usize = 32 << 10;
/// Idle short buffers kept.
const KEEP_SHORT: usize = 64;
const STACK: usize = 512 << 10;

/// A request as a service sees it.
pub struct Request<'a> {
    pub op: Op,
    pub context: CallContext,
    pub args: &'a [u8],
    /// Page-aligned payload.
    pub payload: &'a [u8],
    /// Where a bulk reply may be built.
    pub buffers: &'a BufPool,
}

/// What goes back.
pub struct Reply {
    pub status: Status,
    pub args: Vec<u8>,
    pub payload: Option<PooledBuf>,
}

impl Reply {
    pub fn failed(status: Status) -> Reply {
        Reply { status, args: Vec::new(), payload: None }
    }

    /// Encodes the outcome of a call without payload.
    pub fn of<R: serde::Serialize>(outcome: Result<R, Status>) -> Reply {
        match outcome.and_then(|reply| codec::encode(&reply)) {
            Ok(args) => Reply { status: Status::OK, args, payload: None },
            Err(status) => Reply::failed(status),
        }
    }
}

/// Decodes the request as `C`, runs `f`, encodes its reply.
pub fn reply_to<C: Call>(args: &[u8], f: impl FnOnce(C) -> Result<C::Reply, Status>) -> Reply {
    Reply::of(codec::decode::<C>(args).and_then(f))
}

/// Answers requests. Called from many threads at once; may block.
pub trait Service: Send + Sync + 'static {
    fn serve(&self, request: &Request<'_>) -> Reply;
}

/// A running server. Dropping it closes the listener and every connection.
pub struct Server {
    address: SocketAddr,
    shared: Arc<ServerState>,
}

struct ServerState {
    service: Arc<dyn Service>,
    stopping: AtomicBool,
    open: AtomicUsize,
    /// Names the next connection.
    next: AtomicUsize,
    streams: Mutex<std::collections::HashMap<usize, Stream>>,
    buffers: BufPool,
    short: BufPool,
}

impl ServerState {
    fn buffer_for(&self, len: usize) -> PooledBuf {
        let mut buf = if len <= SHORT { self.short.take() } else { self.buffers.take() };
        buf.set_len(len);
        buf
    }
}

impl Server {
    /// Starts answering on `listener`.
    ///
    /// # Errors
    /// Where the listener has no address or no thread can be started.
    pub fn start(
        listener: TcpListener,
        secret: &Secret,
        service: Arc<dyn Service>,
    ) -> std::io::Result<Server> {
        let address = listener.local_addr()?;
        let shared = Arc::new(ServerState {
            service,
            stopping: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            streams: Mutex::default(),
            buffers: BufPool::new(MAX_PAYLOAD, KEEP_BUFFERS),
            short: BufPool::new(SHORT, KEEP_SHORT),
        });
        // Without it everybody comes by TCP.
        let beside = Listener::beside(address).ok();
        let listeners = beside.into_iter().chain([Listener::Tcp(listener)]).collect();
        let reception = Reception::new(listeners, secret)?;
        let (stopping, serving) = (shared.clone(), shared.clone());
        let body = move || {
            reception.run(
                || stopping.stopping.load(Ordering::SeqCst),
                |stream, role| serve_on_thread(stream, role, &serving),
            );
        };
        std::thread::Builder::new().name("reception".into()).spawn(body)?;
        Ok(Server { address, shared })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        Listener::wake(self.address);
        self.shared.streams.lock().values().for_each(Stream::shutdown);
    }
}

/// A connection whose client has proved itself.
fn serve_on_thread(stream: Stream, role: Role, shared: &Arc<ServerState>) {
    if shared.open.load(Ordering::SeqCst) >= MAX_CONNECTIONS {
        return;
    }
    let id = shared.next.fetch_add(1, Ordering::SeqCst);
    let for_thread = shared.clone();
    shared.open.fetch_add(1, Ordering::SeqCst);
    let spawned = std::thread::Builder::new()
        .name("serve".into())
        .stack_size(STACK)
        .spawn(move || connection(id, stream, role, &for_thread));
    if spawned.is_err() {
        shared.open.fetch_sub(1, Ordering::SeqCst);
    }
}

fn connection(id: usize, mut stream: Stream, role: Role, shared: &ServerState) {
    if let Ok(clone) = stream.try_clone() {
        shared.streams.lock().insert(id, clone);
    }
    // Who stops the server may have looked before this one was listed.
    if !shared.stopping.load(Ordering::SeqCst) {
        serve_calls(&mut stream, role, shared);
    }
    shared.streams.lock().remove(&id);
    shared.open.fetch_sub(1, Ordering::SeqCst);
}

fn serve_calls(stream: &mut Stream, role: Role, shared: &ServerState) {
    let mut reader = FrameReader::new();
    let mut guest = Guest::of(stream);
    let mut referred = None;
    loop {
        if referred.is_some() && !near::wait_next(stream) {
            // Whoever takes it later finds that it is not what was sent.
            referred = None;
        }
        let Ok((header, args)) = reader.head(stream) else {
            return;
        };
        drop(referred.take());
        if header.kind != Kind::Request {
            return;
        }
        let (mut payload, mut flags) = (None, 0);
        if header.payload_len > 0 {
            let mut buf = shared.buffer_for(header.payload_len as usize);
            if reader.payload(stream, &header, &mut buf, guest.memory()).is_err() {
                return;
            }
            (payload, flags) = (Some(buf), COPIED_REQUEST);
        }
        let payload = payload.as_deref().unwrap_or_default();
        let own = guest.answer(&header, &args);
        let reply = own.unwrap_or_else(|| answer(&header, &args, payload, (role, shared)));
        let bulk = reply.payload.as_deref().unwrap_or_default();
        let carry = near::carry_reply(&header, bulk);
        if carry == Carry::Stream {
            flags |= COPIED_REPLY;
        }
        let head = Header { kind: Kind::Reply, flags, status: reply.status.0, ..header };
        if frame::send(stream, head, &reply.args, bulk, carry).is_err() {
            return;
        }
        let lets_go = broken!("reply_let_go");
        referred = reply.payload.filter(|_| carry == Carry::Address && !lets_go);
    }
}

fn answer(
    header: &Header,
    args: &[u8],
    payload: &[u8],
    (role, shared): (Role, &ServerState),
) -> Reply {
    let Some(op) = Op::from_wire(header.op) else {
        return Reply::failed(Status::MALFORMED);
    };
    if !op.is_for(role) && !broken!("mounts_are_nodes") {
        return Reply::failed(Status::PERM);
    }
    if op == Op::Echo {
        return codec::decode(args).map_or_else(Reply::failed, |call| echo(call, shared));
    }
    let context = CallContext {
        session: header.session,
        slot: header.slot,
        sequence: header.sequence,
        epoch: header.epoch,
    };
    shared.service.serve(&Request { op, context, args, payload, buffers: &shared.buffers })
}

/// Zeros: a pooled buffer still holds what somebody else sent.
fn echo(Echo { bytes }: Echo, shared: &ServerState) -> Reply {
    let len = bytes as usize;
    if len > MAX_PAYLOAD {
        return Reply::failed(Status::INVAL);
    }
    let zeros = || {
        let mut payload = shared.buffer_for(len);
        payload.fill(0);
        payload
    };
    Reply { payload: (len > 0).then(zeros), ..Reply::of(Ok(())) }
}
