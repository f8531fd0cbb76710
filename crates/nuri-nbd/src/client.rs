//! A client of this server, as the requests of the client see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::input::LOOK;
use crate::socket::Socket;
use crate::unanswered::Unanswered;

/// Who is on the other side of a connection.
pub struct Client {
    socket: Arc<Socket>,
    /// Nothing more is done for it.
    is_leaving: AtomicBool,
    unanswered: Mutex<Unanswered>,
    answered: Condvar,
}

impl Client {
    pub(crate) fn new(socket: Arc<Socket>) -> Client {
        let (unanswered, answered) = (Mutex::default(), Condvar::new());
        Client { socket, is_leaving: AtomicBool::new(false), unanswered, answered }
    }

    /// Whether it left, or is being left: it may have repeated its requests elsewhere, or will.
    pub(crate) fn is_left(&self) -> bool {
        self.is_leaving.load(Ordering::SeqCst) || self.socket.is_left()
    }

    /// A request of it is about to be sent to an owner; its number. `None`: it must not be, the
    /// client is being left.
    pub(crate) fn send(&self, deadline: Instant) -> Option<u64> {
        let mut unanswered = self.unanswered.lock();
        (!self.is_leaving.load(Ordering::SeqCst)).then(|| unanswered.sent(deadline, Instant::now()))
    }

    pub(crate) fn answered(&self, number: u64) {
        self.unanswered.lock().answered(number);
        self.answered.notify_all();
    }

    /// From here on nothing of it is sent to an owner.
    pub(crate) fn stop_sending(&self) {
        let _unanswered = self.unanswered.lock();
        self.is_leaving.store(true, Ordering::SeqCst);
    }

    /// Closes its connection, as soon as nothing of it can be served by an owner.
    pub(crate) fn leave(&self) {
        self.stop_sending();
        let mut unanswered = self.unanswered.lock();
        // One that left by itself does not wait for that.
        while let Some(until) = unanswered.until(Instant::now())
            && !self.socket.is_left()
        {
            self.answered.wait_until(&mut unanswered, until.min(Instant::now() + LOOK));
        }
        drop(unanswered);
        self.socket.shut();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_connection_is_open_while_something_of_its_client_may_be_served_elsewhere() {
        let (own, mut peer) = UnixStream::pair().unwrap();
        let client = Client::new(Arc::new(Socket::from(own)));
        let start = Instant::now();
        let [answered, _lost] =
            [3000, 200].map(|millis| client.send(start + Duration::from_millis(millis)).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| client.leave());
            while !client.is_left() {
                std::thread::yield_now();
            }
            assert_eq!(client.send(start + Duration::from_secs(9)), None, "it is being left");
            client.answered(answered);
            assert_eq!(peer.read(&mut [0]).unwrap(), 0);
            assert!(start.elapsed() >= Duration::from_millis(200));
        });
        assert!(start.elapsed() < Duration::from_millis(2900));
    }

    #[test]
    fn a_client_that_left_by_itself_is_not_waited_for() {
        let (own, peer) = UnixStream::pair().unwrap();
        let client = Client::new(Arc::new(Socket::from(own)));
        let start = Instant::now();
        client.send(start + Duration::from_secs(60)).unwrap();
        drop(peer);
        client.leave();
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
