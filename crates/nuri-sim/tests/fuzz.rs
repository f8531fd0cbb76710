//! The fuzz targets without the fuzzer: every stored input, and mutations of them from a seed.
//!
//! `NURI_WRITE_CORPUS=1 cargo test -p nuri-sim --test fuzz` writes the starting corpora anew.

#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/feed.rs"]
mod feed;

use std::fs;
use std::path::PathBuf;

use nuri_io::rng::Rng;
use nuri_kv::engine::Batch;
use nuri_kv::log::{BLOCK, Place, SegmentHead, encode};
use nuri_proto::codec;
use nuri_proto::header::{Header, Kind};
use nuri_proto::id::{ChunkKey, GroupId, Ino, ObjectId, SessionId, TargetId};
use nuri_proto::layout::LayoutPolicy;
use nuri_proto::op::Call;
use nuri_proto::op::{data, lock, meta};
use nuri_proto::range_map::Span;
use nuri_proto::stripe::{Covers, Held, Members, Staged, Version, WriteId};
use nuri_target::store::log::{Body, Record};

type Feed = fn(&[u8]);
const TARGETS: [(&str, Feed); 6] = [
    ("frame", feed::frame),
    ("layout", feed::layout),
    ("kv_log", feed::kv_log),
    ("nbd", feed::nbd),
    ("nfs", feed::nfs),
    ("target_log", feed::target_log),
];

fn folder(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target].iter().collect()
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> =
        fs::read_dir(folder(target)).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn framed<C: Call>(call: &C) -> Vec<u8> {
    let args = codec::encode(call).unwrap();
    let header = Header {
        kind: Kind::Request,
        flags: 0,
        op: C::OP as u16,
        request: 1,
        session: 2,
        slot: 3,
        sequence: 4,
        epoch: 5,
        status: 0,
        args_len: args.len() as u32,
        payload_len: 0,
        payload_crc: 0,
    };
    [&header.encode(&args)[..], &args].concat()
}

fn kv_segment() -> Vec<u8> {
    let mut out = vec![7];
    out.extend_from_slice(&SegmentHead { generation: 7 }.encode());
    for sequence in 1..=3 {
        let mut batch = Batch::new();
        batch.put(b"key".to_vec(), vec![sequence as u8; 100]);
        batch.delete(b"gone".to_vec());
        encode(&mut out, 7, 1, sequence, Place::First, &batch);
        out.resize(1 + (out.len() - 1).next_multiple_of(BLOCK), 0);
    }
    out
}

fn target_log() -> Vec<u8> {
    let key = ChunkKey { object: ObjectId(1), component: 0, stripe: 0 };
    let staged = Staged {
        version: Version(8),
        id: WriteId::default(),
        covers: Covers::one(Version(8)),
        participants: Members(3),
    };
    let held = Held { group: GroupId(1), staged: Some(staged), ..Held::default() };
    let mut out = vec![7];
    let records = [
        Record::Punch { key, at: 1, len: 2 },
        Record::Truncate { object: ObjectId(1), from: 3 },
        Record::Delete { objects: vec![ObjectId(1), ObjectId(2)] },
        Record::Commit { key, version: Version(7) },
        Record::Held { key, held: held.clone() },
        Record::Install { key, held },
    ];
    for (i, record) in records.iter().enumerate() {
        let position = 8192 + (out.len() - 1) as u64;
        let place = nuri_target::store::log::Place {
            generation: 7,
            position,
            seq: 5 + i as u64,
            batch: 8192,
        };
        Body::new(record).finish(place, |part| out.extend_from_slice(part));
    }
    out.resize(1 + 8192, 0);
    out
}

