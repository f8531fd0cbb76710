//! Messages that are lent: only their place goes through the ring, and their bytes stay where they
//! are.

use std::sync::Arc;

use super::receive::whole;
use super::send::Push;
use super::{Engine, Work};
use crate::error::Result;
use crate::heap::{Lent, Loan, SLOTS};
use crate::link::{Incoming, Outgoing};
use crate::matching::Selector;
use crate::requests::{Receiving, Request, Sending, Status};
use crate::ring::{Corrupt, Kind, Record};
use crate::span::{Gather, Scatter};

/// Bytes of a loan record: offset, length, slot, number.
const WORDS: usize = 4;

impl Engine {
    /// A buffer of the heap, after what peers gave back has been taken.
    pub(crate) fn alloc(&mut self, len: usize) -> Result<Loan> {
        for out in self.peers.iter_mut().filter_map(|peer| peer.out.as_mut()) {
            out.lending.reclaim(out.records.memory().back());
        }
        self.heap.alloc(len)
    }

    /// Starts to send a buffer of the heap.
    pub(crate) fn send_loan(&mut self, to: u32, tag: u64, loan: Loan) -> Result<Request> {
        self.check_rank(to)?;
        if to == self.config.rank {
            let status = Status { source: to, tag, len: loan.len() as u64 };
            self.deliver_own(tag, loan.to_vec());
            return Ok(self.requests.add(Work::Done(Ok(status)), None));
        }
        let from = Gather::none();
        self.queue(Sending { to, tag, from, sent: 0, remote: None, loan: Some(loan) }, None)
    }

    /// Starts to receive a message of any length, where it lies if it was lent.
    pub(crate) fn receive_open(&mut self, selector: Selector) -> Result<Request> {
        self.post(selector, Receiving { into: Scatter::none(), waits: None, open: true }, None)
    }

    pub(super) fn take_loan(&mut self, at: usize, record: &Record) -> Result<bool, Corrupt> {
        let link = &self.ins[at];
        let lent = place(link, record)?;
        let status = Status { source: link.rank, tag: record.tag, len: lent.len() as u64 };
        if let Some(request) = self.matching.take(link.rank, record.tag) {
            self.give_lent(request, status, lent);
            return Ok(true);
        }
        let fits = self.stored.has_room(0, self.config.spill);
        if fits {
            self.store(status, Vec::new(), Some(lent));
        } else {
            lent.forget();
        }
        Ok(fits)
    }

    /// A receive found a lent message: an open one takes it, others copy it out.
    pub(super) fn give_lent(&mut self, request: Request, status: Status, lent: Lent) {
        match self.requests.receiving(request) {
            Some(receiving) if !receiving.open => {
                let room = receiving.into.len();
                let len = lent.len().min(room);
                receiving.into.pieces(0, len, |at, into| {
                    lent.read(at, into);
                });
                self.requests.finish(request, whole(status, room));
            }
            _ => self.requests.finish_lent(request, status, lent),
        }
    }
}

/// Lends the buffer, if a slot and a record are free.
pub(super) fn push(out: &mut Outgoing, sending: &mut Sending) -> Push {
    let back = Arc::clone(out.records.memory().back());
    let Some(slot) = out.lending.free_slot(&back) else { return Push::Nothing };
    let Some((offset, len)) = sending.loan.as_ref().map(Loan::place) else { return Push::Whole };
    let words: [u64; WORDS] = [offset, len, slot as u64, out.lending.next_number()];
    let pushed = out.records.push(Kind::Loan, sending.tag, WORDS * 8, |record| {
        words.iter().enumerate().for_each(|(i, word)| record.write(i * 8, &word.to_le_bytes()));
    });
    if !pushed {
        return Push::Nothing;
    }
    if let Some(loan) = sending.loan.take() {
        out.lending.lend(slot, loan);
    }
    Push::Whole
}

fn place(link: &Incoming, record: &Record) -> Result<Lent, Corrupt> {
    let mut bytes = [0; WORDS * 8];
    if record.len != bytes.len() {
        return Err(Corrupt);
    }
    link.records.payload(record, 0, &mut bytes);
    let word = |i: usize| bytes[i * 8..i * 8 + 8].try_into().map_or(0, u64::from_le_bytes);
    let (at, len, slot) = (word(0), word(1), word(2));
    let end = at.checked_add(len).ok_or(Corrupt)?;
    if end > link.heap.len() as u64 || slot >= SLOTS as u64 {
        return Err(Corrupt);
    }
    Ok(Lent {
        heap: Arc::clone(&link.heap),
        back: Arc::clone(link.records.memory().back()),
        bell: link.bell.clone(),
        at: at as usize,
        len: len as usize,
        slot: slot as usize,
        number: word(3),
    })
}
