//! Receives: matches records in order, and streams long messages to where they belong.

use std::sync::atomic::Ordering::Release;

use super::{Engine, Work};
use crate::arrival::{Arrival, Sink};
use crate::copy::CHUNK;
use crate::error::{Error, Result};
use crate::heap::Lent;
use crate::link::{Incoming, REMOTE};
use crate::matching::{Posted, Selector};
use crate::requests::{Receiving, Request, Status};
use crate::ring::{Corrupt, INLINE, Kind, Record};
use crate::span::Scatter;
use crate::{cma, distance};

/// What a receive that waits for a short message found.
pub(crate) enum Now {
    /// The message.
    Done(Result<Status>),
    /// Nothing yet.
    Nothing,
    /// Something that takes the long way.
    Other,
}

/// What a look at a link found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pull {
    Moved,
    Empty,
    /// A message that nobody wants yet and that there is no room to keep.
    Unwanted,
}

/// A message up to this is in the bulk ring when its record is.
const CHUNK_LEN: u64 = CHUNK as u64;

impl Engine {
    /// Starts a receive.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        selector: Selector,
        into: Scatter,
        buffer: Option<Vec<u8>>,
    ) -> Result<Request> {
        self.post(selector, Receiving { into, waits: None, open: false }, buffer)
    }

    #[inline]
    pub(super) fn post(
        &mut self,
        selector: Selector,
        receiving: Receiving,
        buffer: Option<Vec<u8>>,
    ) -> Result<Request> {
        if let Some(source) = selector.source() {
            self.check_rank(source)?;
        }
        let request = self.requests.add(Work::Receive(receiving), buffer);
        match self.matching.post(selector, request) {
            Posted::Found(id) => self.fill_from_stored(request, id),
            Posted::Waits(key) => {
                if let Some(receiving) = self.requests.receiving(request) {
                    receiving.waits = Some(key);
                }
                self.watch_source(selector, request);
            }
        }
        Ok(request)
    }

    /// Takes a message of a chunk for which nothing has to be matched: no request, no queue.
    #[inline]
    pub(crate) fn receive_now(&mut self, selector: Selector, into: &Scatter) -> Now {
        let Some(source) = selector.source() else { return Now::Other };
        if !self.matching.is_idle() || !self.busy.is_empty() {
            return Now::Other;
        }
        let Some(link) = self.ins.iter_mut().find(|l| l.rank == source && !l.gone) else {
            return Now::Other;
        };
        let record = match link.records.peek() {
            _ if link.flow.is_some() => return Now::Other,
            Ok(Some(record)) => record,
            Ok(None) if self.desk.has_news() => return Now::Other,
            Ok(None) => return Now::Nothing,
            Err(Corrupt) => return Now::Other,
        };
        if !selector.accepts(source, record.tag) {
            return Now::Other;
        }
        let len = match record.kind {
            Kind::Inline => {
                let fits = record.len.min(into.len());
                into.pieces(0, fits, |at, part| link.records.payload(&record, at, part));
                record.len as u64
            }
            Kind::Bulk => match bulk_len(link, &record) {
                Ok(len) if len <= CHUNK as u64 => {
                    take_chunk(link, len as usize, into);
                    len
                }
                _ => return Now::Other,
            },
            _ => return Now::Other,
        };
        if link.records.advance(&record) {
            link.bell.ring();
        }
        Now::Done(whole(Status { source, tag: record.tag, len }, into.len()))
    }

    /// The message that a receive would take, left where it is.
    pub(crate) fn probe(&mut self, selector: Selector) -> Result<Option<Status>> {
        if let Some(source) = selector.source() {
            self.check_rank(source)?;
        }
        let Some((_, _, id)) = self.matching.probe(selector) else { return Ok(None) };
        Ok(self.stored.get(id).map(|message| message.status))
    }

    /// A receive that can never be served ends at once; a peer not linked yet is watched for its
    /// end.
    #[inline]
    fn watch_source(&mut self, selector: Selector, request: Request) {
        let lost = match selector.source() {
            Some(source) if self.is_linked(source) => return,
            Some(source) => self.want(source).err(),
            None if !self.ins.is_empty() || !self.alone() => return,
            None => Some(Error::PeerGone { rank: self.config.size }),
        };
        let Some(why) = lost else { return };
        if let Some(key) = self.requests.receiving(request).and_then(|r| r.waits.take()) {
            self.matching.cancel(key);
        }
        self.requests.finish(request, Err(why));
    }

    #[inline]
    pub(super) fn is_linked(&self, rank: u32) -> bool {
        rank == self.config.rank || self.ins.iter().any(|link| link.rank == rank)
    }

    /// Takes one record or chunk from a link; says whether anything moved.
    #[inline]
    pub(super) fn pull(&mut self, at: usize) -> bool {
        match self.pull_one(at) {
            Ok(Pull::Moved) => true,
            Ok(Pull::Empty) if self.ins[at].gone => {
                self.drop_in(at, Error::PeerGone { rank: self.ins[at].rank });
                true
            }
            Ok(_) => false,
            Err(Corrupt) => {
                let rank = self.ins[at].rank;
                self.drop_in(at, Error::BadPeer { rank });
                true
            }
        }
    }

    #[inline]
    fn pull_one(&mut self, at: usize) -> Result<Pull, Corrupt> {
        let link = &mut self.ins[at];
        if link.flow.is_some() {
            return self.stream(at);
        }
        let Some(record) = link.records.peek()? else { return Ok(Pull::Empty) };
        let taken = match record.kind {
            Kind::Inline => self.take_inline(at, &record),
            Kind::Bulk => self.take_bulk(at, &record)?,
            Kind::Probe => {
                distance::echo(link.records.memory());
                true
            }
            Kind::Remote => self.take_remote(at, &record)?,
            Kind::Loan => self.take_loan(at, &record)?,
            Kind::Pad => return Err(Corrupt),
        };
        if !taken {
            return Ok(Pull::Unwanted);
        }
        let link = &mut self.ins[at];
        if link.records.advance(&record) {
            link.bell.ring();
        }
        Ok(Pull::Moved)
    }

    #[inline]
    fn take_inline(&mut self, at: usize, record: &Record) -> bool {
        let link = &self.ins[at];
        let status = Status { source: link.rank, tag: record.tag, len: record.len as u64 };
        if let Some(request) = self.matching.take(link.rank, record.tag) {
            let Some(receiving) = self.requests.matched(request, status.len) else { return true };
            let len = record.len.min(receiving.into.len());
            let read = |at, into: &mut [u8]| link.records.payload(record, at, into);
            receiving.into.pieces(0, len, read);
            let result = whole(status, receiving.into.len());
            self.requests.finish(request, result);
            return true;
        }
        if !self.stored.has_room(status.len, self.config.spill) {
            return false;
        }
        let mut bytes = [0; INLINE];
        let bytes = &mut bytes[..record.len];
        link.records.payload(record, 0, bytes);
        self.store(status, bytes.to_vec(), None);
        true
    }

    pub(super) fn store(&mut self, status: Status, bytes: Vec<u8>, lent: Option<Lent>) -> u32 {
        let id = self.stored.add(status, bytes, lent);
        let key = self.matching.keep(status.source, status.tag, id);
        if let Some(message) = self.stored.get(id) {
            message.key = Some(key);
        }
        id
    }

    fn take_bulk(&mut self, at: usize, record: &Record) -> Result<bool, Corrupt> {
        let link = &mut self.ins[at];
        let len = bulk_len(link, record)?;
        let status = Status { source: link.rank, tag: record.tag, len };
        let sink = if let Some(request) = self.matching.take(link.rank, record.tag) {
            let receiving = self.requests.matched(request, len);
            if let (Some(receiving), ..=CHUNK_LEN) = (receiving, len) {
                take_chunk(link, len as usize, &receiving.into);
                let result = whole(status, receiving.into.len());
                self.requests.finish(request, result);
                return Ok(true);
            }
            Sink::Request(request)
        } else if self.stored.has_room(len, self.config.spill) {
            Sink::Stored(self.store(status, Vec::with_capacity(len as usize), None))
        } else {
            return Ok(false);
        };
        let link = &mut self.ins[at];
        link.bulk.begin();
        link.flow = Some(Arrival { sink, status, done: 0 });
        Ok(true)
    }

    /// Reads a message from the sender's memory and tells it so.
    fn take_remote(&mut self, at: usize, record: &Record) -> Result<bool, Corrupt> {
        let link = &mut self.ins[at];
        let (parts, len) = places(link, record)?;
        let Some(pid) = link.pid else { return Err(Corrupt) };
        let status = Status { source: link.rank, tag: record.tag, len };
        let failed = Error::NotRead { rank: link.rank };
        let read = if let Some(request) = self.matching.take(link.rank, record.tag) {
            let Some(receiving) = self.requests.matched(request, len) else { return Ok(true) };
            let read = cma::read(pid, &receiving.into, &parts);
            let result = whole(status, receiving.into.len());
            self.requests.finish(request, read.as_ref().map_err(|_| failed).and(result));
            read.is_ok()
        } else if self.stored.has_room(len, self.config.spill) {
            let mut bytes = vec![0; len as usize];
            let read = cma::read_into(pid, &mut bytes, &parts);
            if read.is_ok() {
                self.store(status, bytes, None);
            }
            read.is_ok()
        } else {
            return Ok(false);
        };
        let link = &mut self.ins[at];
        link.remotes += 1;
        let answer = link.remotes << 1 | u64::from(read);
        link.records.memory().back().word(REMOTE).store(answer, Release);
        link.bell.ring();
        Ok(true)
    }

    /// Takes the next chunk of the long message on its way.
    fn stream(&mut self, at: usize) -> Result<Pull, Corrupt> {
        let link = &mut self.ins[at];
        let Some(flow) = &mut link.flow else { return Ok(Pull::Empty) };
        let left = flow.status.len - flow.done;
        let ready = match CHUNK as u64 {
            first if flow.done < first => first - flow.done,
            _ => link.bulk.ready()? as u64,
        };
        let len = ready.min(left).min(CHUNK as u64) as usize;
        if len == 0 && left > 0 {
            return Ok(Pull::Empty);
        }
        let done = flow.done as usize;
        match flow.sink {
            Sink::Request(request) => {
                if let Some(receiving) = self.requests.receiving(request) {
                    let room = receiving.into.len().saturating_sub(done).min(len);
                    let from = done.min(receiving.into.len());
                    receiving.into.pieces(from, room, |skip, into| link.bulk.read(skip, into));
                }
            }
            Sink::Stored(id) => {
                if let Some(message) = self.stored.get(id) {
                    message.bytes.resize(done + len, 0);
                    link.bulk.read(0, &mut message.bytes[done..]);
                }
            }
        }
        flow.done += len as u64;
        if link.bulk.advance(len) {
            link.bell.ring();
        }
        if flow.done == flow.status.len {
            self.end_flow(at);
        }
        Ok(Pull::Moved)
    }

    fn end_flow(&mut self, at: usize) {
        let Some(flow) = self.ins[at].flow.take() else { return };
        let Sink::Request(request) = flow.sink else { return };
        if let Some(receiving) = self.requests.receiving(request) {
            let result = whole(flow.status, receiving.into.len());
            self.requests.finish(request, result);
        }
    }

    /// A link is over: what was on its way is lost, and perhaps the rank. With a peer that broke
    /// the protocol both directions are.
    fn drop_in(&mut self, at: usize, why: Error) {
        let link = self.ins.remove(at);
        match link.flow.map(|flow| flow.sink) {
            Some(Sink::Request(request)) => self.requests.finish(request, Err(why.clone())),
            Some(Sink::Stored(id)) => {
                if let Some(key) = self.stored.remove(id).and_then(|message| message.key) {
                    self.matching.lose(key);
                }
            }
            None => (),
        }
        if let Error::BadPeer { rank } = why {
            self.desk.cut(link.id);
            self.lose_out(rank, &why);
        } else {
            self.lose_rank(link.rank, &why);
        }
    }

    /// A receive found a message that came before. If it is still coming, the rest goes straight
    /// on.
    fn fill_from_stored(&mut self, request: Request, id: u32) {
        let Some(message) = self.stored.remove(id) else { return };
        if let Some(lent) = message.lent {
            return self.give_lent(request, message.status, lent);
        }
        let matched = self.requests.matched(request, message.status.len);
        let Some(receiving) = matched else { return };
        let have = message.bytes.len().min(receiving.into.len());
        receiving.into.pieces(0, have, |at, into| {
            into.copy_from_slice(&message.bytes[at..at + into.len()]);
        });
        let comes = |flow: &&mut Arrival| flow.sink == Sink::Stored(id);
        let flow = self.ins.iter_mut().filter_map(|link| link.flow.as_mut()).find(comes);
        match flow {
            Some(flow) => flow.sink = Sink::Request(request),
            None => {
                let result = whole(message.status, receiving.into.len());
                self.requests.finish(request, result);
            }
        }
    }

    /// A message to ourselves.
    pub(super) fn deliver_own(&mut self, tag: u64, bytes: Vec<u8>) {
        let source = self.config.rank;
        let status = Status { source, tag, len: bytes.len() as u64 };
        match self.matching.take(source, tag) {
            None => {
                self.store(status, bytes, None);
            }
            Some(request) => {
                let id = self.stored.add(status, bytes, None);
                self.fill_from_stored(request, id);
            }
        }
    }
}

