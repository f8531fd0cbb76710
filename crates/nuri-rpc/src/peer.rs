//! A server as its clients see it: an address, idle connections, and retries with a deadline.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::op::Call;
use nuri_proto::status::RetryClass;
use parking_lot::Mutex;

use crate::awake::Awake;
use crate::conn::{CallContext, Conn, Pending};
use crate::handshake::{HandshakeError, TIMEOUT};
use crate::secret::Secret;
use crate::traffic::{Carried, Traffic};

/// Idle connections kept per peer.
const KEEP_IDLE: usize = 32;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// When to give up, counted by the time for which this process ran.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Awake);

impl Deadline {
    pub fn after(timeout: Duration) -> Deadline {
        Deadline(Awake::now() + timeout)
    }

    pub fn left(self) -> Duration {
        self.0.since(Awake::now())
    }

    pub fn passed(self) -> bool {
        self.left().is_zero()
    }
}

/// A server to call. Cheap to clone; clones share the connections.
#[derive(Clone)]
pub struct Peer {
    inner: Arc<Inner>,
}

struct Inner {
    address: String,
    secret: Secret,
    idle: Mutex<Vec<Conn>>,
    traffic: Arc<Traffic>,
}

impl Peer {
    pub fn new(address: &str, secret: &Secret) -> Peer {
        let (idle, traffic) = (Mutex::default(), Arc::default());
        let inner = Inner { address: address.into(), secret: secret.clone(), idle, traffic };
        Peer { inner: Arc::new(inner) }
    }

    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// What went over the connections so far, and how.
    pub fn carried(&self) -> Carried {
        self.inner.traffic.carried()
    }

    fn connect(&self, timeout: Duration) -> Result<Conn, HandshakeError> {
        let inner = &self.inner;
        Conn::connect_counted(&inner.address, &inner.secret, inner.traffic.clone(), timeout)
    }

    /// Connects once, to tell a wrong address or secret from a slow server.
    ///
    /// # Errors
    /// Why no connection was made.
    pub fn probe(&self) -> Result<(), HandshakeError> {
        let conn = self.connect(TIMEOUT)?;
        self.put_back(conn);
        Ok(())
    }

    fn put_back(&self, conn: Conn) {
        let mut idle = self.inner.idle.lock();
        if idle.len() < KEEP_IDLE {
            idle.push(conn);
        }
    }

    /// One attempt. A reused connection may have died with an earlier server: then once more on
    /// a new one, so calls must be safe to repeat. A server that stands still is no dead
    /// connection: the next one would be waited for as long.
    ///
    /// # Errors
    /// The server's status, or [`Status::UNREACHABLE`].
    pub fn call<C: Call>(
        &self,
        context: CallContext,
        call: &C,
        payload: &[u8],
        into: &mut [u8],
        timeout: Duration,
    ) -> Result<(C::Reply, usize), Status> {
        let begun = Instant::now();
        loop {
            match self.attempt(context, call, payload, into, timeout) {
                (Err(Status::UNREACHABLE), Reused::Yes) if begun.elapsed() < timeout / 2 => {}
                (outcome, _) => return outcome,
            }
        }
    }

    /// A connection for one call. Where there is none, nothing was sent. It is given up after
    /// `timeout`: a process that is stopped takes connections, and never answers the handshake.
    ///
    /// # Errors
    /// [`Status::UNREACHABLE`], [`Status::WRONG_PEER`].
    pub fn reach(&self, timeout: Duration) -> Result<Reached, Status> {
        if let Some(conn) = self.inner.idle.lock().pop() {
            let (reused, connecting) = (Reused::Yes, Duration::ZERO);
            return Ok(Reached { peer: self.clone(), conn, reused, connecting });
        }
        let begun = Instant::now();
        match self.connect(timeout) {
            Ok(conn) => {
                let (reused, connecting) = (Reused::No, begun.elapsed());
                Ok(Reached { peer: self.clone(), conn, reused, connecting })
            }
            Err(HandshakeError::Secret | HandshakeError::NotNuri | HandshakeError::Version) => {
                Err(Status::WRONG_PEER)
            }
            Err(_) => Err(Status::UNREACHABLE),
        }
    }

