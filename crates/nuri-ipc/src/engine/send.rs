//! Sends: inline while there is room in the ring, else queued and pushed by `progress`.

use std::sync::atomic::Ordering::Acquire;

use super::{Engine, Work};
use crate::cma;
use crate::config::CrossMemory;
use crate::copy::CHUNK;
use crate::error::{Error, Result};
use crate::link::{Outgoing, REMOTE};
use crate::requests::{Request, Sending, Status};
use crate::ring::{INLINE, Kind};
use crate::span::Gather;

/// Messages from this size on make it worth knowing where the peer's core is.
const MEASURE_FROM: usize = 4 << 10;

/// How far a message got.
pub(super) enum Push {
    Whole,
    Part,
    Nothing,
    Failed(Error),
}

impl Engine {
    /// Sends a message of a chunk at once, if nothing is before it and there is room.
    #[inline]
    pub(crate) fn send_now(&mut self, to: u32, tag: u64, from: &Gather) -> bool {
        if from.len() > CHUNK || to == self.config.rank {
            return false;
        }
        self.hear();
        let Some(peer) = self.peers.get_mut(to as usize) else { return false };
        let Some(out) = peer.out.as_mut().filter(|_| peer.queue.is_empty()) else { return false };
        let sent = match from.len() {
            ..=INLINE => push_inline(out, tag, from),
            _ if crosses(out, from, self.config.cross_memory) => false,
            _ => push_first(out, tag, from, self.desk.bell().cpu()),
        };
        if sent {
            out.bell.ring();
        }
        sent
    }

    /// Starts a send.
    pub(crate) fn send(
        &mut self,
        to: u32,
        tag: u64,
        from: Gather,
        buffer: Option<Vec<u8>>,
    ) -> Result<Request> {
        self.check_rank(to)?;
        let status = Status { source: to, tag, len: from.len() as u64 };
        if to == self.config.rank {
            self.deliver_own(tag, from.to_vec());
            return Ok(self.requests.add(Work::Done(Ok(status)), buffer));
        }
        if self.send_now(to, tag, &from) {
            return Ok(self.requests.add(Work::Done(Ok(status)), buffer));
        }
        let sending = Sending { to, tag, from, sent: 0, remote: None, loan: None };
        self.queue(sending, buffer)
    }

    /// Queues a send behind those before it.
    pub(super) fn queue(&mut self, sending: Sending, buffer: Option<Vec<u8>>) -> Result<Request> {
        let to = sending.to;
        self.want(to)?;
        let request = self.requests.add(Work::Send(sending), buffer);
        self.peers[to as usize].queue.push_back(request);
        self.list(to);
        self.push(to);
        Ok(request)
    }

    /// Ends the send that a rank was to read from our memory, if it has said how that went.
    pub(super) fn hear_answer(&mut self, rank: u32) {
        let peer = &mut self.peers[rank as usize];
        let (Some(out), Some(request)) = (&peer.out, peer.queue.front().copied()) else { return };
        let Some(sending) = self.requests.sending(request) else { return };
        let status = Status { source: rank, tag: sending.tag, len: sending.from.len() as u64 };
        let Some(number) = sending.remote else { return };
        let result = match remote_end(out, sending, number) {
            Push::Whole => Ok(status),
            Push::Failed(why) => Err(why),
            Push::Part | Push::Nothing => return,
        };
        peer.queue.pop_front();
        self.requests.finish(request, result);
    }

    /// Pushes what is queued for a rank as far as there is room.
    pub(super) fn push(&mut self, rank: u32) -> bool {
        let here = self.desk.bell().cpu();
        let peer = &mut self.peers[rank as usize];
        let Some(out) = peer.out.as_mut() else { return false };
        let mut moved = false;
        while let Some(request) = peer.queue.front().copied() {
            let Some(sending) = self.requests.sending(request) else {
                peer.queue.pop_front();
                continue;
            };
            let status = Status { source: rank, tag: sending.tag, len: sending.from.len() as u64 };
            match push_one(out, sending, here, self.config.cross_memory) {
                Push::Whole => {
                    peer.queue.pop_front();
                    self.requests.finish(request, Ok(status));
                    moved = true;
                }
                Push::Part => {
                    moved = true;
                    break;
                }
                Push::Nothing => break,
                Push::Failed(why) => {
                    peer.queue.pop_front();
                    self.requests.finish(request, Err(why));
                    moved = true;
                }
            }
        }
        if moved {
            out.bell.ring();
        }
        moved
    }
}

