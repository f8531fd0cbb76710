//! A link to another server: sends requests, and receives their answers.
//!
//! The waiting threads take turns. One of them reads answers, gives the other threads theirs, and
//! lets the next thread read when its own answer came. So a single request wakes no other thread.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::dial::Dialed;
use super::until::Until;
use crate::input::{End, Input, LOOK};
use crate::protocol::reply::{Head, Piece};
use crate::protocol::request::Request;
use crate::protocol::{Errno, command};
use crate::socket::Socket;

/// How often the other server is asked for its time.
const ASK: Duration = Duration::from_millis(500);
/// A server that says nothing for so long although it was asked stands still, or is cut off.
const SILENT: Duration = Duration::from_secs(3);
/// Requests at once: fewer than the other server's threads for a link.
const IN_FLIGHT: usize = 48;
/// The longest answer.
const MOST: u32 = 33 << 20;

/// The link ended before the answer came: the request was served, or was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the connection to the server that owns the volume is lost")]
pub struct Lost;

pub type Answer = Result<Vec<u8>, Errno>;

/// A connection to another server.
pub struct Link {
    socket: Arc<Socket>,
    pub(crate) size: u64,
    number: AtomicU32,
    /// Held while a request is sent.
    sending: Mutex<()>,
    /// Held by who reads.
    input: Mutex<Input>,
    waiting: Mutex<Waiting>,
    /// Requests that are under way.
    asking: Mutex<usize>,
    ended: Condvar,
    /// What the other server's clock showed, and when at the latest.
    stamp: Mutex<(u32, Instant)>,
}

#[derive(Default)]
struct Waiting {
    calls: HashMap<u64, Call>,
    has_reader: bool,
    is_over: bool,
    heard: Option<Instant>,
}

#[derive(Default)]
struct Call {
    /// Else who asks is not waiting yet.
    is_sent: bool,
    answer: Option<Answer>,
    bell: Arc<Condvar>,
}

impl Link {
    /// Asks for the other server's clock once, and from then on by a thread of its own.
    pub fn start(dialed: Dialed) -> Result<Arc<Link>, Lost> {
        // What is not taken for so long is not answered either.
        dialed.socket.set_timeouts(LOOK, SILENT).map_err(|_| Lost)?;
        dialed.socket.forget_untaken(SILENT).map_err(|_| Lost)?;
        let link = Arc::new(Link {
            socket: dialed.socket,
            size: dialed.size,
            number: AtomicU32::new(0),
            sending: Mutex::new(()),
            input: Mutex::new(dialed.input),
            waiting: Mutex::default(),
            asking: Mutex::new(0),
            ended: Condvar::new(),
            stamp: Mutex::new((0, Instant::now())),
        });
        link.ask_time()?;
        let weak = Arc::downgrade(&link);
        let thread = std::thread::Builder::new().name("nbd-stamps".into());
        thread.spawn(move || keep_time(&weak)).map_err(|_| Lost)?;
        Ok(link)
    }

    /// Until when the other server may serve a request with that deadline here.
    pub fn until(&self, deadline: Instant) -> Until {
        Until::of(deadline, *self.stamp.lock())
    }

    /// No request is sent any more, and none that waits is answered.
    pub fn end(&self) {
        let mut waiting = self.waiting.lock();
        waiting.is_over = true;
        waiting.wake_all();
        self.socket.leave();
    }

    fn ask_time(&self) -> Result<(), Lost> {
        let request = Request { flags: 0, command: command::STAMP, cookie: 0, offset: 0, len: 4 };
        let answer = self.exchange(Until::of_cookie(0), request, &[])?.map_err(|_| Lost)?;
        let stamp: [u8; 4] = answer.try_into().map_err(|_| Lost)?;
        // The answer may have been under way for long: then the clock is further, and requests are
        // too old somewhat earlier.
        *self.stamp.lock() = (u32::from_be_bytes(stamp), Instant::now());
        Ok(())
    }

    /// Sends a request and waits for its answer: the bytes of a read, or of a block status.
    pub(crate) fn call(&self, until: Until, asked: Request, data: &[u8]) -> Result<Answer, Lost> {
        let _place = self.enter();
        self.exchange(until, asked, data)
    }

