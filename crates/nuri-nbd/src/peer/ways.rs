//! The way of a device's requests: which link they take, and how a new one is found when one is
//! lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::dial::{DialError, Speaks, dial};
use super::link::{Link, Lost};
use super::token::{Entry, Token};
use crate::export::{Asked, Export};
use crate::protocol::Errno;

/// How often a way is looked for.
const AGAIN: Duration = Duration::from_millis(200);

/// One who forwards, as it shows itself at doors.
pub struct Forwarder {
    number: u64,
    attempts: AtomicU64,
}

impl Default for Forwarder {
    fn default() -> Forwarder {
        let number = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        Forwarder { number, attempts: AtomicU64::new(0) }
    }
}

/// Why a forwarder has no link.
#[derive(Debug, thiserror::Error)]
pub enum NoLink {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl Forwarder {
    /// Connects to the door at the address.
    ///
    /// # Errors
    /// Why there is no link.
    pub fn link(&self, address: &str, token: Token) -> Result<Arc<Link>, NoLink> {
        // Higher than all before, also where the last one found nobody.
        let attempt = self.attempts.fetch_add(1, Ordering::SeqCst);
        let entry = Entry { token, forwarder: self.number, attempt };
        let dialed = dial(address, &entry.to_string(), Speaks::AsForwarder)?;
        Ok(Link::start(dialed)?)
    }
}

#[derive(Clone)]
struct Way {
    /// Counts the ways.
    number: u64,
    export: Arc<dyn Export>,
}

/// The way that is known. Requests that have no answer when it is lost wait until another one is
/// found, and go there; those that become too old are not answered.
#[derive(Default)]
pub struct Ways {
    known: Mutex<Option<Way>>,
    count: AtomicU64,
    /// Held by who looks for one.
    seeking: Mutex<()>,
}

/// Why there is no way.
#[derive(Debug)]
pub enum NoWay<E> {
    /// Nobody was found in time.
    Late,
    Failed(E),
}

impl Ways {
    /// Looks for a way until the deadline, one thread at a time, with `find`.
    ///
    /// # Errors
    /// That of `find`, or that it found none in time.
    pub fn seek<E>(
        &self,
        deadline: Instant,
        find: impl Fn() -> Result<Option<Arc<dyn Export>>, E>,
    ) -> Result<(), NoWay<E>> {
        self.way(deadline, find).map(drop)
    }

    fn way<E>(
        &self,
        deadline: Instant,
        find: impl Fn() -> Result<Option<Arc<dyn Export>>, E>,
    ) -> Result<Way, NoWay<E>> {
        let known = self.known.lock().clone();
        if let Some(way) = known {
            return Ok(way);
        }
        let _one = self.seeking.try_lock_until(deadline).ok_or(NoWay::Late)?;
        loop {
            let known = self.known.lock().clone();
            if let Some(way) = known {
                return Ok(way);
            }
            if let Some(export) = find().map_err(NoWay::Failed)? {
                let way = Way { number: self.count.fetch_add(1, Ordering::SeqCst), export };
                *self.known.lock() = Some(way.clone());
                return Ok(way);
            }
            if Instant::now() + AGAIN >= deadline {
                return Err(NoWay::Late);
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Does something by whichever way there is, again where the way was lost.
    ///
    /// # Errors
    /// Those of `act`; that of `find`; `Shutdown` where it took too long.
    pub fn by_way<T>(
        &self,
        asked: Asked<'_>,
        find: impl Fn() -> Result<Option<Arc<dyn Export>>, Errno>,
        mut act: impl FnMut(&dyn Export) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            let way = self.way(asked.deadline, &find).map_err(|none| match none {
                NoWay::Late => Errno::Shutdown,
                NoWay::Failed(errno) => errno,
            })?;
            // It may have taken long to find one.
            if asked.is_too_old() || asked.is_left() {
                return Err(Errno::Shutdown);
            }
            match act(&*way.export) {
                // It was not sent: that says nothing about the way.
                Err(Errno::Shutdown) if asked.is_left() => return Err(Errno::Shutdown),
                Err(Errno::Shutdown) => self.lose_if(|known| known.number == way.number),
                outcome => return outcome,
            }
        }
    }

    /// Something is asked of the way that is known.
    pub fn known(&self) -> Option<Arc<dyn Export>> {
        self.known.lock().as_ref().map(|way| way.export.clone())
    }

    /// The way is not good any more.
    pub fn lose_where(&self, is_bad: impl Fn(&dyn Export) -> bool) {
        self.lose_if(|known| is_bad(&*known.export));
    }

    fn lose_if(&self, is_bad: impl Fn(&Way) -> bool) {
        let mut known = self.known.lock();
        if known.as_ref().is_some_and(is_bad) {
            *known = None;
        }
    }
}
