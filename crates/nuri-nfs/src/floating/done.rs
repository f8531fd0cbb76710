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
use nuri_proto::op::once::{CallDone, CallKey, MOST_FORGOTTEN, Remember};
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

    /// Whether the metadata server knows if the call was done.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self, Standing::New(..))
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

/// The addresses that move, and what was done at those that this server has now.
#[derive(Default)]
pub struct Addresses(RwLock<HashMap<IpAddr, Option<Arc<CallsDone>>>>);

impl Addresses {
    /// It is another server's.
    pub(super) fn leave(&self, address: IpAddr) {
        self.0.write().insert(address, None);
    }

    pub(super) fn take(&self, address: IpAddr, done: CallsDone) {
        self.0.write().insert(address, Some(Arc::new(done)));
    }

    /// How a call stands, all of which is `message`. Nothing where it came to an address that is
    /// another server's by now.
    pub(crate) fn standing(&self, peer: &Peer, xid: u32, message: &[u8]) -> Option<Standing> {
        let done = match self.0.read().get(&peer.local) {
            None => return Some(Standing::Unremembered),
            Some(done) => done.clone()?,
        };
        let key = key(peer.address, xid, message);
        let before = done.state.lock().before.get(&key).copied();
        Some(match before {
            Some(made) => Standing::Done(made),
            None if done.remembers && !broken!("nfs_forgets_done") => Standing::New(done, key),
            None => Standing::Unremembered,
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
    /// A metadata server of an older version remembers nothing.
    remembers: bool,
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

    /// As what the next call is remembered. The oldest ones make room for it.
    fn begin(&mut self, place: Ino, key: CallKey) -> Remember {
        self.number = self.number.saturating_add(1);
        let surplus = (self.order.len() + 1).saturating_sub(MOST).min(MOST_FORGOTTEN);
        let forget = self.order.drain(..surplus).collect();
        Remember { place, key, number: self.number, forget }
    }

    fn end(&mut self, done: Remember, is_done: bool) {
        match is_done {
            true => self.order.push_back(done.key),
            // The oldest ones are still there.
            false => done.forget.into_iter().rev().for_each(|key| self.order.push_front(key)),
        }
    }
}

impl CallsDone {
    /// Reads what is remembered. Nobody may change it elsewhere from now on.
    pub(super) fn load(client: Arc<Client>, place: Ino) -> Result<CallsDone, Status> {
        let calls = match client.calls_done(place) {
            Ok(calls) => Some(calls),
            Err(Status::MALFORMED) => None,
            Err(status) => return Err(status),
        };
        let (remembers, calls) = (calls.is_some(), calls.unwrap_or_default());
        Ok(CallsDone { client, place, remembers, state: Mutex::new(State::of(calls)) })
    }

    fn change<T>(
        &self,
        key: CallKey,
        act: impl FnOnce(Option<Remember>) -> Result<T, Status>,
    ) -> Result<Change<T>, Status> {
        let done = self.state.lock().begin(self.place, key);
        let outcome = act(Some(done.clone()));
        self.state.lock().end(done, outcome.is_ok());
        match outcome {
            Err(status) if is_unclear(status) => {
                let calls = self.client.calls_done(self.place)?;
                let before = calls.iter().find(|call| call.key == key);
                before.map(|call| Change::Before(call.made)).ok_or(status)
            }
            outcome => outcome.map(Change::Made),
        }
    }
}

/// The call may have been done: by the server that had the address, which was still at work when
/// this one read, or by this one, in a session that ended.
fn is_unclear(status: Status) -> bool {
    [Status::DONE_BEFORE, Status::SESSION_GONE, Status::RETRY, Status::UNREACHABLE]
        .contains(&status)
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
            assert_eq!((done.number, &done.forget), (13 + i as u64, &Vec::new()));
            state.end(done, true);
        }
        let done = state.begin(PLACE, key(MOST));
        assert_eq!(done.forget, [CallKey([1; 16])]);
        // It failed: nothing was forgotten in the space.
        state.end(done, false);
        let done = state.begin(PLACE, key(MOST));
        assert_eq!(done.forget, [CallKey([1; 16])]);
        state.end(done, true);
        assert_eq!(state.order.len(), MOST);
        assert!(state.before.contains_key(&CallKey([1; 16])), "its client may be late");
    }

    #[test]
    fn more_than_are_kept_become_fewer() {
        let found = |i: usize| {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&i.to_be_bytes());
            CallDone { key: CallKey(key), number: i as u64, made: None }
        };
        let mut state = State::of((0..MOST + 5).map(found).collect());
        for i in 0..8 {
            let done = state.begin(PLACE, CallKey([i; 16]));
            state.end(done, true);
        }
        assert_eq!(state.order.len(), MOST);
        let mut state = State::of(vec![CallDone { number: u64::MAX, ..call(1, 0) }]);
        assert_eq!(state.begin(PLACE, CallKey([2; 16])).number, u64::MAX);
    }
}
