//! Listens, shakes hands, and hands connections to their threads.
//!
//! A stranger (a client before its handshake is done) costs one thread, for at most ten seconds and
//! the time to open its export. Where more strangers come than there is room for, those that came
//! first are disconnected. So no stranger keeps others out by waiting. Strangers that cannot be
//! disconnected at once keep the next ones out.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::client::Client;
use crate::connection::Connection;
use crate::export::Exports;
use crate::handshake::{Agreed, Effect, Encryption, Handshake, greeting};
use crate::input::LOOK;
use crate::socket::{Cipher, STUCK, Socket, has_timed_out};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at once.
const STRANGERS: usize = 256;
/// Until the thread of a stranger that was left has ended.
const LEAVING: Duration = Duration::from_secs(1);
const STACK: usize = 1 << 20;
/// After an accept that failed: there are no descriptors, or no memory.
const AGAIN: Duration = Duration::from_millis(100);

/// What a server allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections that are served at once.
    pub connections: usize,
    /// Requests of each that are served at once.
    pub in_flight: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 128, in_flight: 16 }
    }
}

/// Where clients come from.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn accept(&self) -> io::Result<(Socket, String)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                Ok((stream.into(), peer.to_string()))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                Ok((stream.into(), "a local client".into()))
            }
        }
    }
}

/// How connections are encrypted.
pub trait StartTls: Send + Sync + 'static {
    /// Agrees with a client that asked for it, until then.
    ///
    /// # Errors
    /// Why there is no agreement.
    #[doc(hidden)]
    fn start(&self, socket: &Socket, until: Instant) -> io::Result<Box<dyn Cipher>>;
}

/// Serves exports to whoever connects.
pub struct Server {
    exports: Arc<dyn Exports>,
    limits: Limits,
    /// Without it nothing is encrypted; with it, nothing is said to those who do not.
    tls: Option<Arc<dyn StartTls>>,
    strangers: Mutex<VecDeque<Weak<Socket>>>,
    clients: Mutex<Vec<Weak<Socket>>>,
    /// Those whose requests are served.
    served: Mutex<Vec<Weak<Client>>>,
    running: AtomicUsize,
    /// Threads that shake hands.
    greeting: AtomicUsize,
    ended: Condvar,
    idle: Mutex<()>,
    is_stopping: AtomicBool,
}

impl Server {
    pub fn new(exports: Arc<dyn Exports>, limits: Limits) -> Arc<Server> {
        Server::with_tls(exports, limits, None)
    }

    /// Clients must encrypt where `tls` says how.
    pub fn with_tls(
        exports: Arc<dyn Exports>,
        limits: Limits,
        tls: Option<Arc<dyn StartTls>>,
    ) -> Arc<Server> {
        Arc::new(Server {
            exports,
            limits,
            tls,
            strangers: Mutex::default(),
            clients: Mutex::default(),
            served: Mutex::default(),
            running: AtomicUsize::new(0),
            greeting: AtomicUsize::new(0),
            ended: Condvar::new(),
            idle: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        })
    }

