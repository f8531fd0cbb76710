//! Serves the requests of one connection.
//!
//! The connection's threads take turns. One thread reads a request, lets the next thread read, and
//! carries the request out itself. So a request stays on one thread, and a client that sends one at
//! a time has one thread. Nothing is held for a slow client: a request counts as arrived when all
//! of it is here, and as done before it is answered. Large requests go in pieces.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use nuri_io::buf::AlignedBuf;
use parking_lot::Mutex;

use crate::age::AGE;
use crate::client::Client;
use crate::export::{About, Asked, Export, Kept, Zeroing};
use crate::handshake::Agreed;
use crate::input::{End, Input};
use crate::order::{Arrived, Use};
use crate::protocol::request::Request;
use crate::protocol::{Errno, command, command_flag, reply};
use crate::socket::{STUCK, Socket};

/// Most bytes that a thread holds.
const PIECE: usize = 1 << 20;
const STACK: usize = 1 << 20;
/// Most extents in one answer.
const EXTENTS: usize = 1024;

pub(crate) struct Connection {
    socket: Arc<Socket>,
    client: Arc<Client>,
    input: Mutex<Input>,
    /// Held while an answer is sent.
    output: Mutex<()>,
    export: Arc<dyn Export>,
    about: About,
    structured: bool,
    allocation: bool,
    /// Requests that are served at once.
    in_flight: usize,
    /// Threads, and those of them that wait for a request.
    threads: Mutex<Vec<JoinHandle<()>>>,
    idle: AtomicUsize,
    /// Failed flushes of all connections that this one was told of.
    told_failures: AtomicU64,
    is_over: AtomicBool,
    /// Of the client, for the log.
    name: String,
}

/// What a thread does after it read a request. Its place in the order is from when it was read.
enum Job<'c> {
    Serve(Request, Asked<'c>, Option<Arrived<'c>>),
    /// It was answered already, in pieces.
    Done,
}

impl Connection {
    pub(crate) fn new(
        socket: Arc<Socket>,
        (agreed, start): (Agreed, Instant),
        (name, in_flight): (String, usize),
    ) -> Connection {
        let Agreed { export, structured, allocation, rest, .. } = agreed;
        let told_failures = AtomicU64::new(export.told_failures());
        Connection {
            input: Mutex::new(Input::new(socket.clone(), (rest, start), STUCK)),
            output: Mutex::new(()),
            about: export.about(),
            export,
            structured,
            allocation,
            in_flight,
            threads: Mutex::default(),
            told_failures,
            idle: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            client: Arc::new(Client::new(socket.clone())),
            socket,
            name,
        }
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Serves requests until the connection is over, and all that came are answered.
    pub(crate) fn run_all(self: &Arc<Self>) {
        self.run();
        loop {
            // None is started any more, but by one that runs.
            let Some(thread) = self.threads.lock().pop() else { break };
            if thread.join().is_err() {
                self.end("a thread of it ended");
            }
        }
        self.client.leave();
    }

    /// A thread of the connection.
    fn run(self: &Arc<Self>) {
        let mut buffer = AlignedBuf::zeroed(PIECE);
        while let Some(job) = self.next(&mut buffer) {
            let outcome = match job {
                Job::Serve(request, asked, arrived) => {
                    self.serve(&request, asked, arrived, &mut buffer)
                }
                Job::Done => Ok(()),
            };
            if let Err(error) = outcome {
                self.end(&format!("its answer could not be sent: {error}"));
            }
        }
    }

    fn end(&self, why: &str) {
        if !self.is_over.swap(true, Ordering::SeqCst) {
            tracing::debug!("nbd: {}: connection ends: {why}", self.name);
        }
        self.client.leave();
    }

    /// Reads the next request; the bytes of a write are in `buffer` then.
    fn next(self: &Arc<Self>, buffer: &mut AlignedBuf) -> Option<Job<'_>> {
        self.idle.fetch_add(1, Ordering::SeqCst);
        let mut input = self.input.lock();
        self.idle.fetch_sub(1, Ordering::SeqCst);
        if self.is_over.load(Ordering::SeqCst) {
            return None;
        }
        match self.read_request(&mut input, buffer) {
            Ok(Some(job)) => {
                self.have_a_reader();
                Some(job)
            }
            Ok(None) => {
                // What came before is still answered.
                self.is_over.store(true, Ordering::SeqCst);
                None
            }
            Err(End::Gone) => {
                self.is_over.store(true, Ordering::SeqCst);
                None
            }
            Err(end) => {
                drop(input);
                self.end(&end.to_string());
                None
            }
        }
    }

    /// Another thread reads on while this one is busy.
    fn have_a_reader(self: &Arc<Self>) {
        let mut threads = self.threads.lock();
        // The first one is the server's.
        if self.idle.load(Ordering::SeqCst) > 0 || threads.len() + 1 >= self.in_flight {
            return;
        }
        let own = self.clone();
        let thread = std::thread::Builder::new().name("nbd".into()).stack_size(STACK);
        // With fewer threads it takes longer.
        threads.extend(thread.spawn(move || own.run()));
    }