fn push_one(out: &mut Outgoing, sending: &mut Sending, here: u32, when: CrossMemory) -> Push {
    if sending.loan.is_some() {
        return super::loan::push(out, sending);
    }
    if sending.from.len() <= INLINE {
        return match push_inline(out, sending.tag, &sending.from) {
            true => Push::Whole,
            false => Push::Nothing,
        };
    }
    if let Some(number) = sending.remote {
        return remote_end(out, sending, number);
    }
    let before = sending.sent;
    if before == 0 && crosses(out, &sending.from, when) {
        return push_remote(out, sending);
    }
    if before == 0 {
        if !push_first(out, sending.tag, &sending.from, here) {
            return Push::Nothing;
        }
        sending.sent = sending.from.len().min(CHUNK);
        if sending.sent < sending.from.len() {
            out.bell.ring();
        }
    }
    push_rest(out, sending);
    match sending.sent {
        sent if sent == sending.from.len() => Push::Whole,
        sent if sent > before => Push::Part,
        _ => Push::Nothing,
    }
}

#[inline]
fn push_inline(out: &mut Outgoing, tag: u64, from: &Gather) -> bool {
    let len = from.len();
    out.records.push(Kind::Inline, tag, len, |slot| {
        from.pieces(0, len, |at, bytes| slot.write(at, bytes));
    })
}

/// The first chunk and, when it is there, the record that announces the message.
fn push_first(out: &mut Outgoing, tag: u64, from: &Gather, here: u32) -> bool {
    let total = from.len();
    let first = total.min(CHUNK);
    if !out.records.fits(8) || out.bulk.room(first) < first {
        return false;
    }
    if total >= MEASURE_FROM {
        measure(out, here);
        if !out.records.fits(8) {
            return false;
        }
    }
    out.bulk.begin();
    out.bulk.write(from, 0, first, &out.distance);
    let length = (total as u64).to_le_bytes();
    out.records.push(Kind::Bulk, tag, 8, |slot| slot.write(0, &length))
}

/// Whole lines until the end, so that streaming stores stay aligned.
fn push_rest(out: &mut Outgoing, sending: &mut Sending) {
    while sending.sent < sending.from.len() {
        let left = sending.from.len() - sending.sent;
        let room = out.bulk.room(left.min(CHUNK));
        let len = if room < left { room & !63 } else { room };
        if len == 0 {
            return;
        }
        out.bulk.write(&sending.from, sending.sent, len, &out.distance);
        out.bulk.publish();
        sending.sent += len;
    }
}

/// Whether the peer should read this message from our memory.
fn crosses(out: &Outgoing, from: &Gather, when: CrossMemory) -> bool {
    let wanted = match when {
        CrossMemory::Never => false,
        CrossMemory::From(least) => from.len() >= least,
    };
    wanted && out.cross_memory.is_ok() && from.places().count() <= cma::PARTS
}

fn push_remote(out: &mut Outgoing, sending: &mut Sending) -> Push {
    let places: Vec<(u64, u64)> = sending.from.places().collect();
    let pushed = out.records.push(Kind::Remote, sending.tag, places.len() * 16, |slot| {
        for (i, (at, len)) in places.iter().enumerate() {
            slot.write(i * 16, &at.to_le_bytes());
            slot.write(i * 16 + 8, &len.to_le_bytes());
        }
    });
    if !pushed {
        return Push::Nothing;
    }
    out.remotes += 1;
    (sending.sent, sending.remote) = (sending.from.len(), Some(out.remotes));
    Push::Part
}

/// Looks whether the peer has read it.
fn remote_end(out: &Outgoing, sending: &Sending, number: u64) -> Push {
    let word = out.records.memory().back().word(REMOTE).load(Acquire);
    match word {
        word if word >> 1 != number => Push::Nothing,
        word if word & 1 == 1 => Push::Whole,
        _ => Push::Failed(Error::NotRead { rank: sending.to }),
    }
}

fn measure(out: &mut Outgoing, here: u32) {
    if !out.distance.due(out.bell.cpu() == here) {
        return;
    }
    if out.records.push(Kind::Probe, 0, 0, |_| ()) {
        out.bell.ring();
        out.distance.measure(out.records.memory());
    }
}
