//! The endpoint as programs see it: calls that wait, requests that do not.
//!
//! [`Endpoint`] may be used by many threads, [`SingleEndpoint`] by one at a time, without locks.

#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::bell::{LOOKS, Next, Patience};
use crate::config::Config;
use crate::engine::{Engine, Now};
use crate::error::{Error, Result};
use crate::guard::{Guard, ManyThreads, OneThread};
use crate::heap::Loan;
use crate::info::Info;
use crate::matching::Selector;
use crate::requests::{Completion, Request, Status};
use crate::span::{Gather, Scatter};
use crate::watcher::Desk;
use crate::window::Window;

/// One rank of a session. Dropping it closes it: peers see [`Error::PeerGone`] once they have read
/// what was sent to them.
pub struct Endpoint<G: Guard = ManyThreads> {
    guard: G,
    desk: Arc<Desk>,
    rank: u32,
    size: u32,
    /// For how many more waits the core counts as shared with a peer.
    crowded: AtomicU32,
}

/// Waits after one that shared its core, until that is found out again.
const CROWDED_FOR: u32 = 64;
/// Looks of a receive on a shared core, which is given away after each.
const YIELDS: u32 = 32;

/// An endpoint without locks, which threads cannot share.
pub type SingleEndpoint = Endpoint<OneThread>;

impl Endpoint {
    /// Opens a rank for any number of threads.
    ///
    /// # Errors
    /// [`Error::RankTaken`], [`Error::BadName`], [`Error::NotPrivate`], [`Error::OutOfRange`],
    /// [`Error::System`].
    pub fn open(config: Config) -> Result<Self> {
        Self::around(config, ManyThreads::new)
    }
}

impl SingleEndpoint {
    /// Opens a rank for one thread; errors as [`Endpoint::open`].
    pub fn open_single(config: Config) -> Result<Self> {
        Self::around(config, OneThread::new)
    }
}

impl<G: Guard> Endpoint<G> {
    fn around(config: Config, guard: impl FnOnce(Engine) -> G) -> Result<Self> {
        let engine = Engine::open(config)?;
        let (desk, config) = (Arc::clone(engine.desk()), engine.config());
        let (rank, size) = (config.rank, config.size);
        let crowded = AtomicU32::new(0);
        Ok(Self { guard: guard(engine), desk, rank, size, crowded })
    }

    /// This endpoint's rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks of the session are below this.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Sends a message; returns once the bytes may be changed again.
    ///
    /// # Errors
    /// [`Error::WrongRank`], [`Error::PeerGone`], [`Error::PeerAbsent`], [`Error::System`].
    #[inline]
    pub fn send(&self, to: u32, tag: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: `send_gather` returns only when nothing uses the gather any more.
        let gather = unsafe { Gather::new(std::iter::once((bytes.as_ptr(), bytes.len()))) };
        self.send_gather(to, tag, gather)
    }

