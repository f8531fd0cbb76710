use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::id::{BootId, ChunkKey, ObjectId, TargetId};
use nuri_proto::op::data::{Capability, DataRead, DataWrite, Durability, Room, WriteReply};
use nuri_proto::op::near::{self, PeerMemoryAsk, PeerMemoryProof};
use nuri_proto::op::{Op, cluster::MapGet, cluster::Path, cluster::TargetRemove};
use nuri_proto::version::PROTOCOL_MAX;

use super::*;

/// Keeps the last payload; answers reads with it.
#[derive(Default)]
struct Echo {
    bytes: parking_lot::Mutex<Vec<u8>>,
    calls: AtomicU64,
}

impl Service for Echo {
    fn serve(&self, request: &Request<'_>) -> Reply {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match request.op {
            Op::DataWrite => reply_to::<DataWrite>(request.args, |_| {
                *self.bytes.lock() = request.payload.to_vec();
                assert_eq!(request.payload.as_ptr() as usize % 4096, 0);
                Ok(WriteReply { boot: BootId(1), allocated: request.payload.len() as u64 })
            }),
            Op::DataRead => {
                let mut reply = reply_to::<DataRead>(request.args, |_| Ok(()));
                let mut buf = request.buffers.take();
                let bytes = self.bytes.lock();
                buf.set_len(bytes.len());
                buf.copy_from_slice(&bytes);
                reply.payload = Some(buf);
                reply
            }
            _ => Reply::failed(Status::NOTSUP),
        }
    }
}

fn secret(byte: u8) -> Secret {
    Secret::from_bytes([byte; 32])
}

fn start() -> (Server, Arc<Echo>) {
    let echo = Arc::new(Echo::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (Server::start(listener, &secret(1), echo.clone()).unwrap(), echo)
}

fn key() -> ChunkKey {
    ChunkKey { object: ObjectId(1), component: 0, stripe: 0 }
}

fn write() -> DataWrite {
    DataWrite {
        target: TargetId(1),
        key: key(),
        offset: 0,
        durability: Durability::Memory,
        room: Room::Unpromised,
        capability: Capability::default(),
    }
}

const T: Duration = Duration::from_secs(5);

/// The call layer answers by itself, and shows nobody what others sent.
#[test]
fn echoes_are_zeros_and_no_call_of_the_service() {
    let (server, service) = start();
    let peer = Peer::new(&server.address().to_string(), &secret(1));
    let context = CallContext::default();
    let mut into = vec![9; 1 << 20];
    for len in [0, 1, 70_000, 1 << 20] {
        let call = near::Echo { bytes: len as u32 };
        let sent = vec![7; len];
        let ((), got) = peer.call(context, &call, &sent, &mut into, T).unwrap();
        assert_eq!(got, len);
        assert!(into[..len].iter().all(|byte| *byte == 0), "{len}");
    }
    let long = near::Echo { bytes: (1 << 20) + 1 };
    assert_eq!(peer.call(context, &long, &[], &mut into, T), Err(Status::INVAL));
    assert_eq!(service.calls.load(Ordering::SeqCst), 0);
}

#[test]
fn payload_travels_both_ways() {
    let (server, _) = start();
    let peer = Peer::new(&server.address().to_string(), &secret(1));
    let context = CallContext::default();
    for len in [1, 100, 4095, 4096, 70_000, 1 << 20] {
        let data: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
        let (reply, _) = peer.call(context, &write(), &data, &mut [], T).unwrap();
        assert_eq!(reply.allocated, len as u64);
        let read = DataRead {
            target: TargetId(1),
            key: key(),
            offset: 0,
            len: len as u32,
            capability: Capability::default(),
        };
        let mut into = vec![0; len];
        let (_, got) = peer.call(context, &read, &[], &mut into, T).unwrap();
        assert_eq!((got, into), (len, data));
    }
    let refused = peer.call(context, &MapGet {}, &[], &mut [], T);
    assert_eq!(refused.unwrap_err(), Status::NOTSUP);
}

/// A program must wait for a server that restarts, not be told that its secret is wrong.
#[test]
fn a_server_that_dies_in_the_handshake_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let dying = std::thread::spawn(move || {
        for bytes in [0, 48] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut hello = [0; 48];
            stream.read_exact(&mut hello).unwrap();
            hello[8..10].copy_from_slice(&PROTOCOL_MAX.to_le_bytes());
            stream.write_all(&hello[..bytes]).unwrap();
        }
    });
    for _ in 0..2 {
        let peer = Peer::new(&address, &secret(1));
        let outcome = peer.call(CallContext::default(), &MapGet {}, &[], &mut [], T);
        assert_eq!(outcome.err(), Some(Status::UNREACHABLE));
    }
    dying.join().unwrap();
}

