//! Two or three endpoints in one process: everything that needs no death.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::ring::Kind;
use crate::{Completion, Config, CrossMemory, Endpoint, Error, Request, Selector, Status};

const SOON: Option<Duration> = Some(Duration::from_secs(20));

struct Session(tempfile::TempDir, u32);

impl Session {
    fn of(size: u32) -> Self {
        Self(tempfile::tempdir().unwrap(), size)
    }
    fn config(&self, rank: u32) -> Config {
        Config::new("t", rank, self.1).dir(self.0.path().join("ipc")).bulk(64 << 10)
    }
    fn open(&self, rank: u32) -> Endpoint {
        Endpoint::open(self.config(rank)).unwrap()
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256 + seed) as u8).collect()
}

/// The bytes may be old ones when nothing is received: a buffer that shows it.
fn recv(e: &Endpoint, from: Selector, room: usize) -> crate::Result<(Status, Vec<u8>)> {
    let mut bytes = vec![0xee; room];
    let status = e.recv(from, &mut bytes, SOON)?;
    bytes.truncate(status.len as usize);
    Ok((status, bytes))
}

fn done(e: &Endpoint, request: Request) -> Completion {
    e.wait(request, SOON).unwrap()
}

#[test]
fn every_length_arrives_asked_for_before_and_after() {
    let session = Session::of(2);
    let (a, b) = (session.open(0), session.open(1));
    let lengths = [0, 1, 40, 41, 64, 1024, 1025, 4096, 16383, 16384, 16385, 65536, 65537, 300_001];
    scope(|s| {
        s.spawn(|| {
            for (seed, len) in lengths.iter().enumerate() {
                a.send(1, seed as u64, &pattern(*len, seed)).unwrap();
            }
        });
        for (seed, len) in lengths.iter().enumerate() {
            if seed % 2 == 0 {
                let status = b.probe(Selector::exact(0, seed as u64), SOON).unwrap();
                assert_eq!(status.len, *len as u64);
            }
            let (status, bytes) = recv(&b, Selector::exact(0, seed as u64), 400_000).unwrap();
            assert_eq!(status, Status { source: 0, tag: seed as u64, len: *len as u64 });
            assert_eq!(bytes, pattern(*len, seed), "of length {len}");
        }
    });
}

#[test]
fn messages_are_read_from_their_senders_memory() {
    let session = Session::of(2);
    let always = session.config(0).cross_memory(CrossMemory::From(2000));
    let (a, b) = (Endpoint::open(always).unwrap(), session.open(1));
    let sent = pattern(300_000, 4);
    scope(|s| {
        s.spawn(|| {
            let (x, y) = sent.split_at(1000);
            a.send_vectored(1, 1, &[IoSlice::new(x), IoSlice::new(y)]).unwrap();
            a.send(1, 2, &sent).unwrap();
            a.send(1, 3, &sent).unwrap();
        });
        assert_eq!(recv(&b, Selector::exact(0, 1), 300_000).unwrap().1, sent);
        let kept = recv(&b, Selector::exact(0, 3), 300_000).unwrap();
        assert_eq!((kept.0.len, kept.1), (300_000, sent.clone()));
        let short = recv(&b, Selector::exact(0, 2), 100).unwrap_err();
        assert_eq!(short, Error::Truncated { length: 300_000, room: 100 });
    });
    assert_eq!(a.info().peers[0].cross_memory, Some(Ok(())));
    let parts = std::iter::once((8 as *const u8, 4096));
    #[allow(unsafe_code)]
    // SAFETY: nothing is mapped there, which only the kernel gets to see.
    let unmapped = unsafe { a.isend_raw(1, 4, parts) }.unwrap();
    let error = recv(&b, Selector::exact(0, 4), 4096).unwrap_err();
    assert_eq!(error, Error::NotRead { rank: 0 });
    assert_eq!(done(&a, unmapped).result.unwrap_err(), Error::NotRead { rank: 1 });
}

