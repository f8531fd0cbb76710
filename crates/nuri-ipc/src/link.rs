//! A link: everything that flows from one rank to another. The sender sets it up.
//!
//! The sender makes two regions. `data` is sealed so that only the sender can write it: a page with
//! its words, the record ring, the bulk ring. `back` is the page in which the receiver says how far
//! it is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::arrival::Arrival;
use crate::bell::{self, Bell};
use crate::bulk;
use crate::cma;
use crate::config::{self, Config};
use crate::copy::Stores;
use crate::distance::Distance;
use crate::error::{Error, Result, system};
use crate::heap::{Heap, Lending};
use crate::region::{PAGE, Region, Share};
use crate::ring::{Consumer, Memory, Producer};
use crate::socket;

const MAGIC: u64 = u64::from_le_bytes(*b"nuri-ip1");
const RECORDS_AT: usize = PAGE;

/// Words of `data`, each in its own line.
const BULK_TAIL: usize = 0;
pub(crate) const PING: usize = 64;
/// Words of `back`, each in its own line.
const RECORDS_HEAD: usize = 0;
const BULK_HEAD: usize = 64;
pub(crate) const PONG: usize = 128;
/// The last remote message and whether it was read: its number doubled, plus one if so.
pub(crate) const REMOTE: usize = 192;

/// The record ring's memory.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    data: Arc<Region>,
    back: Arc<Region>,
    size: u64,
}

impl Records {
    /// The region that the sender writes.
    pub(crate) fn data(&self) -> &Region {
        &self.data
    }

    /// Memory taken beside the bulk ring, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        RECORDS_AT + self.size as usize + self.back.len()
    }

    /// The page that the receiver writes.
    pub(crate) fn back(&self) -> &Arc<Region> {
        &self.back
    }
}

impl Memory for Records {
    #[inline]
    fn size(&self) -> u64 {
        self.size
    }
    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.data.word(RECORDS_AT + at as usize).load(Acquire)
    }
    #[inline]
    fn publish(&self, at: u64, word: u64) {
        self.data.word(RECORDS_AT + at as usize).store(word, Release);
    }
    #[inline]
    fn write(&self, at: u64, bytes: &[u8]) {
        self.data.write(RECORDS_AT + at as usize, bytes, Stores::Cached);
    }
    #[inline]
    fn read(&self, at: u64, into: &mut [u8]) {
        self.data.read(RECORDS_AT + at as usize, into);
    }
    #[inline]
    fn head(&self) -> u64 {
        self.back.word(RECORDS_HEAD).load(Acquire)
    }
    #[inline]
    fn set_head(&self, head: u64) {
        self.back.word(RECORDS_HEAD).store(head, Release);
    }
}

/// The sender's end.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) id: u64,
    pub(crate) records: Producer<Records>,
    pub(crate) bulk: bulk::Producer,
    pub(crate) bell: Bell,
    pub(crate) distance: Distance,
    /// Whether the peer can read our memory, and why not.
    pub(crate) cross_memory: Result<(), Errno>,
    /// Remote messages so far.
    pub(crate) remotes: u64,
    pub(crate) lending: Lending,
}

/// The receiver's end.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) id: u64,
    pub(crate) rank: u32,
    pub(crate) pid: Option<Pid>,
    /// Remote messages so far.
    pub(crate) remotes: u64,
    pub(crate) records: Consumer<Records>,
    pub(crate) bulk: bulk::Consumer,
    pub(crate) bell: Bell,
    pub(crate) heap: Arc<Region>,
    /// The long message on its way.
    pub(crate) flow: Option<Arrival>,
    /// The sender is gone; what it wrote is still read.
    pub(crate) gone: bool,
}

/// What a greeting says, in words of a packet.
struct Greeting {
    rank: u32,
    size: u32,
    key: u64,
    records: usize,
    bulk: usize,
    heap: usize,
    /// The sender fences others before it sleeps.
    fences: bool,
    /// Where the sender keeps its key, for a try to read its memory.
    at: u64,
}

impl Greeting {
    fn to_words(&self) -> [u64; socket::WORDS] {
        let ranks = u64::from(self.rank) | u64::from(self.size) << 32;
        [
            MAGIC,
            ranks,
            self.key,
            self.records as u64,
            self.bulk as u64,
            self.at,
            self.heap as u64,
            u64::from(self.fences),
        ]
    }

    fn from_words(words: [u64; socket::WORDS]) -> Option<Self> {
        let [MAGIC, ranks, key, records, bulk, at, heap, fences] = words else { return None };
        let heap = usize::try_from(heap).ok()?;
        let (records, bulk) = (usize::try_from(records).ok()?, usize::try_from(bulk).ok()?);
        config::sizes_fit(records, bulk, heap).ok()?;
        Some(Self {
            rank: ranks as u32,
            size: (ranks >> 32) as u32,
            key,
            records,
            bulk,
            heap,
            at,
            fences: fences == 1,
        })
    }
}

