//! Threads for work that may block and must start at once: recalls, and calls into the kernel.
//!
//! An idle thread stays for a while, because making a thread costs as much as a call to the server.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long a thread waits for more.
const STAY: Duration = Duration::from_secs(2);

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    todo: VecDeque<Work>,
    /// Threads that wait for work.
    idle: usize,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    more: Condvar,
}

/// As many threads as there is work at a time.
#[derive(Clone, Default)]
pub(crate) struct ThreadPool(Arc<Inner>);

impl ThreadPool {
    /// Begins the work at once, in another thread.
    ///
    /// # Errors
    /// No thread waits and none could be made: the work is not done.
    pub(crate) fn start(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = self.0.state.lock();
        if state.idle > state.todo.len() {
            state.todo.push_back(Box::new(work));
            self.0.more.notify_one();
            return Ok(());
        }
        drop(state);
        let inner = self.0.clone();
        let body = move || {
            work();
            inner.work_on();
        };
        std::thread::Builder::new().name("crew".into()).spawn(body).map(drop)
    }
}

impl Inner {
    fn work_on(&self) {
        let mut state = self.state.lock();
        loop {
            state.idle += 1;
            while state.todo.is_empty() {
                // Who is late is not missed: `start` counts the idle ones under the lock.
                if self.more.wait_for(&mut state, STAY).timed_out() && state.todo.is_empty() {
                    state.idle -= 1;
                    return;
                }
            }
            state.idle -= 1;
            let Some(work) = state.todo.pop_front() else { continue };
            drop(state);
            work();
            state = self.state.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;
    use std::thread::{ThreadId, current};

    use super::*;

    #[test]
    fn all_begin_at_once_and_threads_are_used_again() {
        let crew = ThreadPool::default();
        let (told, hear) = channel();
        let round = |n: usize| -> HashSet<ThreadId> {
            // Nobody gets past before all have begun.
            let together = Arc::new(Barrier::new(n));
            for _ in 0..n {
                let (told, together) = (told.clone(), together.clone());
                crew.start(move || {
                    together.wait();
                    told.send(current().id()).unwrap();
                })
                .unwrap();
            }
            (0..n).map(|_| hear.recv().unwrap()).collect()
        };
        let idle = |n: usize| {
            while crew.0.state.lock().idle < n {
                std::thread::yield_now();
            }
        };
        let first = round(20);
        assert_eq!(first.len(), 20);
        idle(20);
        assert_eq!(round(20), first, "the same threads");
        idle(20);
        assert_eq!(round(30).intersection(&first).count(), 20);
    }
}