/// What a peer has read before its end was sent well, whichever is seen first.
/// Catches `broken!("end_before_answer")`.
#[test]
fn a_message_that_was_read_counts_though_its_reader_is_gone() {
    let session = Session::of(2);
    let always = session.config(0).cross_memory(CrossMemory::From(2000));
    let (a, b) = (Endpoint::open(always).unwrap(), session.open(1));
    a.send(1, 0, b"hello").unwrap();
    let request = a.isend(1, 1, pattern(4096, 4)).unwrap();
    assert_eq!(recv(&b, Selector::exact(0, 1), 4096).unwrap().1, pattern(4096, 4));
    drop(b);
    // Until its end is known here.
    sleep(Duration::from_millis(300));
    assert_eq!(done(&a, request).result.unwrap().len, 4096);
    assert_eq!(a.send(1, 1, b"more"), Err(Error::PeerGone { rank: 1 }));
}

#[test]
fn parts_are_gathered_and_scattered() {
    let session = Session::of(2);
    let (a, b) = (session.open(0), session.open(1));
    for len in [60, 90_000] {
        let sent = pattern(len, 1);
        let (x, y) = sent.split_at(len / 3);
        scope(|s| {
            s.spawn(|| a.send_vectored(1, 5, &[IoSlice::new(x), IoSlice::new(y)]).unwrap());
            let (mut x, mut y) = (vec![0; 7], vec![0; len - 7]);
            let mut parts = [IoSliceMut::new(&mut x), IoSliceMut::new(&mut y)];
            b.recv_vectored(Selector::ANY, &mut parts, SOON).unwrap();
            x.extend(y);
            assert_eq!(x, sent);
        });
    }
}

#[test]
fn truncation_fills_the_buffer_and_keeps_the_order() {
    let session = Session::of(2);
    let (a, b) = (session.open(0), session.open(1));
    for len in [100, 50_000] {
        scope(|s| {
            s.spawn(|| {
                a.send(1, 1, &pattern(len, 3)).unwrap();
                a.send(1, 2, b"next").unwrap();
            });
            let mut short = [0; 10];
            let error = b.recv(Selector::exact(0, 1), &mut short, SOON).unwrap_err();
            assert_eq!(error, Error::Truncated { length: len as u64, room: 10 });
            assert_eq!(short[..], pattern(len, 3)[..10]);
            assert_eq!(recv(&b, Selector::ANY, 10).unwrap().1, b"next");
        });
    }
}

#[test]
fn wrong_ranks_names_and_requests_are_refused() {
    let session = Session::of(2);
    let a = session.open(0);
    let wrong = Error::WrongRank { rank: 2, size: 2 };
    assert_eq!(a.send(2, 0, b"").unwrap_err(), wrong);
    assert_eq!(a.recv(Selector::exact(2, 0), &mut [], None).unwrap_err(), wrong);
    assert_eq!(Endpoint::open(session.config(2)).err().unwrap(), wrong);
    assert_eq!(Endpoint::open(session.config(0)).err().unwrap(), Error::RankTaken { rank: 0 });
    assert_eq!(a.test(Request::from_bits(7)).err().unwrap(), Error::UnknownRequest);
    let bad = Endpoint::open(Config::new("../x", 0, 1));
    assert_eq!(bad.err().unwrap(), Error::BadName("../x".into()));
    let absent = Endpoint::open(session.config(1).connect(Duration::from_millis(30))).unwrap();
    drop(a);
    assert_eq!(absent.send(0, 0, b"x").unwrap_err(), Error::PeerAbsent { rank: 0 });
}

#[test]
fn a_timeout_receives_nothing_and_loses_nothing() {
    let session = Session::of(2);
    let (a, b) = (session.open(0), session.open(1));
    let started = Instant::now();
    let timeout = Some(Duration::from_millis(30));
    assert_eq!(b.recv(Selector::ANY, &mut [0; 4], timeout).unwrap_err(), Error::TimedOut);
    assert!(started.elapsed() >= Duration::from_millis(30));
    a.send(1, 0, b"late").unwrap();
    assert_eq!(recv(&b, Selector::ANY, 4).unwrap().1, b"late");
}

