//! A link to a server in this process.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::*;
use crate::age::AGE;
use crate::export::{About, Asked, Export, Exports, Extent, Kept, Refusal, Zeroing};
use crate::order::Order;
use crate::protocol::request::Request;
use crate::protocol::{Errno, command, reply};
use crate::server::{Limits, Listener, Server};

pub(crate) const SIZE: usize = 4 << 20;

/// A device in memory. Writes of the byte 0 take half a second, those of 255 fail.
#[derive(Default)]
pub(crate) struct Memory {
    bytes: Mutex<Vec<u8>>,
    order: Order,
    clock: ServerClock,
}

impl Export for Memory {
    fn about(&self) -> About {
        About {
            name: "memory".into(),
            description: String::new(),
            size: SIZE as u64,
            read_only: false,
            block: 1,
            preferred_block: 4096,
        }
    }
    fn order(&self) -> &Order {
        &self.order
    }
    fn read(&self, _: Asked<'_>, at: u64, out: &mut [u8]) -> Result<(), Errno> {
        out.copy_from_slice(&self.bytes.lock()[at as usize..][..out.len()]);
        Ok(())
    }
    fn write(&self, asked: Asked<'_>, at: u64, data: &[u8], _: Kept) -> Result<(), Errno> {
        if Until::of_cookie(asked.cookie).is_over(self.clock.stamp()) {
            return Err(Errno::Shutdown);
        }
        match data[0] {
            0 => std::thread::sleep(Duration::from_millis(500)),
            255 => return Err(Errno::NoSpace),
            _ => {}
        }
        self.bytes.lock()[at as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn flush(&self, _: Asked<'_>) -> Result<(), Errno> {
        Ok(())
    }
    fn trim(&self, _: Asked<'_>, _: u64, _: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn write_zeroes(&self, _: Asked<'_>, _: u64, _: u64, _: Zeroing) -> Result<(), Errno> {
        Err(Errno::NotSupported)
    }
    fn extents(&self, _: Asked<'_>, _: u64, len: u32, _: usize) -> Result<Vec<Extent>, Errno> {
        Ok(vec![Extent { len: 512, is_hole: true }, Extent { len: len - 512, is_hole: false }])
    }
    fn stamp(&self) -> Option<u32> {
        Some(self.clock.stamp())
    }
}

pub(crate) struct One(pub(crate) Arc<Memory>);

impl Exports for One {
    fn names(&self) -> Result<Vec<String>, Refusal> {
        Ok(vec!["memory".into()])
    }
    fn about(&self, name: &str) -> Result<About, Refusal> {
        match name {
            "memory" => Ok(self.0.about()),
            name => Err(Refusal::Unknown { name: name.into(), there: self.names()? }),
        }
    }
    fn open(&self, name: &str) -> Result<Arc<dyn Export>, Refusal> {
        self.about(name).map(|_| self.0.clone() as Arc<dyn Export>)
    }
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory { bytes: Mutex::new(vec![0; SIZE]), ..Memory::default() }
    }
}

/// Listens at a port of its own.
pub(crate) fn listen(exports: Arc<dyn Exports>) -> (Arc<Server>, String) {
    let server = Server::new(exports, Limits::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    server.listen(Listener::Tcp(listener)).unwrap();
    (server, address)
}

fn serve() -> (Arc<Server>, String) {
    listen(Arc::new(One(Arc::new(Memory::new()))))
}

fn ask(link: &Link, command: u16, (offset, len): (u64, u32), data: &[u8]) -> Answer {
    let request = Request { flags: 0, command, cookie: 0, offset, len };
    link.call(link.until(Instant::now() + AGE), request, data).unwrap()
}

#[test]
fn requests_and_errors_cross_a_link() {
    let (server, address) = serve();
    let wrong = dial(&address, "none", Speaks::AsForwarder).err().unwrap();
    assert!(
        matches!(&wrong, DialError::Refused(why) if why.contains("there are memory")),
        "{wrong}"
    );
    let dialed = dial(&address, "memory", Speaks::AsForwarder).unwrap();
    let link = Link::start(dialed).unwrap();
    assert_eq!(link.size, SIZE as u64);
    let data: Vec<u8> = (0..1 << 20).map(|i| (i % 251 + 1) as u8).collect();
    assert_eq!(ask(&link, command::WRITE, (4096, 1 << 20), &data), Ok(Vec::new()));
    assert_eq!(ask(&link, command::READ, (4096, 1 << 20), &[]), Ok(data));
    assert_eq!(ask(&link, command::WRITE, (0, 1), &[255]), Err(Errno::NoSpace));
    assert_eq!(ask(&link, command::READ, (SIZE as u64, 1), &[]), Err(Errno::Invalid));
    assert_eq!(ask(&link, command::WRITE_ZEROES, (0, 1), &[]), Err(Errno::NotSupported));
    assert_eq!(ask(&link, command::FLUSH, (0, 0), &[]), Ok(Vec::new()));
    let extents = ask(&link, command::BLOCK_STATUS, (0, 4096), &[]).unwrap();
    let found = [Extent { len: 512, is_hole: true }, Extent { len: 3584, is_hole: false }];
    assert_eq!(reply::extents(&extents), found);
    server.stop();
    let request = Request { flags: 0, command: command::FLUSH, cookie: 0, offset: 0, len: 0 };
    assert_eq!(link.call(link.until(Instant::now() + AGE), request, &[]), Err(Lost));
}

#[test]
fn answers_find_those_who_asked_and_late_requests_end_the_link() {
    let (_server, address) = serve();
    let link = Link::start(dial(&address, "memory", Speaks::AsForwarder).unwrap()).unwrap();
    std::thread::scope(|scope| {
        for who in 1..9u8 {
            let link = &link;
            scope.spawn(move || {
                for round in 0..200u64 {
                    let at = u64::from(who) * 4096 + round;
                    let value = if round == 100 { 0 } else { who };
                    assert_eq!(ask(link, command::WRITE, (at, 1), &[value]), Ok(Vec::new()));
                    assert_eq!(ask(link, command::READ, (at, 1), &[]), Ok(vec![value]));
                }
            });
        }
    });
    let request = Request { flags: 0, command: command::WRITE, cookie: 0, offset: 0, len: 1 };
    let old = link.until(Instant::now() - Duration::from_secs(1));
    assert_eq!(link.call(old, request, &[7]), Err(Lost), "its channel is closed");
}