    /// As [`Peer::call`], with a payload in the reply.
    ///
    /// # Errors
    /// As [`Peer::call`].
    pub fn call_into<C: Call>(
        &self,
        context: CallContext,
        call: &C,
        payload: &[u8],
        into: &mut [u8],
        timeout: Duration,
    ) -> Result<(C::Reply, usize), Status> {
        self.attempt(context, call, payload, into, timeout).0
    }

    fn attempt<C: Call>(
        &self,
        context: CallContext,
        call: &C,
        payload: &[u8],
        into: &mut [u8],
        timeout: Duration,
    ) -> (Result<(C::Reply, usize), Status>, Reused) {
        match self.reach(timeout) {
            Ok(reached) => {
                let reused = reached.reused;
                (reached.call(context, call, payload, into, timeout), reused)
            }
            Err(status) => (Err(status), Reused::No),
        }
    }

    /// Repeats an attempt while the answer is "later" and time is left.
    ///
    /// # Errors
    /// The last status, once the deadline passed or the answer is final.
    pub fn call_until<C: Call>(
        &self,
        context: CallContext,
        call: &C,
        payload: &[u8],
        into: &mut [u8],
        deadline: Deadline,
    ) -> Result<(C::Reply, usize), Status> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.call(context, call, payload, into, deadline.left()) {
                Err(status) if status.retry() == RetryClass::Later && !deadline.passed() => {
                    std::thread::sleep(pause.min(deadline.left()));
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    /// Sends without waiting, so that one thread can have calls at several peers under way.
    ///
    /// # Errors
    /// [`Status::UNREACHABLE`].
    pub fn start<'p, C: Call>(
        &self,
        context: CallContext,
        call: &C,
        payload: &'p [u8],
        timeout: Duration,
    ) -> Result<Started<'p>, Status> {
        self.reach(timeout)?.start(context, call, payload, timeout)
    }
}

/// A connection that a call may be sent over.
pub struct Reached {
    peer: Peer,
    conn: Conn,
    reused: Reused,
    /// How long it took to connect. It counts as part of the call that the connection is for.
    connecting: Duration,
}

impl Reached {
    /// Never sent twice: for calls that number their attempts. `timeout` is that of
    /// [`Peer::reach`], and bounds both together.
    ///
    /// # Errors
    /// The server's status, or [`Status::UNREACHABLE`].
    pub fn call<C: Call>(
        mut self,
        context: CallContext,
        call: &C,
        payload: &[u8],
        into: &mut [u8],
        timeout: Duration,
    ) -> Result<(C::Reply, usize), Status> {
        let left = timeout.saturating_sub(self.connecting);
        let outcome = self
            .conn
            .lend(context, call, payload, left)
            .and_then(|pending| self.conn.receive::<C>(pending, into));
        match outcome {
            Ok(outcome) => {
                self.peer.put_back(self.conn);
                outcome
            }
            Err(status) => {
                if self.reused == Reused::Yes {
                    // The others are as old.
                    self.peer.inner.idle.lock().clear();
                }
                Err(status)
            }
        }
    }

    /// As [`Peer::start`].
    ///
    /// # Errors
    /// [`Status::UNREACHABLE`].
    pub fn start<'p, C: Call>(
        mut self,
        context: CallContext,
        call: &C,
        payload: &'p [u8],
        timeout: Duration,
    ) -> Result<Started<'p>, Status> {
        let left = timeout.saturating_sub(self.connecting);
        let pending = self.conn.lend(context, call, payload, left)?;
        Ok(Started { peer: self.peer, conn: self.conn, pending, payload: PhantomData })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reused {
    Yes,
    No,
}

/// A call under way. Its payload may still be taken from where it is.
pub struct Started<'p> {
    peer: Peer,
    conn: Conn,
    pending: Pending,
    payload: PhantomData<&'p [u8]>,
}

impl Started<'_> {
    /// Takes the reply.
    ///
    /// # Errors
    /// As [`Peer::call`], without its second attempt.
    pub fn finish<C: Call>(mut self, into: &mut [u8]) -> Result<(C::Reply, usize), Status> {
        let outcome = self.conn.receive::<C>(self.pending, into)?;
        self.peer.put_back(self.conn);
        outcome
    }
}
