//! Serves calls over TCP: few threads, many connections.
//!
//! The kernel watches each connection (`epoll`), and wakes one thread when something comes. That
//! thread takes one message, lets the kernel watch again, and carries the call out. The answer goes
//! out as soon as it is there. So an idle client costs only memory, a slow client costs no thread's
//! time, and calls of one client may overtake each other.

mod buffers;
mod connection;
mod watch;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

pub use connection::{Life, Peer};

use buffers::Buffers;
use connection::{Connection, Found, Interest, Sent};

use crate::rpc::xdr::Writer;

/// Between two looks whether the server ends.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// After an accept that failed: there are no descriptors, or no memory.
const AGAIN: Duration = Duration::from_millis(100);
const STACK: usize = 512 << 10;

/// Who carries calls out.
pub trait Service: Send + Sync + 'static {
    /// The whole answer to a message, in this buffer or another one. Many threads call it at once.
    fn answer(&self, message: &[u8], peer: &Peer, buffer: Vec<u8>) -> Answer;
}

/// What is done with a message.
pub enum Answer {
    Reply(Writer),
    /// Nothing is said.
    Silence,
    /// Nothing can be said to such a client.
    Close,
}

/// What a server allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connections: usize,
    /// Calls that are carried out at once.
    pub threads: usize,
    /// Bytes of a message.
    pub message: usize,
    /// Bytes held for all clients that are slow.
    pub held: usize,
}

/// Why a client is not served.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum WelcomeError {
    #[error("{0} clients are served already")]
    TooMany(usize),
    /// The kernel does not watch the connection.
    #[error(transparent)]
    Watch(#[from] Errno),
}

/// See the module's text.
pub struct Server {
    service: Arc<dyn Service>,
    limits: Limits,
    buffers: Buffers,
    epoll: OwnedFd,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    last: AtomicU64,
    is_stopping: AtomicBool,
    /// Threads that carry calls out.
    running: AtomicUsize,
    idle: Mutex<()>,
    ended: Condvar,
}

impl Server {
    /// Starts the threads; nobody can connect yet.
    ///
    /// # Errors
    /// Where a thread cannot be started.
    pub fn start(service: Arc<dyn Service>, limits: Limits) -> io::Result<Arc<Server>> {
        let server = Arc::new(Server {
            service,
            limits,
            buffers: Buffers::default(),
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: Mutex::default(),
            last: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            running: AtomicUsize::new(limits.threads),
            idle: Mutex::default(),
            ended: Condvar::new(),
        });
        for _ in 0..limits.threads {
            let server = server.clone();
            spawn("nfs", move || server.work())?;
        }
        let watched = server.clone();
        spawn("nfs-watch", move || watch::run(&watched))?;
        Ok(server)
    }

