//! How a run is asked to end early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the run is to end early.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
