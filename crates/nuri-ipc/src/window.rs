//! Windows: memory that peers read and write by themselves.
//!
//! One rank registers a window under a number. Other ranks attach to the window, and then put, get
//! and add without the help of another process. The window's first page holds the count of notices.
//! Peers write a window at will. Bytes are copied and words are atomic, and nothing more is
//! promised about them.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bell::{self, Bell};
use crate::copy::Stores;
use crate::error::{Error, Result};
use crate::region::{PAGE, Region, Share};
use crate::socket;

const MAGIC: u64 = u64::from_le_bytes(*b"nuri-iw1");
const NOTICES: usize = 0;

/// Windows of one endpoint, by number.
#[derive(Debug, Default)]
pub(crate) struct Windows(Mutex<HashMap<u64, (OwnedFd, usize)>>);

impl Windows {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, (OwnedFd, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new one.
    pub(crate) fn create(&self, number: u64, len: usize, bell: &Bell) -> Result<Window> {
        let size = len.checked_next_multiple_of(PAGE).and_then(|size| size.checked_add(PAGE));
        let size = size.ok_or(Error::OutOfRange("the window is too long"))?;
        let mut all = self.all();
        if all.contains_key(&number) {
            return Err(Error::OutOfRange("the window's number is in use"));
        }
        let (fd, region) = Region::create(size, Share::Writable)?;
        all.insert(number, (fd, len));
        Ok(Window { region: Arc::new(region), len, bell: bell.clone() })
    }

    /// Nobody can attach to it any more; who has keeps it.
    pub(crate) fn remove(&self, number: u64) {
        self.all().remove(&number);
    }

    /// Answers a peer that asks for a window; says whether that is what it did.
    pub(crate) fn answer(
        &self,
        socket: &OwnedFd,
        words: &[u64; socket::WORDS],
        bell: BorrowedFd<'_>,
    ) -> bool {
        let [MAGIC, number, ..] = words else { return false };
        let all = self.all();
        let _ = match all.get(number) {
            Some((fd, len)) => {
                let words = [MAGIC, *len as u64, u64::from(bell::sign_up()), 0, 0, 0, 0, 0];
                socket::send(socket, words, &[fd.as_fd(), bell])
            }
            None => socket::send(socket, [MAGIC; socket::WORDS], &[]),
        };
        true
    }
}

/// Asks a peer for a window; nothing when it has none of that number.
pub(crate) fn attach(socket: &OwnedFd, number: u64) -> Result<Option<Window>> {
    socket::send(socket, [MAGIC, number, 0, 0, 0, 0, 0, 0], &[])?;
    let Some((words, fds)) = socket::receive(socket) else { return Ok(None) };
    let [fd, bell] = fds.as_slice() else { return Ok(None) };
    let len = usize::try_from(words[1]).ok().filter(|len| *len < 1 << 46);
    let len = len.ok_or(Error::OutOfRange("the window is too long"))?;
    let region = Region::open(fd, len.next_multiple_of(PAGE) + PAGE, Share::Writable)?;
    Ok(Some(Window { region: Arc::new(region), len, bell: Bell::open(bell, words[2] == 1)? }))
}

/// Shared memory of one rank, as its owner or a peer holds it.
#[derive(Clone, Debug)]
pub struct Window {
    region: Arc<Region>,
    len: usize,
    bell: Bell,
}

impl Window {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing written.
    #[inline]
    pub fn put(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.region.write(self.at(offset, bytes.len())?, bytes, Stores::Cached);
        Ok(())
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], with nothing read.
    #[inline]
    pub fn get(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.region.read(self.at(offset, into.len())?, into);
        Ok(())
    }

    /// Adds to an aligned word, in the machine's byte order, at once for everybody; returns what
    /// it was.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], also when the offset is not a multiple of eight.
    #[inline]
    pub fn fetch_add(&self, offset: usize, value: u64) -> Result<u64> {
        if !offset.is_multiple_of(8) {
            return Err(Error::OutOfRange("words of a window are aligned to eight bytes"));
        }
        Ok(self.region.word(self.at(offset, 8)?).fetch_add(value, AcqRel))
    }

    /// Orders all that this thread did with windows before it against all after it.
    pub fn fence(&self) {
        fence(SeqCst);
    }

    /// Tells the owner that something is done; what was put before is seen by who sees the notice.
    pub fn notify(&self) {
        self.region.word(NOTICES).fetch_add(1, AcqRel);
        self.bell.ring();
    }

    /// Notices so far.
    pub fn notices(&self) -> u64 {
        self.region.word(NOTICES).load(Acquire)
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> Result<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(PAGE + offset),
            _ => Err(Error::OutOfRange("beyond the window")),
        }
    }
}
