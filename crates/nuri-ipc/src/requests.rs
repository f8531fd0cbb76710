//! The table of requests, under way and done, by number.

use crate::error::{Error, Result};
use crate::heap::{Lent, Loan};
use crate::matching::Key;
use crate::span::{Gather, Scatter};

/// Names a request until its completion has been taken. Numbers are not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request(u64);

impl Request {
    /// As a number that C programs can hold.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The request of that number.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn index(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }
}

/// Longest message that an open receive makes a buffer for, in bytes.
pub const OPEN_MAX: u64 = 1 << 30;

/// What a finished transfer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The peer: who sent it, or to whom it was sent.
    pub source: u32,
    /// Its tag.
    pub tag: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// A finished request.
#[derive(Debug)]
pub struct Completion {
    /// How it ended.
    pub result: Result<Status>,
    /// The buffer that was given to it, if it owned one.
    pub buffer: Option<Vec<u8>>,
    /// The message where its sender lent it, if it was asked for like that.
    pub lent: Option<Lent>,
}

/// A message on its way out.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) to: u32,
    pub(crate) tag: u64,
    pub(crate) from: Gather,
    /// Bytes written to the bulk ring; a message of which some are written cannot be taken back.
    pub(crate) sent: usize,
    /// The number of the remote message that the peer reads by itself.
    pub(crate) remote: Option<u64>,
    /// The buffer, if it is one of the heap.
    pub(crate) loan: Option<Loan>,
}

/// A receive that waits or is being filled.
#[derive(Debug)]
pub(crate) struct Receiving {
    pub(crate) into: Scatter,
    /// Where it waits; nothing once a message was found for it.
    pub(crate) waits: Option<Key>,
    /// It takes a message of any length, as it comes.
    pub(crate) open: bool,
}

#[derive(Debug)]
pub(crate) enum Work {
    Send(Sending),
    Receive(Receiving),
    Done(Result<Status>),
}

#[derive(Debug)]
struct Entry {
    number: u64,
    work: Option<Work>,
    buffer: Option<Vec<u8>>,
    lent: Option<Lent>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Requests {
    /// A new one.
    #[inline]
    pub(crate) fn add(&mut self, work: Work, buffer: Option<Vec<u8>>) -> Request {
        if let Some(index) = self.free.pop()
            && let Some(entry) = self.entries.get_mut(index as usize)
        {
            (entry.work, entry.buffer) = (Some(work), buffer);
            return Request(entry.number);
        }
        let number = self.entries.len() as u64;
        self.entries.push(Entry { number, work: Some(work), buffer, lent: None });
        Request(number)
    }

    #[inline]
    fn entry(&mut self, request: Request) -> Option<&mut Entry> {
        self.entries.get_mut(request.index()).filter(|e| e.number == request.0)
    }

    /// The message of a send under way.
    pub(crate) fn sending(&mut self, request: Request) -> Option<&mut Sending> {
        match self.entry(request)?.work.as_mut()? {
            Work::Send(sending) => Some(sending),
            _ => None,
        }
    }

    /// A receive under way.
    #[inline]
    pub(crate) fn receiving(&mut self, request: Request) -> Option<&mut Receiving> {
        match self.entry(request)?.work.as_mut()? {
            Work::Receive(receiving) => Some(receiving),
            _ => None,
        }
    }

    /// A receive for which a message was found. An open one gets a buffer of its length.
    #[inline]
    pub(crate) fn matched(&mut self, request: Request, len: u64) -> Option<&mut Receiving> {
        let entry = self.entry(request)?;
        let Some(Work::Receive(receiving)) = &mut entry.work else { return None };
        receiving.waits = None;
        if receiving.open {
            let mut bytes = Vec::new();
            if len <= OPEN_MAX && bytes.try_reserve_exact(len as usize).is_ok() {
                bytes.resize(len as usize, 0);
            }
            receiving.into = Scatter::of(&mut bytes);
            entry.buffer = Some(bytes);
        }
        Some(receiving)
    }

    /// Ends an open receive with a message that its sender lent.
    pub(crate) fn finish_lent(&mut self, request: Request, status: Status, lent: Lent) {
        if let Some(entry) = self.entry(request) {
            entry.work = Some(Work::Done(Ok(status)));
            entry.lent = Some(lent);
        }
    }

    /// Ends one that is under way.
    #[inline]
    pub(crate) fn finish(&mut self, request: Request, result: Result<Status>) {
        if let Some(entry) = self.entry(request) {
            entry.work = Some(Work::Done(result));
        }
    }

    /// Whether it has ended.
    #[inline]
    pub(crate) fn is_done(&mut self, request: Request) -> Result<bool> {
        match self.entry(request).and_then(|e| e.work.as_ref()) {
            Some(work) => Ok(matches!(work, Work::Done(_))),
            None => Err(Error::UnknownRequest),
        }
    }

    /// Takes its end; its number is void from then on.
    #[inline]
    pub(crate) fn take(&mut self, request: Request) -> Option<Completion> {
        let entry = self.entry(request)?;
        let Some(Work::Done(_)) = entry.work else { return None };
        let Some(Work::Done(result)) = entry.work.take() else { return None };
        let (buffer, lent) = (entry.buffer.take(), entry.lent.take());
        entry.number = entry.number.wrapping_add(1 << 32);
        self.free.push(request.index() as u32);
        Some(Completion { result, buffer, lent })
    }
}
