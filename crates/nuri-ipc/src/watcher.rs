//! The endpoint's one thread: it accepts links, notices deaths, and sleeps otherwise.
//!
//! The thread never touches the endpoint's own state. It leaves events on a desk, and rings the
//! endpoint's bell. The endpoint looks at the desk's flag whenever it looks at its rings.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::bell::Bell;
use crate::error::{Result, io, system};
use crate::link::{self, Incoming};
use crate::socket;
use crate::window::Windows;

/// Most connections that have not greeted yet.
const GREETING: usize = 64;

/// What happened.
pub(crate) enum Event {
    /// A peer set up a link to us.
    Joined(Box<Incoming>),
    /// The peer of this link is gone.
    Gone {
        /// Which link.
        link: u64,
    },
}

/// A link whose peer is to be watched.
pub(crate) struct Watched {
    pub(crate) link: u64,
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: Option<OwnedFd>,
}

/// What the thread is asked for.
enum Order {
    Watch(Watched),
    /// Let the peer of this link see its end.
    Cut(u64),
}

/// What thread and endpoint share.
pub(crate) struct Desk {
    news: AtomicBool,
    stop: AtomicBool,
    events: Mutex<Vec<Event>>,
    orders: Mutex<Vec<Order>>,
    next_link: Mutex<u64>,
    wake: OwnedFd,
    bell: Bell,
    bell_fd: OwnedFd,
    /// What peers may attach to.
    pub(crate) windows: Windows,
}

/// What a panicked thread left is complete: nothing here is changed in steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags).map_err(system("eventfd"))?;
        let (bell_fd, bell) = Bell::create()?;
        Ok(Self {
            news: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            events: Mutex::default(),
            orders: Mutex::default(),
            next_link: Mutex::new(0),
            wake,
            bell,
            bell_fd,
            windows: Windows::default(),
        })
    }

    /// The endpoint's bell.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Its descriptor, for peers.
    pub(crate) fn bell_fd(&self) -> &OwnedFd {
        &self.bell_fd
    }

    /// A number for a new link.
    pub(crate) fn number(&self) -> u64 {
        let mut next = lock(&self.next_link);
        *next += 1;
        *next
    }

    /// Whether anything happened since the last call of [`Desk::news`].
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Acquire)
    }

    /// What happened since the last call; costs a load when nothing did.
    #[inline]
    pub(crate) fn news(&self) -> Option<Vec<Event>> {
        self.news.load(Acquire).then(|| self.take())
    }

    #[cold]
    fn take(&self) -> Vec<Event> {
        let mut events = lock(&self.events);
        self.news.store(false, Release);
        std::mem::take(&mut events)
    }

    /// Watches a link that the endpoint made.
    pub(crate) fn watch(&self, watched: Watched) {
        lock(&self.orders).push(Order::Watch(watched));
        self.poke();
    }

    /// Cuts a link: its peer sees the end of it.
    pub(crate) fn cut(&self, link: u64) {
        lock(&self.orders).push(Order::Cut(link));
        self.poke();
    }

    fn tell(&self, event: Event) {
        let mut events = lock(&self.events);
        events.push(event);
        self.news.store(true, Release);
        drop(events);
        self.bell.ring();
    }

    fn poke(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// The thread; ends when dropped.
pub(crate) struct Watcher {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts it.
    pub(crate) fn start(listener: OwnedFd, size: u32) -> Result<Self> {
        let desk = Arc::new(Desk::new()?);
        let room =
            Room { desk: Arc::clone(&desk), listener, size, greeting: vec![], watched: vec![] };
        let builder = std::thread::Builder::new().name("nuri-ipc".into());
        let thread = builder.spawn(move || room.run()).map_err(io("thread"))?;
        Ok(Self { desk, thread: Some(thread) })
    }

    /// What it shares.
    pub(crate) fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.desk.stop.store(true, Release);
        self.desk.poke();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread's own state.
struct Room {
    desk: Arc<Desk>,
    listener: OwnedFd,
    size: u32,
    greeting: Vec<OwnedFd>,
    watched: Vec<Watched>,
}

impl Room {
    fn run(mut self) {
        while !self.desk.stop.load(Acquire) {
            let ready = self.wait();
            let is_ready = |fd: &OwnedFd| ready.contains(&fd.as_raw_fd());
            let gone = |w: &Watched| is_ready(&w.socket) || w.pidfd.as_ref().is_some_and(is_ready);
            let (ended, watched) = self.watched.drain(..).partition(gone);
            self.watched = watched;
            let (spoke, greeting) = self.greeting.drain(..).partition(is_ready);
            self.greeting = greeting;
            self.greet(spoke);
            for Watched { link, .. } in ended {
                self.desk.tell(Event::Gone { link });
            }
            if is_ready(&self.listener) {
                self.accept();
            }
            let _ = rustix::io::read(&self.desk.wake, &mut [0; 8]);
            self.obey();
        }
    }

    fn obey(&mut self) {
        let orders = std::mem::take(&mut *lock(&self.desk.orders));
        for order in orders {
            match order {
                Order::Watch(watched) => self.watched.push(watched),
                Order::Cut(link) => self.watched.retain(|watched| watched.link != link),
            }
        }
    }

    /// Sleeps until a descriptor is ready. A peer says nothing after its greeting: whatever is
    /// ready about its socket means that it is gone.
    fn wait(&self) -> Vec<RawFd> {
        let flags = PollFlags::IN | PollFlags::RDHUP;
        let watched = self.watched.iter().flat_map(|w| w.pidfd.iter().chain([&w.socket]));
        let fds =
            [&self.listener, &self.desk.wake].into_iter().chain(&self.greeting).chain(watched);
        let mut polled: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, flags)).collect();
        if rustix::event::poll(&mut polled, None).is_err() {
            return Vec::new();
        }
        let ready = polled.iter().filter(|p| !p.revents().is_empty());
        ready.map(|p| p.as_fd().as_raw_fd()).collect()
    }

    fn accept(&mut self) {
        if self.greeting.len() == GREETING {
            self.greeting.remove(0);
        }
        self.greeting.extend(socket::accept(&self.listener));
    }

    fn greet(&mut self, spoke: Vec<OwnedFd>) {
        for socket in spoke {
            let Some(packet) = socket::receive(&socket) else { continue };
            let bell = self.desk.bell_fd().as_fd();
            if self.desk.windows.answer(&socket, &packet.0, bell) {
                continue;
            }
            let id = self.desk.number();
            if let Some((link, pidfd)) = link::take(&socket, &packet, id, self.size, bell) {
                self.desk.tell(Event::Joined(Box::new(link)));
                self.watched.push(Watched { link: id, socket, pidfd });
            }
        }
    }
}