#[test]
fn requests_end_in_any_order_and_can_be_taken_back() {
    let session = Session::of(2);
    let (a, b) = (session.open(0), session.open(1));
    let one = b.irecv(Selector::exact(0, 1), vec![0; 8]).unwrap();
    let two = b.irecv(Selector::exact(0, 2), vec![0; 8]).unwrap();
    assert!(b.test(one).unwrap().is_none());
    assert_eq!(b.wait_any(&[one, two], Some(Duration::ZERO)).err(), Some(Error::TimedOut));
    a.send(1, 2, b"second").unwrap();
    let (at, completion) = b.wait_any(&[one, two], SOON).unwrap();
    assert_eq!((at, completion.result.unwrap().tag), (1, 2));
    assert_eq!(completion.buffer.unwrap(), b"second\0\0");
    assert_eq!(b.test(two).err().unwrap(), Error::UnknownRequest);
    assert_eq!(b.cancel(one), Ok(true));
    assert_eq!(done(&b, one).result.unwrap_err(), Error::Cancelled);
    a.send(1, 1, b"first").unwrap();
    assert_eq!(recv(&b, Selector::ANY, 8).unwrap().1, b"first");
}

#[test]
fn sends_that_find_no_room_wait_and_can_be_taken_back() {
    let session = Session::of(2);
    let (a, b) = (session.open(0), session.open(1));
    let big = pattern(1 << 20, 9);
    let first = a.isend(1, 1, big.clone()).unwrap();
    let second = a.isend(1, 2, big.clone()).unwrap();
    sleep(Duration::from_millis(20));
    assert!(a.test(first).unwrap().is_none(), "the ring is smaller than the message");
    assert_eq!(a.cancel(first), Ok(false), "bytes have moved");
    assert_eq!(a.cancel(second), Ok(true));
    let last = a.isend(1, 3, b"end".to_vec()).unwrap();
    scope(|s| {
        s.spawn(|| assert_eq!(recv(&b, Selector::exact(0, 1), 1 << 20).unwrap().1, big));
        assert_eq!(done(&a, first).buffer.unwrap(), big);
        assert_eq!(done(&a, second).result.unwrap_err(), Error::Cancelled);
    });
    assert!(done(&a, last).result.is_ok());
    assert_eq!(recv(&b, Selector::ANY, 9).unwrap().1, b"end");
}

#[test]
fn unwanted_messages_are_kept_within_bounds_and_block_their_sender_only() {
    let session = Session::of(3);
    let (a, c) = (session.open(0), session.open(2));
    let b = Endpoint::open(session.config(1).spill(10_000)).unwrap();
    let flood: Vec<Request> =
        (0..1000).map(|i| a.isend(1, i, pattern(900, i as usize)).unwrap()).collect();
    c.send(1, 5000, b"other").unwrap();
    assert_eq!(recv(&b, Selector::exact(2, 5000), 9).unwrap().1, b"other");
    scope(|s| {
        s.spawn(|| flood.iter().for_each(|r| assert!(done(&a, *r).result.is_ok())));
        for i in 0..1000 {
            let got = recv(&b, Selector::exact(0, i), 900).unwrap();
            assert_eq!(got.1, pattern(900, i as usize));
        }
    });
    scope(|s| {
        s.spawn(|| a.send(1, 1, &pattern(50_000, 2)).unwrap());
        assert_eq!(b.iprobe(Selector::exact(0, 1)).unwrap(), None, "longer than the bound");
        assert_eq!(recv(&b, Selector::ANY, 50_000).unwrap().1, pattern(50_000, 2));
    });
}

#[test]
fn messages_to_oneself() {
    let session = Session::of(1);
    let a = Endpoint::open_single(session.config(0)).unwrap();
    a.send(0, 4, b"before").unwrap();
    let mut bytes = [0; 10];
    assert_eq!(a.recv(Selector::exact(0, 4), &mut bytes, SOON).unwrap().len, 6);
    let posted = a.irecv(Selector::ANY, vec![0; 3000]).unwrap();
    a.send(0, 1, &pattern(3000, 0)).unwrap();
    let completion = a.wait(posted, SOON).unwrap();
    assert_eq!(completion.buffer.unwrap(), pattern(3000, 0));
}

/// Who was heard of and ended is gone, not absent, though nothing was sent to it before.
#[test]
fn a_peer_that_ends_before_the_first_send_to_it_is_gone() {
    for round in 0..10 {
        let session = Session::of(2);
        let (a, b) = (session.open(0), session.open(1));
        b.send(0, 1, b"here").unwrap();
        recv(&a, Selector::exact(1, 1), 4).unwrap();
        drop(b);
        // What is sent before its end is known may fit into its ring: then the next one tells.
        let refused = (0..1000).find_map(|_| {
            sleep(Duration::from_millis(1));
            a.send(1, 1, b"x").err()
        });
        assert_eq!(refused, Some(Error::PeerGone { rank: 1 }), "round {round}");
    }
}