    /// Accepts connections for as long as the server runs.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn listen(self: &Arc<Self>, listener: Listener) -> io::Result<()> {
        let server = self.clone();
        let thread = std::thread::Builder::new().name("nbd-accept".into());
        thread.spawn(move || server.accept_all(&listener)).map(drop)
    }

    fn accept_all(self: &Arc<Self>, listener: &Listener) {
        while !self.is_stopping.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok((socket, name)) => self.welcome(socket, name),
                Err(error) => {
                    tracing::warn!("nbd: a connection could not be accepted: {error}");
                    std::thread::sleep(AGAIN);
                }
            }
        }
    }

    fn welcome(self: &Arc<Self>, socket: Socket, name: String) {
        let socket = Arc::new(socket);
        self.make_room();
        let Some(greeting) = Greeting::begin(self) else {
            tracing::warn!("nbd: {name}: refused: {STRANGERS} others are at the door");
            return;
        };
        self.strangers.lock().push_back(Arc::downgrade(&socket));
        let server = self.clone();
        let thread = std::thread::Builder::new().name("nbd-hello".into()).stack_size(STACK);
        // Without a thread the connection ends here.
        let _ = thread.spawn(move || server.greet(&socket, name, greeting));
    }

    /// Who came first is left, where there are too many.
    fn make_room(&self) {
        let mut strangers = self.strangers.lock();
        strangers.retain(|socket| socket.strong_count() > 0);
        while strangers.len() >= STRANGERS {
            if let Some(socket) = strangers.pop_front().and_then(|socket| socket.upgrade()) {
                socket.shut();
            }
        }
    }

    fn greet(self: &Arc<Self>, socket: &Arc<Socket>, name: String, greeting: Greeting) {
        let agreed = socket.tune().and_then(|()| self.shake_hands(socket));
        match agreed {
            Ok(Ok((agreed, start))) => self.serve(socket, (agreed, start), name, greeting),
            Ok(Err(why)) => tracing::debug!("nbd: {name}: no agreement: {why}"),
            Err(error) => tracing::debug!("nbd: {name}: no agreement: {error}"),
        }
    }

    /// What was agreed on, and when the last that came with it can have come.
    fn shake_hands(&self, socket: &Socket) -> io::Result<Result<(Agreed, Instant), &'static str>> {
        let tls = if self.tls.is_some() { Encryption::Required } else { Encryption::None };
        let (start, mut machine) = (Instant::now(), Handshake::new(tls));
        let mut buffer = [0; 4096];
        socket.set_timeouts(HANDSHAKE, HANDSHAKE)?;
        socket.send(&greeting(), &[])?;
        loop {
            let left = HANDSHAKE.saturating_sub(start.elapsed());
            if left < Duration::from_millis(1) {
                return Ok(Err("it took too long"));
            }
            socket.set_timeouts(left, left)?;
            let count = match socket.receive(&mut buffer) {
                Ok(0) => return Ok(Err("it went away")),
                Ok(count) => count,
                Err(error) if has_timed_out(&error) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let came = Instant::now();
            machine.receive(&buffer[..count]);
            while let Some(effect) = machine.next(&*self.exports) {
                if start.elapsed() >= HANDSHAKE && matches!(effect, Effect::Send(_)) {
                    return Ok(Err("it took too long"));
                }
                match effect {
                    Effect::Send(bytes) => socket.send(&bytes, &[])?,
                    Effect::StartTls(bytes) => {
                        socket.send(&bytes, &[])?;
                        self.start_tls(socket, start + HANDSHAKE)?;
                    }
                    Effect::Serve(agreed) => return Ok(Ok((agreed, came))),
                    Effect::Close(bytes, why) => {
                        socket.send(&bytes, &[])?;
                        return Ok(Err(why));
                    }
                }
            }
        }
    }

    fn note(&self, client: &Arc<Client>) {
        let mut served = self.served.lock();
        served.retain(|client| client.strong_count() > 0);
        served.push(Arc::downgrade(client));
    }

    fn start_tls(&self, socket: &Socket, until: Instant) -> io::Result<()> {
        let Some(tls) = &self.tls else { return Err(io::ErrorKind::Unsupported.into()) };
        socket.encrypt(tls.start(socket, until)?);
        Ok(())
    }

    fn serve(
        self: &Arc<Self>,
        socket: &Arc<Socket>,
        (agreed, start): (Agreed, Instant),
        name: String,
        greeting: Greeting,
    ) {
        let Some(_place) = Place::take(self, socket) else {
            tracing::warn!("nbd: {name}: refused: {} are served already", self.limits.connections);
            // The export is let go before the handshake counts as ended.
            drop(agreed);
            return;
        };
        // And here before the connection does.
        let agreed = agreed;
        drop(greeting);
        let is_said =
            socket.set_timeouts(LOOK, STUCK).and_then(|()| socket.send(&agreed.last_words, &[]));
        if is_said.is_ok() {
            let export = agreed.export.about().name;
            tracing::info!("nbd: {name} uses {export}");
            let own = (name.clone(), self.limits.in_flight);
            let connection = Arc::new(Connection::new(socket.clone(), (agreed, start), own));
            self.note(connection.client());
            connection.run_all();
            tracing::info!("nbd: {name} is done with {export}");
        }
    }

    /// Ends all connections, and waits for what they had begun.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        let served: Vec<_> = self.served.lock().iter().filter_map(Weak::upgrade).collect();
        served.iter().for_each(|client| client.stop_sending());
        served.iter().for_each(|client| client.leave());
        for sockets in [&mut *self.clients.lock(), self.strangers.lock().make_contiguous()] {
            sockets.iter().filter_map(Weak::upgrade).for_each(|socket| socket.shut());
        }
        let mut idle = self.idle.lock();
        let is_busy = || self.running.load(Ordering::SeqCst) + self.greeting.load(Ordering::SeqCst);
        while is_busy() > 0 {
            self.ended.wait(&mut idle);
        }
    }
}

/// A handshake; ends when dropped.
struct Greeting(Arc<Server>);

impl Greeting {
    /// Those that were just left end soon; `None` where they do not.
    fn begin(server: &Arc<Server>) -> Option<Greeting> {
        let mut idle = server.idle.lock();
        let is_full = |_: &mut ()| server.greeting.load(Ordering::SeqCst) >= STRANGERS;
        let is_late = server.ended.wait_while_for(&mut idle, is_full, LEAVING).timed_out();
        if is_late || server.is_stopping.load(Ordering::SeqCst) {
            return None;
        }
        server.greeting.fetch_add(1, Ordering::SeqCst);
        Some(Greeting(server.clone()))
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        let _idle = self.0.idle.lock();
        self.0.greeting.fetch_sub(1, Ordering::SeqCst);
        self.0.ended.notify_all();
    }
}

/// A connection that is served; ends when dropped.
struct Place<'s>(&'s Server);

impl Place<'_> {
    fn take<'s>(server: &'s Server, socket: &Arc<Socket>) -> Option<Place<'s>> {
        let own = Arc::downgrade(socket);
        server.strangers.lock().retain(|other| !other.ptr_eq(&own));
        let mut clients = server.clients.lock();
        clients.retain(|client| client.strong_count() > 0);
        let is_full = server.running.load(Ordering::SeqCst) >= server.limits.connections;
        if is_full || server.is_stopping.load(Ordering::SeqCst) {
            return None;
        }
        server.running.fetch_add(1, Ordering::SeqCst);
        clients.push(own);
        Some(Place(server))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let _idle = self.0.idle.lock();
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.ended.notify_all();
    }
}