/// What clients say, behind a byte that says in which pieces it arrives.
/// Calls in pieces: a LOOKUP, and a WRITE in two fragments.
fn nfs_clients() -> Vec<Vec<u8>> {
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<u8>>();
    let text = |text: &[u8]| {
        let mut bytes = words(&[text.len() as u32]);
        bytes.extend_from_slice(text);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let user = [words(&[0]), text(b"host"), words(&[5, 6, 2, 7, 8])].concat();
    let head = |procedure| {
        let call = words(&[77, 0, 2, 100_003, 3, procedure, 1]);
        [call, text(&user), words(&[0, 0])].concat()
    };
    let handle = text(&[1; 32]);
    let lookup = [head(3), handle.clone(), text(b"name")].concat();
    let write = [head(7), handle, words(&[0, 9, 5, 2]), text(b"bytes")].concat();
    let fragment = |bytes: &[u8], last: u32| {
        [words(&[bytes.len() as u32 | last << 31]), bytes.to_vec()].concat()
    };
    let (first, second) = write.split_at(40);
    let all = [fragment(&lookup, 1), fragment(first, 0), fragment(second, 1)].concat();
    vec![[vec![255], all.clone()].concat(), [vec![6], all].concat()]
}

fn nbd_clients() -> Vec<Vec<u8>> {
    let option = |number: u32, data: &[u8]| {
        let len = (data.len() as u32).to_be_bytes();
        [b"IHAVEOPT", &number.to_be_bytes()[..], &len, data].concat()
    };
    let disk = b"\0\0\0\x04disk";
    let context = [&disk[..], b"\0\0\0\x01\0\0\0\x0fbase:allocation"].concat();
    let request = [&0x2560_9513u32.to_be_bytes()[..], &[0; 24]].concat();
    let go = [option(7, &[&disk[..], &[0, 1, 0, 3]].concat()), request].concat();
    let options = [option(8, &[]), option(10, &context), option(3, &[]), go].concat();
    let modern = [&[7, 0, 0, 0, 3][..], &options].concat();
    vec![modern, [&[0, 0, 0, 0, 1][..], &option(1, b"disk")].concat()]
}

fn held_lock() -> lock::HeldLock {
    let (class, mode) = (lock::LockClass::Flock, lock::LockMode::Shared);
    lock::HeldLock { ino: Ino(5), class, owner: 6, span: Span::ALL, mode, pid: 7 }
}

fn lock_set() -> lock::LockSet {
    let wait = lock::LockWait::Queue { request: 8, deadlock: lock::Deadlock::Detect };
    let (class, mode) = (lock::LockClass::Range, Some(lock::LockMode::Exclusive));
    let span = Span { start: 9, end: 10 };
    lock::LockSet { ino: Ino(5), class, owner: 6, span, mode, pid: 7, wait }
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let key = ChunkKey { object: ObjectId(9), component: 0, stripe: 1 };
    let read = data::DataRead {
        target: TargetId(1),
        key,
        offset: 4096,
        len: 100,
        capability: data::Capability::default(),
    };
    let layout = LayoutPolicy::default().instantiate(&[GroupId(1), GroupId(2)], 3);
    match target {
        "frame" => vec![
            framed(&read),
            framed(&meta::Lookup { parent: Ino::ROOT, name: b"name".to_vec() }),
            framed(&meta::Reclaim {
                server_boot: 3,
                parts: vec![(Ino(7), vec![Span::ALL])],
                leases: vec![(Ino(3), meta::LeaseMode::Write)],
                open: vec![Ino(4)],
                locks: vec![held_lock()],
                more: true,
            }),
            framed(&lock_set()),
            framed(&lock::LockCancel { requests: vec![7, u64::MAX] }),
            framed(&lock::LockTell { ino: Ino(5), number: 7, locks: Some(vec![held_lock()]) }),
            framed(&meta::SetAttr { ino: Ino(5), size: Some(6), ..Default::default() }),
            framed(&meta::Release { leases: vec![(Ino(7), SessionId(8).0)] }),
        ],
        "layout" => {
            vec![codec::encode(&layout).unwrap(), codec::encode(&LayoutPolicy::default()).unwrap()]
        }
        "kv_log" => vec![kv_segment()],
        "nbd" => nbd_clients(),
        "nfs" => nfs_clients(),
        _ => vec![target_log()],
    }
}

#[test]
fn stored_inputs_are_digested() {
    for (target, feed) in TARGETS {
        if std::env::var_os("NURI_WRITE_CORPUS").is_some() {
            fs::create_dir_all(folder(target)).unwrap();
            for (i, bytes) in seeds(target).into_iter().enumerate() {
                fs::write(folder(target).join(format!("seed{i}")), bytes).unwrap();
            }
        }
        let inputs = corpus(target);
        assert!(!inputs.is_empty(), "{target} has no corpus");
        inputs.iter().for_each(|bytes| feed(bytes));
    }
}

#[test]
fn mutated_inputs_are_digested() {
    for (target, feed) in TARGETS {
        let inputs = [corpus(target), seeds(target)].concat();
        let mut rng = Rng::new(0xf022);
        for _ in 0..2000 {
            let mut bytes = inputs[rng.below(inputs.len() as u64) as usize].clone();
            for _ in 0..=rng.below(4) {
                mutate(&mut bytes, &mut rng);
            }
            feed(&bytes);
        }
    }
}

fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let len = bytes.len().min(200) as u64;
    let at = rng.below(len) as usize;
    match rng.below(5) {
        _ if bytes.is_empty() => bytes.push(rng.next() as u8),
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = [0, 0x7f, 0x80, 0xff][rng.below(4) as usize],
        2 => bytes.truncate(at),
        3 => bytes.insert(at, rng.next() as u8),
        _ => drop(bytes.remove(at)),
    }
}