/// The kernel takes connections for a process that is stopped.
#[test]
fn the_timeout_of_a_call_bounds_the_handshake_too() {
    let stopped = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = Peer::new(&stopped.local_addr().unwrap().to_string(), &secret(1));
    let (context, begun) = (CallContext::default(), Instant::now());
    let timeout = Duration::from_millis(100);
    let outcome = peer.call(context, &MapGet {}, &[], &mut [], timeout);
    assert_eq!(outcome.err(), Some(Status::UNREACHABLE));
    assert!(begun.elapsed() < T / 5, "{:?}", begun.elapsed());
}

/// Each kept connection would be waited for as long.
#[test]
fn a_late_answer_is_not_asked_for_on_another_kept_connection() {
    let (server, echo) = start();
    let peer = Peer::new(&server.address().to_string(), &secret(1));
    let kept: Vec<_> = (0..3).map(|_| peer.reach(T).unwrap()).collect();
    for reached in kept {
        reached.call(CallContext::default(), &write(), b"x", &mut [], T).unwrap();
    }
    let stands_still = echo.bytes.lock();
    let timeout = Duration::from_millis(200);
    let outcome = peer.call(CallContext::default(), &write(), b"x", &mut [], timeout);
    assert_eq!(outcome.err(), Some(Status::UNREACHABLE));
    assert_eq!(echo.calls.load(Ordering::SeqCst), 4);
    drop(stands_still);
}

#[test]
fn wrong_secret_gets_nothing_parsed() {
    let (server, echo) = start();
    let peer = Peer::new(&server.address().to_string(), &secret(2));
    assert!(matches!(peer.probe(), Err(HandshakeError::Secret)));
    let refused = peer.call(CallContext::default(), &write(), b"x", &mut [], T);
    assert_eq!(refused.unwrap_err(), Status::WRONG_PEER);
    assert_eq!(echo.calls.load(Ordering::SeqCst), 0);
}

/// Catches `broken!("mounts_are_nodes")`.
#[test]
fn who_knows_the_secret_for_mounts_makes_no_call_of_nodes() {
    let (server, echo) = start();
    let address = server.address().to_string();
    let call = |secret: &Secret| {
        let context = CallContext::default();
        let remove = TargetRemove { target: TargetId(1) };
        Peer::new(&address, secret).call(context, &remove, &[], &mut [], T).unwrap_err()
    };
    assert_eq!(call(&secret(1).for_mounts()), Status::PERM);
    assert_eq!(echo.calls.load(Ordering::SeqCst), 0);
    assert_eq!(call(&secret(1)), Status::NOTSUP, "the service was asked");
    let mount = Peer::new(&address, &secret(1).for_mounts());
    mount.call(CallContext::default(), &write(), b"x", &mut [], T).unwrap();
}

/// A stranger has the address of a server that is down, and passes on what it hears to another one.
#[test]
fn a_relay_learns_nothing_and_is_nobody() {
    let (server, echo) = start();
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = relay.local_addr().unwrap().to_string();
    let passes_on = std::thread::spawn(move || {
        let (mut client, _) = relay.accept().unwrap();
        let mut server = TcpStream::connect(server.address()).unwrap();
        for bytes in [48, 32] {
            let mut message = vec![0; bytes];
            client.read_exact(&mut message).unwrap();
            server.write_all(&message).unwrap();
            let mut answer = vec![0; bytes];
            server.read_exact(&mut answer).unwrap();
            client.write_all(&answer).unwrap();
        }
    });
    let refused = Peer::new(&address, &secret(1)).probe();
    assert!(matches!(refused, Err(HandshakeError::Secret)), "{refused:?}");
    passes_on.join().unwrap();
    assert_eq!(echo.calls.load(Ordering::SeqCst), 0);
}

