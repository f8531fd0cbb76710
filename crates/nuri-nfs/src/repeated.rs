//! Calls that come twice: a client that had no answer asks again, and must get the first answer.
//! Making a directory twice, for example, would say that it exists already.
//!
//! An entry is made before the call is carried out. It is known by the client's address, the number
//! that the client gave the call, and a checksum of the whole call. Two clients behind one address
//! may give the same numbers. So another connection gets the answer only in two cases. The
//! connection that first asked is gone, or the other one comes from the same port, as a client's
//! does that connects anew.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nuri_rules::broken;
use parking_lot::{Condvar, Mutex};

use crate::server::{Life, Peer};

/// Calls that are remembered.
const MOST: usize = 4096;
/// How long a repeated call waits for the end of the first.
const PATIENCE: Duration = Duration::from_secs(20);

/// What makes a call the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    address: IpAddr,
    xid: u32,
    checksum: u64,
}

struct Entry {
    number: u64,
    asker: Weak<dyn Life>,
    /// Of the asker: a client that connects anew comes from the same one, where it can.
    port: u16,
    /// Once it was carried out.
    answer: Option<Arc<Vec<u8>>>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<Key, Entry>,
    order: VecDeque<Key>,
    last: u64,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Repeated {
    table: Mutex<Table>,
    ended: Condvar,
    hasher: RandomState,
}

/// A call that was never seen: it is carried out, and its answer kept.
pub(crate) struct First<'r> {
    repeated: &'r Repeated,
    key: Key,
    number: u64,
}

/// What a call is.
pub(crate) enum Seen<'r> {
    First(First<'r>),
    /// It was carried out: this was the answer.
    Again(Arc<Vec<u8>>),
    /// The first one is still at work, or was another client's: nothing is said.
    Unclear,
}

impl Repeated {
    /// Looks for a call, all of which is `message`.
    pub(crate) fn see(&self, peer: &Peer, xid: u32, message: &[u8]) -> Seen<'_> {
        let checksum = self.hasher.hash_one(message);
        let key = Key { address: peer.address, xid, checksum };
        let until = Instant::now() + PATIENCE;
        let mut table = self.table.lock();
        loop {
            let Some(entry) = table.entries.get(&key).filter(|_| !broken!("nfs_call_twice")) else {
                let number = table.remember(key, peer);
                return Seen::First(First { repeated: self, key, number });
            };
            let asker = entry.asker.upgrade();
            let is_another = |asker: Arc<dyn Life>| {
                !Arc::ptr_eq(&asker, &peer.life) && entry.port != peer.port && !asker.is_over()
            };
            if asker.is_some_and(is_another) {
                // Two clients have the same address and gave the same number to the same call.
                table.forget(&key);
                continue;
            }
            if let Some(answer) = &entry.answer {
                return Seen::Again(answer.clone());
            }
            if self.ended.wait_until(&mut table, until).timed_out() {
                return Seen::Unclear;
            }
        }
    }
}

impl Table {
    fn remember(&mut self, key: Key, peer: &Peer) -> u64 {
        if self.order.len() >= MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
        self.order.push_back(key);
        self.last += 1;
        let (asker, port) = (Arc::downgrade(&peer.life), peer.port);
        self.entries.insert(key, Entry { number: self.last, asker, port, answer: None });
        self.last
    }

    fn forget(&mut self, key: &Key) {
        self.entries.remove(key);
        self.order.retain(|other| other != key);
    }
}

impl First<'_> {
    /// The call was carried out.
    pub(crate) fn answered(self, answer: &[u8]) {
        let mut table = self.repeated.table.lock();
        // It may be another client's by now.
        let own = table.entries.get_mut(&self.key).filter(|entry| entry.number == self.number);
        if let Some(entry) = own {
            entry.answer = Some(Arc::new(answer.to_vec()));
        }
    }
}