    /// `None`: the client says goodbye.
    fn read_request(
        &self,
        input: &mut Input,
        buffer: &mut AlignedBuf,
    ) -> Result<Option<Job<'_>>, End> {
        let request = input.request()?;
        if request.command == command::DISCONNECT {
            return Ok(None);
        }
        let payload = request.payload() as usize;
        if let Err(errno) = self.check(&request) {
            self.discard(input, payload, buffer)?;
            self.answer(&request, Err(errno)).map_err(End::Io)?;
            return Ok(Some(Job::Done));
        }
        if payload > PIECE {
            self.write_in_pieces(&request, input, buffer)?;
            return Ok(Some(Job::Done));
        }
        buffer.set_len(payload);
        input.exactly(buffer)?;
        let asked = self.asked(input, &request);
        let arrived = self.arrival(&request);
        self.check_client()?;
        Ok(Some(Job::Serve(request, asked, arrived)))
    }

    /// How the request came that was read last.
    fn asked(&self, input: &Input, request: &Request) -> Asked<'_> {
        let deadline = input.since() + AGE;
        Asked { deadline, cookie: request.cookie, client: &self.client }
    }

    /// A client that left may have repeated its requests elsewhere. Whatever it sends there comes
    /// after it left here: so what is in the order before that is seen is before the repeated one.
    fn check_client(&self) -> Result<(), End> {
        if self.client.is_left() { Err(End::Gone) } else { Ok(()) }
    }

    /// Its place in the order, where it has one as a whole.
    fn arrival(&self, request: &Request) -> Option<Arrived<'_>> {
        let how = match request.command {
            command::READ if request.len as usize <= PIECE => Use::Reads,
            command::WRITE | command::TRIM | command::WRITE_ZEROES => Use::Changes,
            _ => return None,
        };
        Some(self.arrive(request.offset, u64::from(request.len), how))
    }

    /// With the whole of the blocks that it touches.
    fn arrive(&self, start: u64, len: u64, how: Use) -> Arrived<'_> {
        let block = u64::from(self.about.block);
        let (first, end) = (start / block * block, (start + len).next_multiple_of(block));
        self.export.order().arrive(first, end, how)
    }

    fn discard(&self, input: &mut Input, len: usize, buffer: &mut AlignedBuf) -> Result<(), End> {
        let mut left = len;
        while left > 0 {
            buffer.set_len(left.min(PIECE));
            input.exactly(buffer)?;
            left -= buffer.len();
        }
        Ok(())
    }

    fn write_in_pieces(
        &self,
        request: &Request,
        input: &mut Input,
        buffer: &mut AlignedBuf,
    ) -> Result<(), End> {
        let (mut done, len) = (0, request.len as usize);
        let mut outcome = Ok(());
        while done < len {
            buffer.set_len((len - done).min(PIECE));
            input.exactly(buffer)?;
            if outcome.is_ok() {
                let at = request.offset + done as u64;
                let asked = self.asked(input, request);
                let arrived = self.arrive(at, buffer.len() as u64, Use::Changes);
                self.check_client()?;
                arrived.wait();
                outcome = self.write(request, asked, at, buffer);
            }
            done += buffer.len();
        }
        self.answer(request, outcome).map_err(End::Io)
    }

    /// Whether the request can be served at all.
    fn check(&self, request: &Request) -> Result<(), Errno> {
        let changes =
            matches!(request.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if changes && self.about.read_only {
            return Err(Errno::Perm);
        }
        if !request.has_known_flags() {
            return Err(Errno::Invalid);
        }
        let is_within = request.end().is_some_and(|end| end <= self.about.size);
        match request.command {
            command::FLUSH => Ok(()),
            command::WRITE | command::WRITE_ZEROES if !is_within => Err(Errno::NoSpace),
            _ if !is_within => Err(Errno::Invalid),
            _ => Ok(()),
        }
    }

    /// Writes bytes when it is their turn.
    fn write(
        &self,
        request: &Request,
        asked: Asked<'_>,
        at: u64,
        data: &[u8],
    ) -> Result<(), Errno> {
        let is_stable = request.has(command_flag::FUA);
        let kept = if is_stable { Kept::Durably } else { Kept::BeyondACrash };
        self.export.write(asked, at, data, kept)
    }

    /// Makes all durable that was answered. What one connection is told of lost bytes, each is.
    fn flush(&self, asked: Asked<'_>) -> Result<(), Errno> {
        let flushed = self.export.flush(asked);
        if flushed == Err(Errno::Shutdown) {
            return flushed;
        }
        if flushed.is_err() {
            self.export.order().note_failure();
        }
        let failures = self.export.order().failures();
        if self.told_failures.swap(failures, Ordering::SeqCst) != failures {
            return Err(Errno::Io);
        }
        flushed
    }

    fn serve(
        &self,
        request: &Request,
        asked: Asked<'_>,
        arrived: Option<Arrived<'_>>,
        buffer: &mut AlignedBuf,
    ) -> io::Result<()> {
        arrived.iter().for_each(Arrived::wait);
        if asked.is_too_old() {
            return self.answer(request, Err(Errno::Shutdown));
        }
        let (at, len) = (request.offset, u64::from(request.len));
        let export = &*self.export;
        let outcome = match request.command {
            command::READ => return self.read(request, asked, arrived, buffer),
            command::BLOCK_STATUS => return self.block_status(request, asked),
            command::STAMP => return self.stamp(request),
            command::WRITE => self.write(request, asked, at, buffer),
            command::FLUSH => self.flush(asked),
            command::TRIM => export.trim(asked, at, len).and_then(|()| self.settle(request, asked)),
            command::WRITE_ZEROES => {
                self.zero(request, asked).and_then(|()| self.settle(request, asked))
            }
            // Of what will be read soon.
            command::CACHE => Ok(()),
            _ => Err(Errno::Invalid),
        };
        // Nobody waits for a client that is slow.
        drop(arrived);
        self.answer(request, outcome)
    }

    /// The time, for another server that forwards requests.
    fn stamp(&self, request: &Request) -> io::Result<()> {
        match self.export.stamp() {
            Some(stamp) => {
                let head = reply::data(request.cookie, 0, 4, true);
                self.send(&[&head[..], &stamp.to_be_bytes()].concat())
            }
            None => self.answer(request, Err(Errno::Invalid)),
        }
    }

    fn zero(&self, request: &Request, asked: Asked<'_>) -> Result<(), Errno> {
        let how = Zeroing {
            keeps_room: request.has(command_flag::NO_HOLE),
            is_fast: request.has(command_flag::FAST_ZERO),
        };
        self.export.write_zeroes(asked, request.offset, u64::from(request.len), how)
    }

    /// Makes durable what was changed otherwise than by a write, where that was asked for.
    fn settle(&self, request: &Request, asked: Asked<'_>) -> Result<(), Errno> {
        if request.has(command_flag::FUA) { self.flush(asked) } else { Ok(()) }
    }

    fn read(
        &self,
        request: &Request,
        mut asked: Asked<'_>,
        mut arrived: Option<Arrived<'_>>,
        buffer: &mut AlignedBuf,
    ) -> io::Result<()> {
        if arrived.is_none() && request.has(command_flag::DF) && self.structured {
            return self.answer(request, Err(Errno::Overflow));
        }
        // An answer without structure is one piece for the client: nothing comes between.
        let mut one_answer = None;
        let (mut done, len) = (0, request.len as usize);
        loop {
            let (at, count) = (request.offset + done as u64, (len - done).min(PIECE));
            buffer.set_len(count);
            let own = arrived.take().unwrap_or_else(|| {
                let arrived = self.arrive(at, count as u64, Use::Reads);
                arrived.wait();
                arrived
            });
            let found = self.export.read(asked, at, buffer);
            drop(own);
            if let Err(errno) = found {
                return match one_answer {
                    None => self.answer(request, Err(errno)),
                    // It was promised already.
                    Some(_) => Err(io::Error::other("a read failed in the middle")),
                };
            }
            let is_last = done + count == len;
            let head = match self.structured {
                true if len == 0 => reply::done(request.cookie),
                true => reply::data(request.cookie, at, count as u32, is_last),
                false if done == 0 => reply::simple(request.cookie, None),
                false => Vec::new(),
            };
            if self.structured {
                let _sending = self.output.lock();
                self.socket.send(&head, buffer)?;
            } else {
                one_answer.get_or_insert_with(|| self.output.lock());
                self.socket.send(&head, buffer)?;
            }
            done += count;
            if is_last {
                return Ok(());
            }
            // A client that takes the bytes is there.
            asked.deadline = Instant::now() + AGE;
        }
    }

    fn block_status(&self, request: &Request, asked: Asked<'_>) -> io::Result<()> {
        if !self.allocation || request.len == 0 {
            return self.answer(request, Err(Errno::Invalid));
        }
        let most = if request.has(command_flag::REQ_ONE) { 1 } else { EXTENTS };
        match self.export.extents(asked, request.offset, request.len, most) {
            Ok(extents) => self.send(&reply::block_status(request.cookie, &extents)),
            Err(errno) => self.answer(request, Err(errno)),
        }
    }

    /// Answers a request that has no bytes to send.
    fn answer(&self, request: &Request, outcome: Result<(), Errno>) -> io::Result<()> {
        if outcome == Err(Errno::Shutdown) {
            // It may be repeated, here or elsewhere: no error is told.
            return Err(io::Error::other("the request cannot be served by this server now"));
        }
        let is_read = matches!(request.command, command::READ | command::BLOCK_STATUS);
        self.send(&match outcome {
            Err(errno) if self.structured && is_read => reply::error(request.cookie, errno),
            outcome => reply::simple(request.cookie, outcome.err()),
        })
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let _sending = self.output.lock();
        self.socket.send(bytes, &[])
    }
}
