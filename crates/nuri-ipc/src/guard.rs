//! How the state of an endpoint is guarded: by a lock, or because it belongs to one thread.

use std::cell::RefCell;
use std::sync::Mutex;

use crate::engine::Engine;

/// For many threads.
pub struct ManyThreads(Mutex<Engine>);

impl ManyThreads {
    pub(crate) fn new(engine: Engine) -> Self {
        Self(Mutex::new(engine))
    }
}

impl Guard for ManyThreads {
    const SHARED: bool = true;
    #[inline]
    fn with<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> R {
        // A panic in the engine may leave buffers in it whose owner is gone: nobody may go on.
        work(&mut self.0.lock().expect("a thread panicked inside the endpoint"))
    }
}

/// For one thread at a time.
pub struct OneThread(RefCell<Engine>);

impl OneThread {
    pub(crate) fn new(engine: Engine) -> Self {
        Self(RefCell::new(engine))
    }
}

impl Guard for OneThread {
    const SHARED: bool = false;
    #[inline]
    fn with<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> R {
        work(&mut self.0.borrow_mut())
    }
}

/// Lets one caller at a time at the state. Nobody else implements it: the module is private.
pub trait Guard {
    /// Whether other threads may sleep for what this one moves.
    const SHARED: bool;
    /// Does some work on it.
    fn with<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> R;
}
