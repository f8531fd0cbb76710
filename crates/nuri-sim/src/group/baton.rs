//! The baton: actors are real threads that run blocking code, and exactly one of them, or the
//! world, runs at a time. An actor that needs something from outside hands the baton to the world.
//! It waits until the world gives the baton back with the answer.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::id::{SessionId, TargetId};
use nuri_proto::op::Op;
use parking_lot::Mutex;

use crate::check::{Wrong, wrong};

/// A call as it goes over the wire.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) op: Op,
    pub(super) session: SessionId,
    /// See `nuri_target::admission`.
    pub(super) attempt: u64,
    pub(super) args: Vec<u8>,
    pub(super) payload: Vec<u8>,
}

/// What comes back: arguments and payload.
pub(super) type Answer = Result<(Vec<u8>, Vec<u8>), Status>;

/// What an actor wants of the world.
pub(super) enum Want {
    /// Calls to targets, all at once; gives as many answers.
    Exchange(Vec<(TargetId, Packet)>),
    /// A call to the authority; gives one answer.
    Authority(Packet),
    Pause(Duration),
    /// The sole right to a stripe.
    Lock(usize),
    Unlock(usize),
}

/// Thrown through an actor whose process dies.
struct Killed;

/// An actor's end of the baton.
pub(super) struct Baton {
    wants: Sender<Want>,
    given: Mutex<Receiver<Vec<Answer>>>,
    now: Arc<AtomicU64>,
}

impl Baton {
    /// Hands the baton over until the world has an answer.
    pub(super) fn want(&self, want: Want) -> Vec<Answer> {
        let given = self.given.lock();
        if self.wants.send(want).is_err() {
            resume_unwind(Box::new(Killed));
        }
        given.recv().unwrap_or_else(|_| resume_unwind(Box::new(Killed)))
    }

    /// Virtual microseconds.
    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }
}

/// The world's end.
pub(super) struct Actor {
    wants: Receiver<Want>,
    give: Option<Sender<Vec<Answer>>>,
    thread: Option<JoinHandle<Result<(), Wrong>>>,
}

impl Actor {
    /// A thread that begins with the first [`Actor::run`].
    pub(super) fn new(
        now: Arc<AtomicU64>,
        body: impl FnOnce(Arc<Baton>) -> Result<(), Wrong> + Send + 'static,
    ) -> Result<Actor, Wrong> {
        let (want, wants) = channel();
        let (give, given) = channel();
        let baton = Arc::new(Baton { wants: want, given: Mutex::new(given), now });
        let run = move || {
            let begin = baton.given.lock().recv();
            let outcome = begin.map_err(|_| Box::new(Killed) as Box<dyn Any + Send>);
            let body = || catch_unwind(AssertUnwindSafe(|| body(baton)));
            match outcome.and_then(|_| body()) {
                Ok(outcome) => outcome,
                Err(thrown) if thrown.is::<Killed>() => Ok(()),
                Err(_) => Err("a panic in an actor, see above".into()),
            }
        };
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(run);
        let thread = thread.map_err(|e| wrong!("no thread: {e}"))?;
        Ok(Actor { wants, give: Some(give), thread: Some(thread) })
    }

    /// Lets the actor go on until it wants something; `None` where it ended.
    ///
    /// # Errors
    /// What the actor found to be wrong.
    pub(super) fn run(&mut self, answers: Vec<Answer>) -> Result<Option<Want>, Wrong> {
        let given = self.give.as_ref().is_some_and(|give| give.send(answers).is_ok());
        match self.wants.recv() {
            Ok(want) if given => Ok(Some(want)),
            _ => self.end().map(|()| None),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_none()
    }

    /// Its process dies where it stands.
    ///
    /// # Errors
    /// As [`Actor::run`].
    pub(super) fn end(&mut self) -> Result<(), Wrong> {
        self.give = None;
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(outcome) => outcome.unwrap_or_else(|_| Err("an actor panicked".into())),
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // Whatever it has to say now, somebody else was first.
        let _ = self.end();
    }
}