#[test]
fn closing_ends_waits_once_all_was_read() {
    let session = Session::of(2);
    let (a, b) = (session.open(0), session.open(1));
    a.send(1, 1, b"last words").unwrap();
    b.send(0, 1, b"").unwrap();
    let blocked = b.irecv(Selector::exact(0, 2), vec![0; 8]).unwrap();
    drop(a);
    assert_eq!(recv(&b, Selector::exact(0, 1), 20).unwrap().1, b"last words");
    let gone = Error::PeerGone { rank: 0 };
    assert_eq!(done(&b, blocked).result.unwrap_err(), gone);
    assert_eq!(b.recv(Selector::ANY, &mut [], SOON).unwrap_err(), Error::PeerGone { rank: 2 });
    let refused = (0..1000).find_map(|_| {
        sleep(Duration::from_millis(1));
        b.send(0, 1, b"x").err()
    });
    assert_eq!(refused, Some(gone));
    let again = session.open(0);
    again.send(1, 3, b"new life").unwrap();
    assert_eq!(recv(&b, Selector::exact(0, 3), 20).unwrap().1, b"new life");
    b.send(0, 3, b"welcome").unwrap();
    assert_eq!(recv(&again, Selector::ANY, 20).unwrap().1, b"welcome");
}

#[test]
fn threads_share_an_endpoint() {
    let session = Session::of(2);
    let (a, b) = (session.open(0), session.open(1));
    scope(|s| {
        for tag in 0..4u64 {
            let (a, b) = (&a, &b);
            s.spawn(move || {
                for i in 0..200usize {
                    let (_, bytes) = recv(b, Selector::exact(0, tag), 3000).unwrap();
                    assert_eq!(bytes, pattern(i * 13, i));
                    b.send(0, tag, &bytes).unwrap();
                }
            });
            s.spawn(move || {
                for i in 0..200usize {
                    a.send(1, tag, &pattern(i * 13, i)).unwrap();
                    let (_, bytes) = recv(a, Selector::exact(1, tag), 3000).unwrap();
                    assert_eq!(bytes, pattern(i * 13, i));
                }
            });
        }
    });
}

#[test]
fn buffers_are_lent_and_given_back() {
    let session = Session::of(2);
    let a = Endpoint::open(session.config(0).heap(16384)).unwrap();
    let b = session.open(1);
    for tag in 0..600 {
        let mut loan = a.alloc(5000).unwrap();
        loan.copy_from_slice(&pattern(5000, tag as usize));
        a.send_loan(1, tag, loan).unwrap();
        if tag % 3 == 0 {
            assert_eq!(recv(&b, Selector::ANY, 5000).unwrap().1, pattern(5000, tag as usize));
            continue;
        }
        if tag % 3 == 1 {
            b.probe(Selector::exact(0, tag), SOON).unwrap();
        }
        let request = b.irecv_open(Selector::exact(0, tag)).unwrap();
        let lent = done(&b, request).lent.unwrap();
        let mut bytes = vec![0; 6000];
        assert_eq!((lent.len(), lent.read(0, &mut bytes)), (5000, 5000));
        assert_eq!(bytes[..5000], pattern(5000, tag as usize));
    }
    let held: Vec<_> = (0..4).map(|_| a.alloc(4096).unwrap()).collect();
    assert_eq!((a.info().heap, a.alloc(1).unwrap_err()), (16384, Error::HeapFull));
    held.into_iter().for_each(|loan| a.send_loan(1, 0, loan).unwrap());
    assert_eq!(a.alloc(1).unwrap_err(), Error::HeapFull, "the peer holds all");
    drop(b);
    let until = Instant::now() + Duration::from_secs(5);
    while a.alloc(16384).is_err() && Instant::now() < until {
        let _ = a.iprobe(Selector::ANY);
    }
    assert_eq!(a.info().heap, 0, "what the dead held came back");
}