    fn exchange(&self, until: Until, asked: Request, data: &[u8]) -> Result<Answer, Lost> {
        let cookie = until.cookie(self.number.fetch_add(1, Ordering::Relaxed));
        let request = Request { cookie, ..asked };
        let bell = {
            let mut waiting = self.waiting.lock();
            if waiting.is_over {
                return Err(Lost);
            }
            waiting.heard.get_or_insert_with(Instant::now);
            waiting.calls.entry(cookie).or_default().bell.clone()
        };
        let sent = {
            let _sending = self.sending.lock();
            self.socket.send(&request.bytes(), data)
        };
        if sent.is_err() {
            self.end();
        }
        self.wait(cookie, &bell)
    }

    /// The other server has a thread for each that is let in, and some more: one of them always
    /// reads, so that nobody here waits for ever while sending.
    fn enter(&self) -> Place<'_> {
        let mut asking = self.asking.lock();
        while *asking >= IN_FLIGHT {
            self.ended.wait(&mut asking);
        }
        *asking += 1;
        Place(self)
    }

    fn wait(&self, cookie: u64, bell: &Condvar) -> Result<Answer, Lost> {
        let mut waiting = self.waiting.lock();
        if let Some(call) = waiting.calls.get_mut(&cookie) {
            call.is_sent = true;
        }
        loop {
            let answer = waiting.calls.get_mut(&cookie).and_then(|call| call.answer.take());
            if answer.is_some() || waiting.is_over {
                waiting.calls.remove(&cookie);
                waiting.hand_over();
                return answer.ok_or(Lost);
            }
            if waiting.has_reader {
                bell.wait(&mut waiting);
                continue;
            }
            waiting.has_reader = true;
            drop(waiting);
            let found = self.read_answer();
            waiting = self.waiting.lock();
            waiting.has_reader = false;
            match found {
                Ok(Some((of, answer))) => waiting.deliver(of, answer),
                Ok(None) if waiting.is_silent() => waiting.is_over = true,
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!("nbd: the link to a volume's owner ends: {error}");
                    waiting.is_over = true;
                }
            }
            if waiting.is_over {
                waiting.wake_all();
                self.socket.leave();
            }
        }
    }

    /// The next answer; `None` where none came for a second.
    fn read_answer(&self) -> Result<Option<(u64, Answer)>, LinkError> {
        let mut input = self.input.lock();
        if !input.has_begun()? {
            return Ok(None);
        }
        let head = Head::read(&mut input)?;
        if head.len > MOST {
            return Err(LinkError::Strange);
        }
        let mut bytes = vec![0; head.len as usize];
        input.exactly(&mut bytes)?;
        drop(input);
        let answer = match head.piece {
            Piece::Simple(0) | Piece::Done => Ok(Vec::new()),
            Piece::Simple(errno) => Err(Errno::of(errno)),
            Piece::Data if bytes.len() >= 8 => Ok(bytes.split_off(8)),
            Piece::BlockStatus if bytes.len() >= 4 => Ok(bytes.split_off(4)),
            Piece::Error if bytes.len() >= 4 => {
                Err(Errno::of(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
            }
            _ => return Err(LinkError::Strange),
        };
        Ok(Some((head.cookie, answer)))
    }
}

impl Waiting {
    fn wake_all(&self) {
        for call in self.calls.values() {
            call.bell.notify_all();
        }
    }

    fn deliver(&mut self, cookie: u64, answer: Answer) {
        self.heard = Some(Instant::now());
        if let Some(call) = self.calls.get_mut(&cookie) {
            call.answer = Some(answer);
            call.bell.notify_all();
        }
    }

    /// Somebody else reads on.
    fn hand_over(&self) {
        if !self.has_reader
            && let Some(call) =
                self.calls.values().find(|call| call.is_sent && call.answer.is_none())
        {
            call.bell.notify_all();
        }
    }

    /// Whoever waits was told nothing for too long: there is always a question for the time.
    fn is_silent(&self) -> bool {
        self.heard.is_some_and(|at| at.elapsed() >= SILENT)
    }
}

/// Why no answer can be made out.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("{0}")]
    End(#[from] End),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("its answer makes no sense")]
    Strange,
}

/// A request under way.
struct Place<'l>(&'l Link);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.asking.lock() -= 1;
        self.0.ended.notify_one();
    }
}

fn keep_time(link: &Weak<Link>) {
    loop {
        std::thread::sleep(ASK);
        let Some(link) = link.upgrade() else { return };
        if link.ask_time().is_err() {
            link.end();
            return;
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.socket.leave();
    }
}