    /// As [`Endpoint::send`], from several buffers in order.
    pub fn send_vectored(&self, to: u32, tag: u64, parts: &[IoSlice<'_>]) -> Result<()> {
        // SAFETY: as in `send`.
        let gather = unsafe { Gather::new(parts.iter().map(|p| (p.as_ptr(), p.len()))) };
        self.send_gather(to, tag, gather)
    }

    /// Sends a message of up to 16 KiB if that needs no waiting; says whether it did.
    ///
    /// # Errors
    /// [`Error::WrongRank`]; what else is wrong, a send that waits says.
    #[inline]
    pub fn try_send(&self, to: u32, tag: u64, bytes: &[u8]) -> Result<bool> {
        if to >= self.size {
            return Err(Error::WrongRank { rank: to, size: self.size });
        }
        // SAFETY: nothing uses the gather after the call.
        let gather = unsafe { Gather::new(std::iter::once((bytes.as_ptr(), bytes.len()))) };
        Ok(self.guard.with(|engine| engine.send_now(to, tag, &gather)))
    }

    #[inline]
    fn send_gather(&self, to: u32, tag: u64, gather: Gather) -> Result<()> {
        if self.guard.with(|engine| engine.send_now(to, tag, &gather)) {
            return Ok(());
        }
        let request = self.guard.with(|engine| engine.send(to, tag, gather, None))?;
        self.finish(request, None).map(|_| ())
    }

    /// Receives a message into a buffer at least as long. Without a timeout it waits as long as
    /// there is a peer that might send.
    ///
    /// # Errors
    /// [`Error::Truncated`] with the buffer full, [`Error::TimedOut`] with nothing received,
    /// [`Error::PeerGone`], [`Error::BadPeer`], [`Error::WrongRank`]. The timeout does not end a
    /// message of which a part has come.
    #[inline]
    pub fn recv(
        &self,
        from: Selector,
        into: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<Status> {
        // SAFETY: `recv_scatter` returns only when nothing uses the scatter any more.
        let scatter = unsafe { Scatter::new(std::iter::once((into.as_mut_ptr(), into.len()))) };
        self.recv_scatter(from, scatter, timeout)
    }

    /// As [`Endpoint::recv`], into several buffers in order.
    pub fn recv_vectored(
        &self,
        from: Selector,
        parts: &mut [IoSliceMut<'_>],
        timeout: Option<Duration>,
    ) -> Result<Status> {
        // SAFETY: as in `recv`.
        let scatter = unsafe { Scatter::new(parts.iter_mut().map(|p| (p.as_mut_ptr(), p.len()))) };
        self.recv_scatter(from, scatter, timeout)
    }

    #[inline]
    fn recv_scatter(
        &self,
        from: Selector,
        into: Scatter,
        timeout: Option<Duration>,
    ) -> Result<Status> {
        let crowded = self.crowded.load(Relaxed);
        for _ in 0..if crowded > 0 { YIELDS } else { LOOKS } {
            match self.guard.with(|engine| engine.receive_now(from, &into)) {
                Now::Done(result) => return result,
                Now::Nothing if crowded > 0 => {
                    self.crowded.store(crowded - 1, Relaxed);
                    rustix::thread::sched_yield();
                }
                Now::Nothing => std::hint::spin_loop(),
                Now::Other => break,
            }
        }
        let request = self.guard.with(|engine| engine.receive(from, into, None))?;
        self.finish(request, timeout)
    }

    /// Waits for a request that borrows its caller's buffers: it must have ended in any case.
    #[inline]
    fn finish(&self, request: Request, timeout: Option<Duration>) -> Result<Status> {
        match self.wait(request, timeout) {
            Ok(completion) => return completion.result,
            Err(Error::TimedOut) => (),
            Err(e) => return Err(e),
        }
        let cancelled = self.guard.with(|engine| engine.cancel(request))?;
        let result = self.wait(request, None)?.result;
        if cancelled { Err(Error::TimedOut) } else { result }
    }

    /// Starts to send a buffer; its completion gives it back. Errors as [`Endpoint::send`].
    pub fn isend(&self, to: u32, tag: u64, bytes: Vec<u8>) -> Result<Request> {
        // SAFETY: the request owns the buffer, whose bytes stay where they are.
        let gather = unsafe { Gather::new(std::iter::once((bytes.as_ptr(), bytes.len()))) };
        self.guard.with(|engine| engine.send(to, tag, gather, Some(bytes)))
    }

    /// Starts to receive into a buffer, up to its length; its completion gives it back.
    ///
    /// # Errors
    /// [`Error::WrongRank`]; all else is in the completion.
    pub fn irecv(&self, from: Selector, mut into: Vec<u8>) -> Result<Request> {
        // SAFETY: as in `isend`.
        let scatter = unsafe { Scatter::new(std::iter::once((into.as_mut_ptr(), into.len()))) };
        self.guard.with(|engine| engine.receive(from, scatter, Some(into)))
    }

    /// Starts to send buffers of the caller's.
    ///
    /// # Safety
    /// They stay readable and unchanged until the request's completion has been taken or the
    /// endpoint is closed.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub unsafe fn isend_raw(
        &self,
        to: u32,
        tag: u64,
        parts: impl Iterator<Item = (*const u8, usize)>,
    ) -> Result<Request> {
        // SAFETY: the caller's contract.
        let gather = unsafe { Gather::new(parts) };
        self.guard.with(|engine| engine.send(to, tag, gather, None))
    }

    /// Starts to receive into buffers of the caller's.
    ///
    /// # Safety
    /// They stay writable and unused by others until the request's completion has been taken or the
    /// endpoint is closed.
    ///
    /// # Errors
    /// As [`Endpoint::irecv`].
    pub unsafe fn irecv_raw(
        &self,
        from: Selector,
        parts: impl Iterator<Item = (*mut u8, usize)>,
    ) -> Result<Request> {
        // SAFETY: the caller's contract.
        let scatter = unsafe { Scatter::new(parts) };
        self.guard.with(|engine| engine.receive(from, scatter, None))
    }

    /// Receives into buffers of the caller's, as [`Endpoint::recv_vectored`].
    ///
    /// # Safety
    /// They are writable and used by nobody else during the call.
    ///
    /// # Errors
    /// As [`Endpoint::recv`].
    pub unsafe fn recv_raw(
        &self,
        from: Selector,
        parts: impl Iterator<Item = (*mut u8, usize)>,
        timeout: Option<Duration>,
    ) -> Result<Status> {
        // SAFETY: the caller's contract; `recv_scatter` returns when nothing uses them any more.
        let scatter = unsafe { Scatter::new(parts) };
        self.recv_scatter(from, scatter, timeout)
    }

    /// Takes a request's completion if it has ended, after one step of progress.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn test(&self, request: Request) -> Result<Option<Completion>> {
        self.step();
        self.guard.with(|engine| engine.is_done(request).map(|_| engine.take(request)))
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and the request goes on; [`Error::UnknownRequest`].
    #[inline]
    pub fn wait(&self, request: Request, timeout: Option<Duration>) -> Result<Completion> {
        self.until(timeout, |engine| match engine.is_done(request) {
            Ok(false) => None,
            Ok(true) => Some(engine.take(request).ok_or(Error::UnknownRequest)),
            Err(e) => Some(Err(e)),
        })?
    }

    /// Waits for the first of several requests to end; returns its place in the slice too.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and they go on; [`Error::UnknownRequest`] if any of them is.
    pub fn wait_any(
        &self,
        requests: &[Request],
        timeout: Option<Duration>,
    ) -> Result<(usize, Completion)> {
        self.until(timeout, |engine| {
            for (at, request) in requests.iter().enumerate() {
                match engine.is_done(*request) {
                    Ok(false) => (),
                    Ok(true) => {
                        let completion = engine.take(*request).ok_or(Error::UnknownRequest);
                        return Some(completion.map(|c| (at, c)));
                    }
                    Err(e) => return Some(Err(e)),
                }
            }
            None
        })?
    }

    /// Takes a request back if no byte has moved for it; its completion is then
    /// [`Error::Cancelled`] and is still to be taken. Otherwise it goes on, and this says `false`.
    ///
    /// # Errors
    /// [`Error::UnknownRequest`].
    pub fn cancel(&self, request: Request) -> Result<bool> {
        let cancelled = self.guard.with(|engine| engine.cancel(request))?;
        if G::SHARED {
            self.desk.bell().ring();
        }
        Ok(cancelled)
    }

    /// The message that a receive would take now, left where it is, after one step of progress.
    ///
    /// # Errors
    /// [`Error::WrongRank`].
    pub fn iprobe(&self, from: Selector) -> Result<Option<Status>> {
        self.step();
        self.guard.with(|engine| engine.probe(from))
    }

    /// Waits for a message that a receive would take, and leaves it where it is.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::WrongRank`].
    pub fn probe(&self, from: Selector, timeout: Option<Duration>) -> Result<Status> {
        self.until(timeout, |engine| engine.probe(from).transpose())?
    }

    /// A buffer of the heap, to fill and to send without a copy.
    ///
    /// # Errors
    /// [`Error::HeapFull`].
    pub fn alloc(&self, len: usize) -> Result<Loan> {
        self.guard.with(|engine| engine.alloc(len))
    }

    /// Lends a buffer to a peer, as a message. It returns to the heap once the peer has dropped it
    /// or died. A peer that receives into a buffer of its own gets a copy.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    pub fn send_loan(&self, to: u32, tag: u64, loan: Loan) -> Result<()> {
        let request = self.guard.with(|engine| engine.send_loan(to, tag, loan))?;
        self.wait(request, None)?.result.map(|_| ())
    }

    /// Starts to receive a message of any length up to [`crate::OPEN_MAX`]: in place if it was
    /// lent, else in a buffer made for it.
    ///
    /// # Errors
    /// As [`Endpoint::irecv`].
    pub fn irecv_open(&self, from: Selector) -> Result<Request> {
        self.guard.with(|engine| engine.receive_open(from))
    }

    /// Receives as [`Endpoint::irecv_open`] starts to, and waits.
    ///
    /// # Errors
    /// [`Error::TimedOut`] with nothing received; all else is in the completion.
    pub fn recv_open(&self, from: Selector, timeout: Option<Duration>) -> Result<Completion> {
        let request = self.irecv_open(from)?;
        match self.wait(request, timeout) {
            Err(Error::TimedOut) if self.cancel(request)? => {
                self.wait(request, None)?;
                Err(Error::TimedOut)
            }
            Err(Error::TimedOut) => self.wait(request, None),
            ended => ended,
        }
    }

    /// Registers memory that peers may read and write under a number.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a number in use, [`Error::System`].
    pub fn window(&self, number: u64, len: usize) -> Result<Window> {
        self.desk.windows.create(number, len, self.desk.bell())
    }

    /// Takes a window's number back. Peers that are attached keep the memory.
    pub fn close_window(&self, number: u64) {
        self.desk.windows.remove(number);
    }

    /// Attaches to a window of a peer, waiting for it to be registered.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::WrongRank`], [`Error::System`].
    pub fn attach(&self, rank: u32, number: u64, timeout: Duration) -> Result<Window> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(window) = self.guard.with(|engine| engine.attach(rank, number))? {
                return Ok(window);
            }
            if Instant::now() >= deadline {
                return Err(Error::TimedOut);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until a window of this endpoint has more notices than `seen`; returns how many.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn wait_notice(&self, on: &Window, seen: u64, timeout: Option<Duration>) -> Result<u64> {
        self.until(timeout, |_| Some(on.notices()).filter(|notices| *notices > seen))
    }

    /// What is used and how much of it.
    pub fn info(&self) -> Info {
        self.guard.with(|engine| engine.info())
    }

    fn step(&self) {
        if self.guard.with(Engine::progress) && G::SHARED {
            self.desk.bell().ring();
        }
    }

    /// Moves everything on until `check` finds something: looks, then gives the core away or
    /// sleeps.
    #[inline]
    fn until<T>(
        &self,
        timeout: Option<Duration>,
        mut check: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<T> {
        let mut deadline = None;
        let mut patience = Patience::after(self.crowded.load(Relaxed) > 0);
        loop {
            let (found, moved) = self.look(&mut check);
            if let Some(found) = found {
                self.crowded.store(if patience.crowded() { CROWDED_FOR } else { 0 }, Relaxed);
                return Ok(found);
            }
            // The time is asked once there is nothing else to do: most waits end before.
            if let (None, Some(timeout)) = (deadline, timeout)
                && !moved
            {
                deadline = Some(Instant::now() + timeout);
            }
            if moved {
                patience.renew();
            } else if patience.lose(|| self.guard.with(|e| e.crowded())) == Next::Sleep {
                if let Some(found) = self.sleep(deadline, &mut check)? {
                    return Ok(found);
                }
                patience.renew();
            }
        }
    }

    #[inline]
    fn look<T>(&self, check: &mut impl FnMut(&mut Engine) -> Option<T>) -> (Option<T>, bool) {
        let (found, moved) = self.guard.with(|engine| match check(engine) {
            Some(found) => (Some(found), false),
            None => {
                let moved = engine.progress();
                (if moved { check(engine) } else { None }, moved)
            }
        });
        if moved && G::SHARED {
            self.desk.bell().ring();
        }
        (found, moved)
    }

    #[cold]
    fn sleep<T>(
        &self,
        deadline: Option<Instant>,
        check: &mut impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<Option<T>> {
        let bell = self.desk.bell();
        bell.arm();
        let (found, moved) = self.look(check);
        if found.is_some() || moved {
            if !G::SHARED {
                bell.disarm();
            }
            return Ok(found);
        }
        let mut longest = self.guard.with(|engine| engine.nap());
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut);
            }
            longest = longest.min(left);
        }
        bell.sleep(longest);
        Ok(None)
    }
}

#[cfg(test)]
impl Endpoint {
    /// Lets a test write what no endpoint writes.
    pub(crate) fn with_link(&self, to: u32, work: impl FnOnce(&mut crate::link::Outgoing)) {
        self.guard.with(|engine| engine.link(to).map(work));
    }
}