#[test]
fn open_receives_take_any_length() {
    let session = Session::of(2);
    let (a, b) = (session.open(0), session.open(1));
    for len in [0, 900, 50_000] {
        let early = b.irecv_open(Selector::ANY).unwrap();
        a.send(1, 1, &pattern(len, 1)).unwrap();
        assert_eq!(done(&b, early).buffer.unwrap(), pattern(len, 1));
        a.send(1, 2, &pattern(len, 2)).unwrap();
        b.probe(Selector::exact(0, 2), SOON).unwrap();
        let late = b.irecv_open(Selector::ANY).unwrap();
        assert_eq!(done(&b, late).buffer.unwrap(), pattern(len, 2));
    }
}

#[test]
fn windows_are_put_got_added_and_noticed() {
    let session = Session::of(2);
    let (a, b) = (session.open(0), session.open(1));
    let own = a.window(7, 100).unwrap();
    assert!(matches!(a.window(7, 1), Err(Error::OutOfRange(_))));
    let none = b.attach(0, 8, Duration::ZERO).unwrap_err();
    assert_eq!(none, Error::TimedOut);
    let far = b.attach(0, 7, Duration::from_secs(5)).unwrap();
    scope(|s| {
        s.spawn(|| {
            far.put(20, b"hello").unwrap();
            assert_eq!(far.fetch_add(8, 5), Ok(0));
            far.fence();
            far.notify();
        });
        assert_eq!(a.wait_notice(&own, 0, SOON).unwrap(), 1);
    });
    let mut bytes = [0; 5];
    own.get(20, &mut bytes).unwrap();
    assert_eq!((&bytes, own.fetch_add(8, 1)), (b"hello", Ok(5)));
    let outside = Err(Error::OutOfRange("beyond the window"));
    assert_eq!(
        (far.put(96, b"hello"), far.get(usize::MAX, &mut bytes)),
        (outside.clone(), outside)
    );
    assert!(matches!(far.fetch_add(4, 1), Err(Error::OutOfRange(_))));
    a.close_window(7);
    assert_eq!(b.attach(0, 7, Duration::ZERO).unwrap_err(), Error::TimedOut);
}

/// Whatever a peer writes into its rings costs it its link at most; the endpoint and others live
/// on.
fn against_a_hostile_peer(kind: Kind, payload: &[u8], tail: u64) -> Option<Error> {
    let session = Session::of(3);
    let (a, b, c) = (session.open(0), session.open(1), session.open(2));
    a.send(1, 0, b"hello").unwrap();
    let waiting = b.irecv(Selector::exact(0, 5), vec![0; 5000]).unwrap();
    a.with_link(1, |link| {
        link.records.memory().data().word(0).store(tail, Relaxed);
        let len = payload.len();
        assert!(link.records.push(kind, 5, len, |slot| slot.write(0, payload)));
    });
    c.send(1, 1, b"unharmed").unwrap();
    assert_eq!(recv(&b, Selector::exact(2, 1), 8).unwrap().1, b"unharmed");
    let ended = b.wait(waiting, Some(Duration::from_millis(5)));
    let error = ended.ok().and_then(|completion| completion.result.err());
    if error == Some(Error::BadPeer { rank: 0 }) {
        let cut = a.recv(Selector::exact(1, 0), &mut [], SOON).unwrap_err();
        assert_eq!(cut, Error::PeerGone { rank: 1 }, "the peer sees the end");
    }
    error
}

#[test]
fn nonsense_from_a_peer_is_told_from_messages() {
    let bad = Some(Error::BadPeer { rank: 0 });
    let words = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    let max = u64::MAX;
    assert_eq!(against_a_hostile_peer(Kind::Bulk, b"short", 0), bad);
    assert_eq!(against_a_hostile_peer(Kind::Bulk, &words(&[max]), max), bad, "a tail beyond");
    assert_eq!(against_a_hostile_peer(Kind::Loan, &words(&[0, 8]), 0), bad);
    assert_eq!(against_a_hostile_peer(Kind::Loan, &words(&[max, 8, 0, 1]), 0), bad);
    assert_eq!(against_a_hostile_peer(Kind::Loan, &words(&[64 << 20, 1, 0, 1]), 0), bad);
    assert_eq!(against_a_hostile_peer(Kind::Loan, &words(&[0, 8, 256, 1]), 0), bad);
    assert_eq!(against_a_hostile_peer(Kind::Remote, &words(&[0, max, 0, max]), 0), bad);
    assert_eq!(against_a_hostile_peer(Kind::Remote, &[1; 15], 0), bad);
    let unread = Some(Error::NotRead { rank: 0 });
    assert_eq!(against_a_hostile_peer(Kind::Remote, &words(&[8, 64]), 0), unread);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn nonsense_from_a_peer_crashes_nobody(
        kind in 2..7u8,
        words in prop::collection::vec(prop_oneof![any::<u64>(), 0..5000u64], 0..8),
        tail in prop_oneof![any::<u64>(), 0..100_000u64],
    ) {
        let payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let kind = Kind::from_byte(kind).unwrap();
        against_a_hostile_peer(kind, &payload, tail);
    }
}