fn places(data: Region, back: Region, greeting: &Greeting) -> (Records, bulk::Place) {
    let (data, back) = (Arc::new(data), Arc::new(back));
    data.populate(0, RECORDS_AT + greeting.records);
    back.populate(0, PAGE);
    let place = bulk::Place {
        data: Arc::clone(&data),
        back: Arc::clone(&back),
        at: RECORDS_AT + greeting.records,
        size: greeting.bulk,
        tail: BULK_TAIL,
        head: BULK_HEAD,
    };
    (Records { data, back, size: greeting.records as u64 }, place)
}

/// A link just made by its sender, and what tells of the peer's end.
pub(crate) struct Made {
    pub(crate) link: Outgoing,
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: Option<OwnedFd>,
}

/// Sets a link up over a socket; nothing when the peer went away meanwhile.
pub(crate) fn offer(
    socket: OwnedFd,
    id: u64,
    config: &Config,
    heap: &Heap,
    bell: BorrowedFd<'_>,
) -> Result<Option<Made>> {
    let mut key = [0; 8];
    let random = |_| Error::System { what: "random numbers", errno: rustix::io::Errno::IO };
    getrandom::fill(&mut key).map_err(random)?;
    let key = u64::from_le_bytes(key);
    let greeting = Greeting {
        at: &raw const key as u64,
        fences: bell::sign_up(),
        rank: config.rank,
        size: config.size,
        key,
        records: config.records,
        bulk: config.bulk,
        heap: heap.len(),
    };
    let (data_fd, data) = Region::create(data_len(&greeting), Share::ReadOnly)?;
    let (back_fd, back) = Region::create(PAGE, Share::Writable)?;
    let pidfd = socket::peer(&socket).and_then(pidfd);
    let fds = [data_fd.as_fd(), back_fd.as_fd(), heap.fd().as_fd(), bell];
    if socket::send(&socket, greeting.to_words(), &fds).is_err() {
        return Ok(None);
    }
    let Some((words, fds)) = socket::receive(&socket) else { return Ok(None) };
    let [theirs] = fds.as_slice() else { return Ok(None) };
    let bell = Bell::open(theirs, words[2] == 1)?;
    let (records, bulk) = places(data, back, &greeting);
    let link = Outgoing {
        id,
        records: Producer::new(records, greeting.key),
        bulk: bulk::Producer::new(bulk),
        bell,
        distance: Distance::default(),
        cross_memory: match words[1] {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno.min(4095) as i32)),
        },
        remotes: 0,
        lending: Lending::default(),
    };
    Ok(Some(Made { link, socket, pidfd }))
}

/// Takes what a peer offers on an accepted socket, once it has been checked.
pub(crate) fn take(
    socket: &OwnedFd,
    (words, fds): &([u64; socket::WORDS], Vec<OwnedFd>),
    id: u64,
    size: u32,
    bell: BorrowedFd<'_>,
) -> Option<(Incoming, Option<OwnedFd>)> {
    let greeting = Greeting::from_words(*words)?;
    let [data, back, heap, theirs] = fds.as_slice() else { return None };
    if greeting.rank >= size || greeting.size != size {
        return None;
    }
    let data = Region::open(data, data_len(&greeting), Share::ReadOnly).ok()?;
    let back = Region::open(back, PAGE, Share::Writable).ok()?;
    let heap = Region::open(heap, greeting.heap, Share::ReadOnly).ok()?;
    let theirs = Bell::open(theirs, greeting.fences).ok()?;
    let pid = socket::peer(socket);
    let tried = pid.map_or(Err(Errno::SRCH), |pid| cma::probe(pid, greeting.at, greeting.key));
    let answer = tried.err().map_or(0, |errno| errno.raw_os_error() as u64);
    socket::send(socket, [MAGIC, answer, u64::from(bell::sign_up()), 0, 0, 0, 0, 0], &[bell])
        .ok()?;
    let (records, bulk) = places(data, back, &greeting);
    let link = Incoming {
        id,
        rank: greeting.rank,
        pid: pid.filter(|_| tried.is_ok()),
        remotes: 0,
        records: Consumer::new(records, greeting.key),
        bulk: bulk::Consumer::new(bulk),
        bell: theirs,
        heap: Arc::new(heap),
        flow: None,
        gone: false,
    };
    Some((link, pid.and_then(pidfd)))
}

fn data_len(greeting: &Greeting) -> usize {
    RECORDS_AT + greeting.records + greeting.bulk
}

/// Readable once the process has ended, even if a child of it keeps the socket open.
fn pidfd(pid: Pid) -> Option<OwnedFd> {
    let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    fd.map_err(system("pidfd_open")).ok()
}
