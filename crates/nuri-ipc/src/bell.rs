//! Waiting that costs no processor time, and waking that costs one load.
//!
//! Each endpoint has one bell, a page that its peers share. A thread that is about to sleep arms
//! the bell, looks once more for work, and sleeps on the bell. A thread that published something
//! looks whether the bell is armed, and calls the kernel only then. A fence would be due between
//! publishing and that look. It waits until the message's cache line has come over, which is the
//! most expensive part of a short message. So the sleeper has the kernel fence all other threads
//! (`membarrier`), as long as both processes have signed up for that. Otherwise the thread that
//! wakes does the fence. A peer that overwrites the page delays wake-ups, and no more: no thread
//! sleeps longer than [`NAP`] without a look.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{compiler_fence, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::thread::{MembarrierCommand, futex, membarrier};

use crate::error::Result;
use crate::region::{PAGE, Region, Share};

/// Longest sleep without a look.
pub(crate) const NAP: Duration = Duration::from_millis(100);

/// Longer than it takes to wake a thread on another core.
const SPIN: Duration = Duration::from_micros(20);
/// Looks before the time is asked, and before the core is given away on a shared one.
pub(crate) const LOOKS: u32 = 50;
/// Looks on a shared core before sleeping.
const YIELDS: u32 = 1000;

const ARMED: usize = 0;
/// In a line of its own: it changes rarely and is read by wakers of nobody.
const CPU: usize = 64;
const NOWHERE: u32 = u32::MAX;

/// Where somebody sleeps.
#[derive(Clone, Debug)]
pub(crate) struct Bell {
    region: Arc<Region>,
    /// Its owner fences us before it sleeps.
    fenced: bool,
}

/// Signs this process up to be fenced by those that go to sleep; says whether the kernel does that.
pub(crate) fn sign_up() -> bool {
    static DONE: OnceLock<bool> = OnceLock::new();
    let register = || membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
    let works = || membarrier(MembarrierCommand::GlobalExpedited).is_ok();
    *DONE.get_or_init(|| register() && works())
}

impl Bell {
    /// Our own, and the descriptor for peers.
    pub(crate) fn create() -> Result<(OwnedFd, Self)> {
        let (fd, region) = Region::create(PAGE, Share::Writable)?;
        region.half(CPU).store(NOWHERE, Relaxed);
        Ok((fd, Self { region: Arc::new(region), fenced: sign_up() }))
    }

    /// A peer's; `promised` says that it fences others before it sleeps.
    pub(crate) fn open(fd: impl AsFd, promised: bool) -> Result<Self> {
        let region = Arc::new(Region::open(fd, PAGE, Share::Writable)?);
        Ok(Self { region, fenced: promised && sign_up() })
    }

    /// Wakes whoever sleeps; to be called after something was published.
    #[inline]
    pub(crate) fn ring(&self) {
        if self.fenced {
            compiler_fence(SeqCst);
        } else {
            fence(SeqCst);
        }
        if self.region.half(ARMED).load(Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.region.half(ARMED).swap(0, SeqCst) != 0 {
            let _ = futex::wake(self.region.half(ARMED), futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Says that somebody is about to sleep, who then must look once more.
    pub(crate) fn arm(&self) {
        self.region.half(ARMED).store(1, SeqCst);
        fence(SeqCst);
        if sign_up() {
            let _ = membarrier(MembarrierCommand::GlobalExpedited);
        }
    }

    /// Takes that back; only for an owner with one thread.
    pub(crate) fn disarm(&self) {
        self.region.half(ARMED).store(0, Relaxed);
    }

    /// Sleeps until the bell rings, or this long.
    pub(crate) fn sleep(&self, longest: Duration) {
        let Ok(longest) = longest.try_into() else { return };
        let _ = futex::wait(self.region.half(ARMED), futex::Flags::empty(), 1, Some(&longest));
    }

    /// Says on which core the owner runs.
    pub(crate) fn here(&self) -> u32 {
        let cpu = rustix::thread::sched_getcpu() as u32;
        if self.region.half(CPU).load(Relaxed) != cpu {
            self.region.half(CPU).store(cpu, Relaxed);
        }
        cpu
    }

    /// Where the owner was seen last.
    pub(crate) fn cpu(&self) -> u32 {
        self.region.half(CPU).load(Relaxed)
    }
}

/// What to do after a look that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Look again.
    Look,
    /// Arm, look again, sleep.
    Sleep,
}

/// How long somebody has been waiting in vain.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    looks: u32,
    since: Option<Instant>,
    crowded: bool,
}

/// Looks between two questions whether the core is still shared.
const ASK: u32 = 64;

impl Patience {
    /// Begins anew. On a core that was shared a moment ago the first look in vain gives it away.
    pub(crate) fn renew(&mut self) {
        *self = Self { looks: 0, since: None, crowded: self.crowded };
    }

    /// Whether a peer shared this core when it was asked last.
    pub(crate) fn crowded(&self) -> bool {
        self.crowded
    }

    /// A wait after another one that said this.
    pub(crate) fn after(crowded: bool) -> Self {
        Self { crowded, ..Self::default() }
    }

    /// After a look that found nothing. `crowded` says whether a peer shares this core.
    #[inline]
    pub(crate) fn lose(&mut self, crowded: impl FnOnce() -> bool) -> Next {
        self.looks += 1;
        if self.looks < LOOKS && !self.crowded {
            std::hint::spin_loop();
            return Next::Look;
        }
        self.wait_longer(crowded)
    }

    #[cold]
    fn wait_longer(&mut self, crowded: impl FnOnce() -> bool) -> Next {
        if self.since.is_none() || self.looks.is_multiple_of(ASK) {
            self.crowded = crowded();
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.crowded {
            rustix::thread::sched_yield();
            return if self.looks > YIELDS { Next::Sleep } else { Next::Look };
        }
        std::hint::spin_loop();
        let due = self.looks.is_multiple_of(16) && since.elapsed() > SPIN;
        if due { Next::Sleep } else { Next::Look }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_armed_bell_wakes_and_an_unarmed_one_costs_no_call() {
        let (fd, ours) = Bell::create().unwrap();
        let theirs = Bell::open(&fd, true).unwrap();
        ours.arm();
        let started = Instant::now();
        let waker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            theirs.ring();
        });
        ours.sleep(Duration::from_secs(10));
        assert!(started.elapsed() < Duration::from_secs(5));
        waker.join().unwrap();
        ours.sleep(Duration::from_secs(10));
        assert!(started.elapsed() < Duration::from_secs(5), "an unarmed bell lets nobody sleep");
    }

    #[test]
    fn patience_is_bounded() {
        let mut patience = Patience::default();
        let started = Instant::now();
        while patience.lose(|| false) == Next::Look {}
        assert!(started.elapsed() >= SPIN);
        let mut patience = Patience::default();
        let looks = std::iter::repeat_with(|| patience.lose(|| true));
        assert_eq!(looks.take_while(|n| *n == Next::Look).count(), YIELDS as usize);
    }
}