/// What a program does, with two senders and one receiver.
#[derive(Clone, Debug)]
enum Step {
    Send(u32, u64, usize),
    Receive(Selector),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![0..100usize, 1000..1100usize, 10_000..70_000usize];
    let send = (1..3u32, 0..3u64, length).prop_map(|(from, tag, len)| Step::Send(from, tag, len));
    let receive = (1..3u32, 0..3u64, 0..4).prop_map(|(from, tag, form)| {
        let exact = Selector::exact(from, tag);
        Step::Receive(match form {
            0 => exact.any_source(),
            1 => exact.any_tag(),
            2 => Selector::ANY,
            _ => exact,
        })
    });
    prop::collection::vec(prop_oneof![send, receive], 0..60)
}

/// A receive that ended: its place in the order of posting, its selector, sender and number.
type Got = (usize, Selector, u32, u64, u64);

/// How many receives end for sure: those that take anything, as far as there is something.
fn least(steps: &[Step]) -> usize {
    let sent = steps.iter().filter(|s| matches!(s, Step::Send(..))).count();
    let wild = steps.iter().filter(|s| matches!(s, Step::Receive(Selector::ANY))).count();
    sent.min(wild)
}

/// Runs the steps until nothing has moved for a while; every byte that came was right.
fn run(ends: &[Endpoint; 3], steps: &[Step]) -> Vec<Got> {
    let (mut sends, mut receives, mut got) = (Vec::new(), Vec::new(), Vec::new());
    for (i, step) in steps.iter().enumerate() {
        match step {
            Step::Send(from, tag, len) => {
                let mut bytes = (i as u64).to_le_bytes().to_vec();
                bytes.extend(pattern(*len, i));
                sends.push((*from, ends[*from as usize].isend(0, *tag, bytes).unwrap()));
            }
            Step::Receive(selector) => {
                receives.push((i, *selector, ends[0].irecv(*selector, vec![0; 70_100]).unwrap()));
            }
        }
    }
    let mut moved = Instant::now();
    // A machine that is busy with others may stand still for longer than what is sure to come.
    let patience = |got: &[Got]| if got.len() < least(steps) { 5000 } else { 20 };
    while moved.elapsed() < Duration::from_millis(patience(&got)) {
        sends.retain(|(from, r)| ends[*from as usize].test(*r).unwrap().is_none());
        receives.retain(|(i, selector, request)| {
            let Some(completion) = ends[0].test(*request).unwrap() else { return true };
            let (status, bytes) = (completion.result.unwrap(), completion.buffer.unwrap());
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let len = status.len as usize - 8;
            assert_eq!(bytes[8..8 + len], pattern(len, number as usize));
            got.push((*i, *selector, status.source, status.tag, number));
            moved = Instant::now();
            false
        });
    }
    got.sort_by_key(|g| g.0);
    got
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A message never passes an older one of its sender that the older receive would have taken.
    #[test]
    fn nothing_overtakes(steps in steps()) {
        let session = Session::of(3);
        let got = run(&[session.open(0), session.open(1), session.open(2)], &steps);
        for (i, (_, first, source, _, number)) in got.iter().enumerate() {
            for (_, _, later_source, tag, later) in &got[i + 1..] {
                if source == later_source && first.accepts(*source, *tag) {
                    prop_assert!(number < later, "{number} and {later}");
                }
            }
        }
        prop_assert!(got.len() >= least(&steps), "who takes all takes one each");
    }
}