#[test]
fn garbage_closes_the_connection_and_hurts_nobody() {
    use std::io::{Read, Write};
    let (server, echo) = start();
    let mut raw = TcpStream::connect(server.address()).unwrap();
    raw.write_all(&[0x5a; 200]).unwrap();
    raw.set_read_timeout(Some(T)).unwrap();
    let mut sink = Vec::new();
    let _ = raw.read_to_end(&mut sink);
    assert!(sink.is_empty());
    let peer = Peer::new(&server.address().to_string(), &secret(1));
    peer.call(CallContext::default(), &write(), b"x", &mut [], T).unwrap();
    assert_eq!(echo.calls.load(Ordering::SeqCst), 1);
}

/// Whoever says nothing makes room for others, and nobody waits for it.
#[test]
fn many_who_prove_nothing_keep_nobody_out() {
    let (server, echo) = start();
    let connect = |_| TcpStream::connect(server.address()).unwrap();
    let mut idle: Vec<TcpStream> = (0..400).map(connect).collect();
    let peer = Peer::new(&server.address().to_string(), &secret(1));
    peer.call(CallContext::default(), &write(), b"x", &mut [], T).unwrap();
    assert_eq!(echo.calls.load(Ordering::SeqCst), 1);
    idle[0].set_read_timeout(Some(T)).unwrap();
    let told = idle[0].read(&mut [0; 8]);
    assert!(!matches!(&told, Ok(1..)), "{told:?}");
    let waited = told.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!waited, "the oldest is still there");
}

#[test]
fn a_restarted_server_is_found_again() {
    let (server, _) = start();
    let address = server.address();
    let peer = Peer::new(&address.to_string(), &secret(1));
    peer.call(CallContext::default(), &write(), b"x", &mut [], T).unwrap();
    drop(server);
    let listener = loop {
        match TcpListener::bind(address) {
            Ok(listener) => break listener,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let again = Arc::new(Echo::default());
    let _server = Server::start(listener, &secret(1), again.clone()).unwrap();
    let deadline = Deadline::after(T);
    peer.call_until(CallContext::default(), &write(), b"y", &mut [], deadline).unwrap();
    assert_eq!(again.calls.load(Ordering::SeqCst), 1);
}

const MIB: usize = 1 << 20;

fn read(offset: u32) -> DataRead {
    let (target, capability) = (TargetId(1), Capability::default());
    DataRead { target, key: key(), offset, len: MIB as u32, capability }
}

#[test]
fn bulk_of_one_machine_is_copied_once() {
    let (server, _) = start();
    let peer = Peer::new(&server.address().to_string(), &secret(1));
    let context = CallContext::default();
    peer.call(context, &write(), &[1; 100], &mut [], T).unwrap();
    let short = peer.carried();
    assert_eq!((short.path, short.bytes, short.copied), (Path::SingleCopy, 100, 200));
    let data = vec![7; MIB];
    peer.call(context, &write(), &data, &mut [], T).unwrap();
    peer.call(context, &read(0), &[], &mut vec![0; MIB], T).unwrap();
    let bulk = peer.carried();
    assert_eq!((bulk.bytes, bulk.copied), (100 + 2 * MIB as u64, 200 + 2 * MIB as u64));
}

/// Answers reads with what their offset says.
struct Filler;

impl Service for Filler {
    fn serve(&self, request: &Request<'_>) -> Reply {
        let call: DataRead = nuri_proto::codec::decode(request.args).unwrap();
        let mut buf = request.buffers.take();
        buf.fill(call.offset as u8);
        Reply { payload: Some(buf), ..Reply::of(Ok(())) }
    }
}

/// Catches `broken!("reply_let_go")`.
#[test]
fn replies_taken_from_memory_are_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, &secret(1), Arc::new(Filler)).unwrap();
    let address = server.address().to_string();
    std::thread::scope(|scope| {
        for own in 0..4 {
            let peer = Peer::new(&address, &secret(1));
            scope.spawn(move || {
                let mut into = vec![0; MIB];
                for round in 0..100 {
                    let fill = own * 50 + round % 50;
                    peer.call_into(CallContext::default(), &read(fill), &[], &mut into, T).unwrap();
                    assert!(into.iter().all(|byte| *byte == fill as u8));
                }
                assert_eq!(peer.carried().path, Path::SingleCopy);
            });
        }
    });
}

