//! The server with clients that behave, and such that do not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use super::*;

/// Answers with what it was asked, after as many milliseconds as the first byte says. `Z` ends the
/// connection, `S` is not answered.
struct Echo;

impl Service for Echo {
    fn answer(&self, message: &[u8], _peer: &Peer, buffer: Vec<u8>) -> Answer {
        match message {
            [b'Z', ..] => Answer::Close,
            [b'S', ..] => Answer::Silence,
            [wait, ..] => {
                std::thread::sleep(Duration::from_millis((*wait).into()));
                Answer::Reply(reply(message, buffer))
            }
            [] => Answer::Reply(reply(message, buffer)),
        }
    }
}

fn reply(message: &[u8], buffer: Vec<u8>) -> Writer {
    let mut out = Writer::over(buffer);
    out.number(message.len() as u32 | 1 << 31);
    out.fixed(message);
    out.truncate(4 + message.len());
    out
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mark = message.len() as u32 | 1 << 31;
    [&mark.to_be_bytes()[..], message].concat()
}

fn server(limits: Limits) -> (Arc<Server>, SocketAddr) {
    let server = Server::start(Arc::new(Echo), limits).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    server.listen(listener).unwrap();
    (server, address)
}

const LIMITS: Limits = Limits { connections: 64, threads: 4, message: 1 << 20, held: 8 << 20 };

fn receive(socket: &mut TcpStream) -> Option<Vec<u8>> {
    let mut mark = [0; 4];
    socket.read_exact(&mut mark).ok()?;
    let mut message = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    socket.read_exact(&mut message).ok()?;
    Some(message)
}

#[test]
fn calls_of_one_client_pass_each_other() {
    let (server, address) = server(LIMITS);
    let mut client = TcpStream::connect(address).unwrap();
    let sent = [framed(&[200, 1]), framed(&[0, 2]), framed(&[0, 3])].concat();
    client.write_all(&sent).unwrap();
    let mut order: Vec<u8> = (0..3).map(|_| receive(&mut client).unwrap()[1]).collect();
    assert_eq!(order.pop(), Some(1), "the slow one is last");
    order.sort_unstable();
    assert_eq!(order, [2, 3]);
    server.stop();
    assert_eq!(receive(&mut client), None);
}

#[test]
fn many_calls_in_a_row_and_large_ones_are_answered() {
    let (server, address) = server(LIMITS);
    let mut client = TcpStream::connect(address).unwrap();
    let mut reader = client.try_clone().unwrap();
    let large = vec![0; 300_000];
    let total = 200;
    let answers = std::thread::spawn(move || {
        (0..total).map(|_| receive(&mut reader).unwrap().len()).sum::<usize>()
    });
    for _ in 0..total {
        client.write_all(&framed(&large)).unwrap();
    }
    assert_eq!(answers.join().unwrap(), total * large.len());
    server.stop();
}

#[test]
fn those_who_send_half_a_call_or_nothing_stop_nobody() {
    let (server, address) = server(Limits { connections: 40, ..LIMITS });
    let mut idle: Vec<TcpStream> = (0..38).map(|_| TcpStream::connect(address).unwrap()).collect();
    for half in &mut idle[..20] {
        half.write_all(&framed(&[0; 1000])[..500]).unwrap();
    }
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(&framed(&[0, 1])).unwrap();
    assert_eq!(receive(&mut client), Some(vec![0, 1]));
    idle[0].write_all(&framed(&[0; 1000])[500..]).unwrap();
    assert_eq!(receive(&mut idle[0]).unwrap().len(), 1000);
    // Who comes when there are too many is let go.
    let _last = TcpStream::connect(address).unwrap();
    let mut beyond = TcpStream::connect(address).unwrap();
    assert_eq!(receive(&mut beyond), None);
    server.stop();
}

#[test]
fn who_takes_no_answers_gets_no_more_and_is_left_when_too_much_is_held() {
    // Of one answer the kernel may take all but a few bytes: any that are held are too many here.
    let (server, address) = server(Limits { held: 0, ..LIMITS });
    let mut greedy = TcpStream::connect(address).unwrap();
    greedy.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let call = framed(&vec![0; 1 << 20]);
    let start = Instant::now();
    // It sends as long as it is read from, and reads nothing.
    while greedy.write_all(&call).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(20), "it is held for ever");
    }
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(&framed(&[0, 1])).unwrap();
    assert_eq!(receive(&mut client), Some(vec![0, 1]));
    server.stop();
}

#[test]
fn messages_that_are_too_long_end_the_connection() {
    let (server, address) = server(LIMITS);
    for bad in [framed(b"Z"), (1u32 << 31 | 2 << 20).to_be_bytes().to_vec()] {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(&bad).unwrap();
        assert_eq!(receive(&mut client), None);
    }
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(&[framed(b"S"), framed(&[])].concat()).unwrap();
    assert_eq!(receive(&mut client), Some(vec![]), "the one before was not answered");
    server.stop();
}