impl Drop for First<'_> {
    /// Where there is no answer, the next one that asks is the first again.
    fn drop(&mut self) {
        let mut table = self.repeated.table.lock();
        let is_open = |entry: &Entry| entry.number == self.number && entry.answer.is_none();
        if table.entries.get(&self.key).is_some_and(is_open) {
            table.forget(&self.key);
        }
        drop(table);
        self.repeated.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;

    struct Alive;

    impl Life for Alive {
        fn is_over(&self) -> bool {
            false
        }
    }

    fn peer(last: u8) -> Peer {
        static PORT: AtomicU16 = AtomicU16::new(0);
        let port = PORT.fetch_add(1, Ordering::SeqCst);
        let (address, local) = ([192, 0, 2, last].into(), [192, 0, 2, 0].into());
        Peer { address, port, local, life: Arc::new(Alive) }
    }

    fn answer(repeated: &Repeated, peer: &Peer, xid: u32, message: &[u8]) -> Option<Vec<u8>> {
        match repeated.see(peer, xid, message) {
            Seen::First(_) | Seen::Unclear => None,
            Seen::Again(answer) => Some(answer.to_vec()),
        }
    }

    fn carry_out(repeated: &Repeated, peer: &Peer, xid: u32, message: &[u8]) {
        match repeated.see(peer, xid, message) {
            Seen::First(first) => first.answered(b"done"),
            _ => panic!("it was seen before"),
        }
    }

    #[test]
    fn a_repeated_call_gets_the_first_answer() {
        let (repeated, client) = (Repeated::default(), peer(1));
        carry_out(&repeated, &client, 7, b"call");
        assert_eq!(answer(&repeated, &client, 7, b"call"), Some(b"done".to_vec()));
        assert_eq!(answer(&repeated, &client, 7, b"other"), None, "its number came round");
        assert_eq!(answer(&repeated, &client, 8, b"call"), None);
        assert_eq!(answer(&repeated, &peer(2), 7, b"call"), None, "another machine's");
    }

    #[test]
    fn a_call_without_an_answer_is_carried_out_when_it_comes_again() {
        let (repeated, client) = (Repeated::default(), peer(1));
        drop(repeated.see(&client, 7, b"call"));
        carry_out(&repeated, &client, 7, b"call");
    }

    #[test]
    fn another_connection_gets_the_answer_when_the_first_is_gone() {
        let (repeated, client) = (Repeated::default(), peer(1));
        carry_out(&repeated, &client, 7, b"call");
        let again = peer(1);
        drop(client);
        assert_eq!(answer(&repeated, &again, 7, b"call"), Some(b"done".to_vec()));
        // Both live: they are two clients.
        let (one, two) = (peer(3), peer(3));
        carry_out(&repeated, &one, 9, b"call");
        assert_eq!(answer(&repeated, &two, 9, b"call"), None);
        // It connects anew, from the same port, and its old connection is believed to live.
        let again = Peer { life: Arc::new(Alive), ..one.clone() };
        carry_out(&repeated, &one, 10, b"call");
        assert!(answer(&repeated, &again, 10, b"call").is_some());
    }

    #[test]
    fn who_asks_again_waits_for_the_first() {
        let (repeated, client) = (Arc::new(Repeated::default()), peer(1));
        let Seen::First(first) = repeated.see(&client, 7, b"call") else { panic!("seen before") };
        let (other, again) = (repeated.clone(), client.clone());
        let waits = std::thread::spawn(move || answer(&other, &again, 7, b"call"));
        std::thread::sleep(Duration::from_millis(50));
        first.answered(b"done");
        assert_eq!(waits.join().unwrap(), Some(b"done".to_vec()));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let (repeated, client) = (Repeated::default(), peer(1));
        (0..=MOST as u32).for_each(|xid| carry_out(&repeated, &client, xid, b"call"));
        assert_eq!(repeated.table.lock().entries.len(), MOST);
        assert!(answer(&repeated, &client, 1, b"call").is_some());
        assert_eq!(answer(&repeated, &client, 0, b"call"), None);
    }
}