    /// Accepts connections for as long as the server runs.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn listen(self: &Arc<Self>, listener: TcpListener) -> io::Result<()> {
        let server = self.clone();
        spawn("nfs-accept", move || server.accept_all(&listener))
    }

    fn accept_all(&self, listener: &TcpListener) {
        while !self.is_stopping() {
            let accepted = listener.accept().and_then(|(socket, peer)| {
                let connection = Connection::new(socket, self.limits.message)?;
                Ok((connection, peer))
            });
            match accepted {
                Ok((connection, peer)) => {
                    if let Err(why) = self.welcome(connection) {
                        tracing::warn!("nfs: {peer}: refused: {why}");
                    }
                }
                Err(error) => {
                    tracing::warn!("nfs: a connection could not be accepted: {error}");
                    std::thread::sleep(AGAIN);
                }
            }
        }
    }

    fn welcome(&self, connection: Connection) -> Result<(), WelcomeError> {
        let (number, most) = (self.last.fetch_add(1, Ordering::Relaxed), self.limits.connections);
        let connection = Arc::new(connection);
        {
            let mut connections = self.connections.lock();
            if connections.len() >= most {
                return Err(WelcomeError::TooMany(most));
            }
            connections.insert(number, connection.clone());
        }
        let (data, flags) = (epoll::EventData::new_u64(number), flags_of(Interest::Input));
        epoll::add(&self.epoll, connection.socket(), data, flags).map_err(|errno| {
            self.connections.lock().remove(&number);
            errno.into()
        })
    }

    /// Carries calls out until the server ends.
    fn work(&self) {
        while !self.is_stopping() {
            let mut event = Vec::with_capacity(1);
            let room = rustix::buffer::spare_capacity(&mut event);
            // An interrupted wait found nothing.
            let _ = epoll::wait(&self.epoll, room, Some(&LOOK));
            for found in event {
                let number = found.data.u64();
                let connection = self.connections.lock().get(&number).cloned();
                if let Some(connection) = connection {
                    self.serve(number, &connection);
                }
            }
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        let _idle = self.idle.lock();
        self.ended.notify_all();
    }

    /// Something can be done for a connection.
    fn serve(&self, number: u64, connection: &Connection) {
        match connection.send_rest() {
            Ok(Sent::Whole) => {}
            // Nothing more is read from it meanwhile.
            Ok(_) => return self.arm(number, connection),
            Err(_) => return self.end(number),
        }
        match connection.look(&self.buffers) {
            Found::Nothing => self.arm(number, connection),
            Found::End => self.end(number),
            Found::Message(record) => {
                self.arm(number, connection);
                let answer =
                    self.service.answer(record.bytes(), &connection.peer, self.buffers.take());
                self.buffers.give(record.into_inner());
                connection.done();
                match self.send(connection, answer) {
                    Sent::Whole if !connection.is_paused.load(Ordering::SeqCst) => {}
                    Sent::Whole | Sent::Part => self.arm(number, connection),
                    Sent::Failed => self.end(number),
                }
            }
        }
    }

    fn send(&self, connection: &Connection, answer: Answer) -> Sent {
        match answer {
            Answer::Reply(out) => {
                let sent = connection.send(out.bytes());
                self.buffers.give(out.into_inner());
                sent.unwrap_or(Sent::Failed)
            }
            Answer::Silence => Sent::Whole,
            Answer::Close => Sent::Failed,
        }
    }

    /// The kernel watches the connection again, for what can be done next.
    fn arm(&self, number: u64, connection: &Connection) {
        let _arming = connection.arming.lock();
        let interest = connection.interest();
        connection.is_paused.store(interest == Interest::Nothing, Ordering::SeqCst);
        if interest == Interest::Nothing {
            return;
        }
        let data = epoll::EventData::new_u64(number);
        // One that was ended meanwhile is not watched any more.
        let _ = epoll::modify(&self.epoll, connection.socket(), data, flags_of(interest));
    }

    fn end(&self, number: u64) {
        if let Some(connection) = self.connections.lock().remove(&number) {
            let _ = epoll::delete(&self.epoll, connection.socket());
            connection.shut();
        }
    }

    /// Ends connections to an address that this machine does not have any more.
    pub fn end_at(&self, local: IpAddr) {
        let all = self.connections.lock();
        let there = all.iter().filter(|(_, connection)| connection.peer.local == local);
        let numbers: Vec<u64> = there.map(|(number, _)| *number).collect();
        drop(all);
        numbers.into_iter().for_each(|number| self.end(number));
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Ends all connections, when what they had begun is done.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        let mut idle = self.idle.lock();
        while self.running.load(Ordering::SeqCst) > 0 {
            self.ended.wait(&mut idle);
        }
        self.connections.lock().drain().for_each(|(_, connection)| connection.shut());
    }
}

fn flags_of(interest: Interest) -> epoll::EventFlags {
    let wanted = match interest {
        Interest::Nothing => epoll::EventFlags::empty(),
        Interest::Input => epoll::EventFlags::IN,
        Interest::Output => epoll::EventFlags::OUT,
        // There is room for output nearly always.
        Interest::Look => epoll::EventFlags::IN | epoll::EventFlags::OUT,
    };
    wanted | epoll::EventFlags::ONESHOT
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.into()).stack_size(STACK);
    thread.spawn(body).map(drop)
}

#[cfg(test)]
mod tests;