/// The length of a message in the bulk ring.
#[inline]
fn bulk_len(link: &Incoming, record: &Record) -> Result<u64, Corrupt> {
    let mut total = [0; 8];
    if record.len != total.len() {
        return Err(Corrupt);
    }
    link.records.payload(record, 0, &mut total);
    Ok(u64::from_le_bytes(total))
}

/// Takes a message whose one chunk is in the bulk ring.
#[inline]
fn take_chunk(link: &mut Incoming, len: usize, into: &Scatter) {
    link.bulk.begin();
    into.pieces(0, len.min(into.len()), |at, part| link.bulk.read(at, part));
    if link.bulk.advance(len) {
        link.bell.ring();
    }
}

/// Where a remote message lies, and its length.
fn places(link: &Incoming, record: &Record) -> Result<(Vec<(u64, u64)>, u64), Corrupt> {
    let mut bytes = [0; INLINE];
    let bytes = &mut bytes[..record.len];
    link.records.payload(record, 0, bytes);
    let word = |b: &[u8]| b.try_into().map_or(0, u64::from_le_bytes);
    let parts: Vec<_> = bytes.chunks_exact(16).map(|p| (word(&p[..8]), word(&p[8..]))).collect();
    let len = parts.iter().try_fold(0u64, |sum, (_, len)| sum.checked_add(*len)).ok_or(Corrupt)?;
    let fits = record.len.is_multiple_of(16) && parts.len() <= cma::PARTS && len < 1 << 47;
    if fits { Ok((parts, len)) } else { Err(Corrupt) }
}

/// The end of a receive: whether the message fit.
#[inline]
pub(super) fn whole(status: Status, room: usize) -> Result<Status> {
    if status.len > room as u64 {
        return Err(Error::Truncated { length: status.len, room: room as u64 });
    }
    Ok(status)
}
