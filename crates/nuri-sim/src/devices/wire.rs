//! Connections as the kernels of two machines keep them: what was sent arrives in order, later or
//! never, and may lie with the receiver for as long as its process stands still.

use std::collections::VecDeque;

use nuri_io::rng::Rng;
use nuri_nbd::peer::Until;

/// After so many milliseconds without a sign of life a machine is asked for one.
const PROBE: u64 = 1000;

/// A machine: the client's, or one with a server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    Client,
    Server(usize),
    Metadata,
}

/// What a program asks of a block, or of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    Read(usize),
    Write(usize, u64),
    Flush,
}

/// A request of the client, the same each time it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub number: u64,
    pub act: Act,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    Ask(Request),
    /// Sent on by a server.
    Forward(Request, Until),
    /// With the value that was read; an error where a flush failed.
    Answer(u64, Result<u64, ()>),
    AskTime,
    Time(u32),
    /// Nothing more comes.
    End,
}

struct Packet {
    message: Message,
    sent: u64,
    /// It is tried to deliver it then.
    due: u64,
}

/// One side of a connection.
struct Side {
    place: Place,
    /// Not delivered yet.
    out: VecDeque<Packet>,
    inbox: VecDeque<Message>,
    /// The process does not use it any more.
    is_closed: bool,
    /// The kernel knows that the other side sends nothing more.
    is_left: bool,
    /// What is not taken for so long ends the connection.
    untaken: u64,
    /// When the other machine was heard last.
    heard: u64,
}

/// A connection; side 0 is who dialed.
pub struct Wire([Side; 2]);

impl Wire {
    /// The one who dialed ends it where nothing is taken for `untaken` milliseconds.
    pub fn new((from, to): (Place, Place), untaken: u64, now: u64) -> Wire {
        let side = |place, untaken| Side {
            place,
            out: VecDeque::new(),
            inbox: VecDeque::new(),
            is_closed: false,
            is_left: false,
            untaken,
            heard: now,
        };
        Wire([side(from, untaken), side(to, u64::MAX)])
    }

    pub fn place(&self, side: usize) -> Place {
        self.0[side].place
    }

    pub fn send(&mut self, side: usize, message: Message, now: u64) {
        let own = &mut self.0[side];
        if !own.is_closed && !own.is_left {
            own.out.push_back(Packet { message, sent: now, due: now + 1 });
        }
    }

    pub fn receive(&mut self, side: usize) -> Option<Message> {
        if self.0[side].is_closed { None } else { self.0[side].inbox.pop_front() }
    }

    /// Messages that lie there.
    pub fn waiting(&self, side: usize) -> u64 {
        self.0[side].inbox.len() as u64
    }

    pub fn heard(&self, side: usize) -> u64 {
        self.0[side].heard
    }

    /// What was sent still arrives.
    pub fn close(&mut self, side: usize, now: u64) {
        self.send(side, Message::End, now);
        self.0[side].is_closed = true;
    }

    /// Ends it so that nothing arrives any more that the other machine does not have yet. That one
    /// is told, if it can be reached now.
    pub fn leave(&mut self, side: usize, is_whole: bool) {
        self.0[side].out.clear();
        self.0[side].is_closed = true;
        self.0[1 - side].is_left |= is_whole;
    }

    /// Whether who looks from this side sees that it ended: the peer left, or this side did.
    pub fn is_left(&self, side: usize) -> bool {
        self.0[side].is_left || self.0[side].is_closed
    }

    pub fn is_over(&self) -> bool {
        self.0.iter().all(|side| side.is_closed && side.out.is_empty())
    }

    /// Moves what is due; says how many messages came more than a second after they were sent.
    pub fn carry(&mut self, now: u64, is_whole: bool, rng: &mut Rng) -> u64 {
        let mut late = 0;
        self.probe(now, is_whole);
        for from in 0..2 {
            let to = 1 - from;
            while self.0[from].out.front().is_some_and(|packet| packet.due <= now) {
                if !is_whole || self.is_untaken(from, now) {
                    self.keep_trying(from, now, rng);
                    break;
                }
                let Some(packet) = self.0[from].out.pop_front() else { break };
                (self.0[from].heard, self.0[to].heard) = (now, now);
                let is_late = now - packet.sent > 1000;
                late += u64::from(is_late);
                self.deliver(from, to, packet.message);
                // The rest is sent again when this is acknowledged.
                if let Some(next) = self.0[from].out.front_mut().filter(|_| is_late) {
                    next.due = now + rng.below(20);
                }
            }
        }
        late
    }

    /// Machines that hear nothing for a second ask each other whether they live.
    fn probe(&mut self, now: u64, is_whole: bool) {
        let is_quiet = self.0.iter().any(|side| now - side.heard >= PROBE);
        if is_whole && is_quiet && self.0.iter().all(|side| !side.is_closed) {
            self.0.iter_mut().for_each(|side| side.heard = now);
        }
    }

    fn is_untaken(&self, from: usize, now: u64) -> bool {
        let side = &self.0[from];
        side.out.front().is_some_and(|first| now - first.sent >= side.untaken)
    }

    fn keep_trying(&mut self, from: usize, now: u64, rng: &mut Rng) {
        let is_untaken = self.is_untaken(from, now);
        let side = &mut self.0[from];
        let Some(first) = side.out.front_mut() else { return };
        // TCP doubles the time between tries.
        let again = now + 100 + rng.below(now - first.sent + 100);
        first.due = again.min(first.sent.saturating_add(side.untaken)).max(now + 1);
        if is_untaken {
            side.out.clear();
            side.is_left = true;
        }
    }

    fn deliver(&mut self, from: usize, to: usize, message: Message) {
        let receiver = &mut self.0[to];
        if receiver.is_closed {
            // Nobody is there: the kernel says so.
            self.0[from].out.clear();
            self.0[from].is_left = true;
            return;
        }
        match message {
            Message::End => receiver.is_left = true,
            message => receiver.inbox.push_back(message),
        }
    }
}
