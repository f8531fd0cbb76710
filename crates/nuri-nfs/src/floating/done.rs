//! NFS-3 at an address that moves: what was done for clients there, also by the servers that had
//! the address before.
//!
//! The metadata server remembers each call with its change, in one transaction. The server that
//! takes the address reads what is remembered, before it serves anybody there.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use nuri_client::Client;
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::op::once::{CallDone, CallKey, Remember};
use nuri_rules::broken;
use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};

use crate::server::Peer;

/// Calls that are remembered at an address.
const MOST: usize = 4096;

/// How a call stands that must not be carried out twice.
#[derive(Clone)]
pub(crate) enum Standing {
    /// Nothing in the space remembers it.
    Unremembered,
    /// It was not done before. It is remembered with what it changes.
    New(Arc<CallsDone>, CallKey),
    /// It was done by a server that had the address before. What it made, if it made something.
    Done(Option<Ino>),
}

/// How a change ended.
pub(crate) enum Change<T> {
    /// It was made by this call.
    Made(T),
    /// The call was done before. What it made then.
    Before(Option<Ino>),
}

impl Standing {
    pub(crate) fn was_done(&self) -> bool {
        matches!(self, Standing::Done(_))
    }

    /// Makes the call's change of a name, once.
    pub(crate) fn change<T>(
        &self,
        act: impl FnOnce(Option<Remember>) -> Result<T, Status>,
    ) -> Result<Change<T>, Status> {
        match self {
            Standing::Unremembered => act(None).map(Change::Made),
            Standing::Done(made) => Ok(Change::Before(*made)),
            Standing::New(done, key) => done.change(*key, act),
        }
    }
}

/// The addresses that this server has now, with what was done there.
#[derive(Default)]
pub struct Addresses(RwLock<HashMap<IpAddr, Arc<CallsDone>>>);

impl Addresses {
    pub(super) fn add(&self, address: IpAddr, done: CallsDone) {
        self.0.write().insert(address, Arc::new(done));
    }

    pub(super) fn remove(&self, address: IpAddr) {
        self.0.write().remove(&address);
    }

    /// How a call stands, all of which is `message`.
    pub(crate) fn standing(&self, peer: &Peer, xid: u32, message: &[u8]) -> Standing {
        let done = self.0.read().get(&peer.local).cloned();
        done.map_or(Standing::Unremembered, |done| {
            let key = key(peer.address, xid, message);
            let before = done.state.lock().before.get(&key).copied();
            before.map_or_else(|| Standing::New(done, key), Standing::Done)
        })
    }
}

/// The same at every server. A client's port may be another one when it asks again.
fn key(address: IpAddr, xid: u32, message: &[u8]) -> CallKey {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut sum = Sha256::new();
    sum.update(address.octets());
    sum.update(xid.to_be_bytes());
    sum.update(message);
    let mut key = [0; 16];
    key.copy_from_slice(&sum.finalize()[..16]);
    CallKey(key)
}

/// What is remembered at one address.
pub(crate) struct CallsDone {
    client: Arc<Client>,
    /// The file that stands for the address.
    place: Ino,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Done by servers that had the address before.
    before: HashMap<CallKey, Option<Ino>>,
    /// All that is remembered in the space, the oldest first.
    order: VecDeque<CallKey>,
    number: u64,
}

impl State {
    fn of(mut calls: Vec<CallDone>) -> State {
        calls.sort_by_key(|call| call.number);
        State {
            before: calls.iter().map(|call| (call.key, call.made)).collect(),
            order: calls.iter().map(|call| call.key).collect(),
            number: calls.last().map_or(0, |call| call.number),
        }
    }

    /// As what the next call is remembered. The oldest one makes room for it.
    fn begin(&mut self, place: Ino, key: CallKey) -> Remember {
        self.number += 1;
        let is_full = self.order.len() >= MOST;
        let forget = if is_full { self.order.pop_front() } else { None };
        forget.iter().for_each(|key| _ = self.before.remove(key));
        Remember { place, key, number: self.number, forget }
    }

    fn end(&mut self, done: Remember, is_done: bool) {
        match is_done {
            true => self.order.push_back(done.key),
            // The oldest one is still there.
            false => done.forget.into_iter().for_each(|key| self.order.push_front(key)),
        }
    }
}

impl CallsDone {
    /// Reads what is remembered. Nobody may change it elsewhere from now on.
    pub(super) fn load(client: Arc<Client>, place: Ino) -> Result<CallsDone, Status> {
        let calls =
            if broken!("nfs_forgets_done") { Vec::new() } else { client.calls_done(place)? };
        Ok(CallsDone { client, place, state: Mutex::new(State::of(calls)) })
    }

    fn change<T>(
        &self,
        key: CallKey,
        act: impl FnOnce(Option<Remember>) -> Result<T, Status>,
    ) -> Result<Change<T>, Status> {
        let done = self.state.lock().begin(self.place, key);
        let outcome = act(Some(done));
        self.state.lock().end(done, outcome.is_ok());
        match outcome {
            // The server that had the address was still at work when this one read.
            Err(Status::DONE_BEFORE) => {
                let calls = self.client.calls_done(self.place)?;
                let made = calls.iter().find(|call| call.key == key).and_then(|call| call.made);
                Ok(Change::Before(made))
            }
            outcome => outcome.map(Change::Made),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Ino = Ino(9);

    fn call(byte: u8, number: u64) -> CallDone {
        CallDone { key: CallKey([byte; 16]), number, made: None }
    }

    #[test]
    fn a_call_is_known_by_its_client_its_number_and_all_its_words() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let one = key(address("10.0.0.1"), 7, b"call");
        assert_eq!(one, key(address("::ffff:10.0.0.1"), 7, b"call"));
        assert_ne!(one, key(address("10.0.0.2"), 7, b"call"));
        assert_ne!(one, key(address("10.0.0.1"), 8, b"call"));
        assert_ne!(one, key(address("10.0.0.1"), 7, b"cal"));
    }

    #[test]
    fn numbers_go_on_and_the_oldest_make_room() {
        let mut state = State::of(vec![call(2, 12), call(1, 11)]);
        assert_eq!((state.order[0], state.number), (CallKey([1; 16]), 12));
        let key = |i: usize| {
            let mut key = [0xff; 16];
            key[..8].copy_from_slice(&i.to_be_bytes());
            CallKey(key)
        };
        for i in 0..MOST - 2 {
            let done = state.begin(PLACE, key(i));
            assert_eq!((done.number, done.forget), (13 + i as u64, None));
            state.end(done, true);
        }
        let done = state.begin(PLACE, key(MOST));
        assert_eq!(done.forget, Some(CallKey([1; 16])));
        assert!(!state.before.contains_key(&CallKey([1; 16])));
        // It failed: nothing was forgotten in the space.
        state.end(done, false);
        let done = state.begin(PLACE, key(MOST));
        assert_eq!(done.forget, Some(CallKey([1; 16])));
        state.end(done, true);
        assert_eq!(state.order.len(), MOST);
    }
}