/// Who asks several servers waits for the slowest before it takes the others' replies.
#[test]
fn a_reply_may_be_taken_late() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, &secret(1), Arc::new(Filler)).unwrap();
    let peer = Peer::new(&server.address().to_string(), &secret(1));
    let context = CallContext::default();
    let late = peer.start(context, &read(1), &[], T).unwrap();
    let mut into = vec![0; MIB];
    std::thread::sleep(Duration::from_millis(1500));
    let others = [2, 3, 4, 5, 6].map(|fill| peer.start(context, &read(fill), &[], T).unwrap());
    for other in others {
        other.finish::<DataRead>(&mut into).unwrap();
    }
    late.finish::<DataRead>(&mut into).unwrap();
    assert!(into.iter().all(|byte| *byte == 1));
}

/// Who sends ahead has other data there by the time of the reply.
#[test]
fn a_payload_that_is_not_lent_may_change_at_once() {
    let (server, echo) = start();
    let mut conn = Conn::connect(&server.address().to_string(), &secret(1)).unwrap();
    let mut data = vec![0; MIB];
    for round in 0..50 {
        data.fill(round);
        let pending = conn.send(CallContext::default(), &write(), &data, T).unwrap();
        data.fill(!round);
        conn.receive::<DataWrite>(pending, &mut []).unwrap().unwrap();
        assert!(echo.bytes.lock().iter().all(|byte| *byte == round), "round {round}");
    }
}

/// Who gives a call up may use its payload's memory again: what is taken then is no payload.
#[test]
fn a_payload_that_changed_under_way_is_refused() {
    let (server, echo) = start();
    let address = server.address().to_string();
    for round in 0..100u32 {
        let mut conn = Conn::connect(&address, &secret(1)).unwrap();
        let mut data = vec![1; MIB];
        let pending = conn.lend(CallContext::default(), &write(), &data, T).unwrap();
        // Earlier in some rounds, later in others.
        (0..round * 200).for_each(|_| std::hint::spin_loop());
        data.fill(2);
        let outcome = conn.receive::<DataWrite>(pending, &mut []);
        let seen = echo.bytes.lock().clone();
        match outcome {
            Ok(done) => {
                done.unwrap();
                assert!(seen == vec![1; MIB] || seen == vec![2; MIB], "round {round}");
            }
            Err(_) => assert!(!seen.contains(&2) || !seen.contains(&1), "round {round}"),
        }
    }
}

/// Catches `broken!("proof_used_twice")`.
#[test]
fn a_proof_is_good_for_one_try() {
    let (server, _) = start();
    let mut conn = Conn::connect(&server.address().to_string(), &secret(1)).unwrap();
    let pending = conn.send(CallContext::default(), &PeerMemoryAsk {}, &[], T).unwrap();
    let shown = conn.receive::<PeerMemoryAsk>(pending, &mut []).unwrap().unwrap().0.proof;
    for (round, reads) in [true, false].into_iter().enumerate() {
        let address = shown.as_ptr() as u64;
        let prove = PeerMemoryProof { address, proof: [0; 16] };
        let pending = conn.send(CallContext::default(), &prove, &[], T).unwrap();
        let proved = conn.receive::<PeerMemoryProof>(pending, &mut []).unwrap().unwrap().0;
        assert_eq!(proved.reads, reads, "try {round}");
    }
}

#[test]
fn who_proved_nothing_is_not_read() {
    let (server, echo) = start();
    let mut conn = Conn::connect(&server.address().to_string(), &secret(1)).unwrap();
    // Ends what was proved, as a process would that is not this one.
    let prove = PeerMemoryProof { address: 8, proof: [0; 16] };
    let pending = conn.send(CallContext::default(), &prove, &[], T).unwrap();
    assert!(!conn.receive::<PeerMemoryProof>(pending, &mut []).unwrap().unwrap().0.reads);
    let data = vec![7; MIB];
    let pending = conn.lend(CallContext::default(), &write(), &data, T).unwrap();
    assert!(conn.receive::<DataWrite>(pending, &mut []).is_err());
    assert_eq!(echo.calls.load(Ordering::SeqCst), 0);
}
