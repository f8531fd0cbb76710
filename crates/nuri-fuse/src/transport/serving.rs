//! The threads that serve a mount, counted: serving ends with the last one.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Counts the threads that serve a mount.
#[derive(Clone, Default)]
pub(crate) struct Serving(Arc<(Mutex<usize>, Condvar)>);

/// One serving thread; ends with the value.
pub(crate) struct Part(Serving);

impl Serving {
    pub(crate) fn enter(&self) -> Part {
        *self.0.0.lock() += 1;
        Part(self.clone())
    }

    pub(crate) fn wait_for_the_last(&self) {
        let mut count = self.0.0.lock();
        while *count > 0 {
            self.0.1.wait(&mut count);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        *self.0.0.0.lock() -= 1;
        self.0.0.1.notify_all();
    }
}
