//! The outside of the code for stripes, over the network: the [`Port`] of real clients and nodes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::MEMBER_TIMEOUT;
use nuri_proto::id::{GroupId, SessionId, TargetId};
use nuri_proto::map::Group;
use nuri_proto::op::Call;
use nuri_rpc::{Awake, CallContext, Started};
use parking_lot::Mutex;

use super::port::{Ask, Port};
use crate::map_cache::Cluster;

/// A failure this early is not a slow member.
const AT_ONCE: Duration = Duration::from_millis(200);
/// Connections of a restarted peer that may be found dead one after the other.
const FRESH_TRIES: usize = 2;
/// Who gave no answer is asked again this eagerly, for so long: most likely it is about to leave
/// its groups, and who waits on long learns of that late. One that is only slow gets all its time
/// after.
const EAGER: Duration = Duration::from_millis(500);
const EAGER_FOR: Duration = Duration::from_secs(4);

/// How far a call came.
enum Start<'a> {
    /// Nobody was reached.
    Unsent(Status),
    Sent(Result<Started<'a>, Status>),
}

/// Calls to members over the network.
pub struct RpcPort {
    cluster: Cluster,
    /// Number of the attempt that changes are sent under: raised when one got no answer, so that
    /// what is left of it can be told from what comes later.
    attempt: AtomicU64,
    /// Since when targets give no answer.
    late: Mutex<HashMap<TargetId, Instant>>,
    began: Awake,
}

impl RpcPort {
    pub fn new(cluster: &Cluster) -> RpcPort {
        let (attempt, late) = Default::default();
        RpcPort { cluster: cluster.clone(), attempt, late, began: Awake::now() }
    }

    /// How long a target's answer is waited for, at most `usual`.
    fn patience(&self, target: TargetId, usual: Duration) -> Duration {
        let since = self.late.lock().get(&target).copied();
        match since {
            Some(since) if since.elapsed() < EAGER_FOR => usual.min(EAGER),
            _ => usual,
        }
    }

    fn note<R>(&self, target: TargetId, outcome: &Result<R, Status>) {
        let mut late = self.late.lock();
        match outcome {
            Err(Status::UNREACHABLE) => {
                late.entry(target).or_insert_with(Instant::now);
            }
            _ => {
                late.remove(&target);
            }
        }
    }

    /// Sends a change on behalf of a session. Targets refuse changes of a session that ended.
    pub fn send_change<C: Call>(
        &self,
        session: SessionId,
        target: TargetId,
        call: &C,
        payload: &[u8],
        left: Duration,
    ) -> Result<C::Reply, Status> {
        let attempt = self.attempt.load(Ordering::SeqCst);
        let context =
            CallContext { session: session.0, sequence: attempt, ..CallContext::default() };
        let outcome = match self.cluster.target(target)?.reach(left) {
            // Of what was not sent nothing is left, and what others sent is to be taken.
            Err(status) => Err(status),
            Ok(reached) => {
                let answer = reached.call(context, call, payload, &mut [], left);
                if let Err(Status::UNREACHABLE) = answer {
                    self.give_up(attempt);
                }
                answer.map(|(reply, _)| reply)
            }
        };
        self.note(target, &outcome);
        outcome
    }

    /// Sends a call that changes no data, on behalf of a session. A call without an answer leaves
    /// nothing behind.
    pub fn ask_for<C: Call>(
        &self,
        session: SessionId,
        target: TargetId,
        call: &C,
        patience: Duration,
    ) -> Result<C::Reply, Status> {
        let attempt = self.attempt.load(Ordering::SeqCst);
        let context =
            CallContext { session: session.0, sequence: attempt, ..CallContext::default() };
        let peer = self.cluster.target(target)?;
        peer.call(context, call, &[], &mut [], patience).map(|(reply, _)| reply)
    }

    /// Something of the attempt got no answer: what follows goes under a higher one.
    fn give_up(&self, attempt: u64) -> u64 {
        self.attempt.fetch_max(attempt + 1, Ordering::SeqCst).max(attempt + 1)
    }

    /// Takes the answer; a connection that was dead before is worth another one at once.
    fn finish<C: Call>(
        &self,
        context: CallContext,
        ask: Ask<'_, C>,
        started: Start<'_>,
        sent: Instant,
    ) -> Result<C::Reply, Status> {
        let started = match started {
            Start::Sent(started) => started,
            Start::Unsent(status) => {
                let outcome = Err(status);
                self.note(ask.target, &outcome);
                return outcome;
            }
        };
        let len = ask.into.len();
        let mut outcome = started.and_then(|s| s.finish::<C>(ask.into));
        for _ in 0..FRESH_TRIES {
            if !matches!(outcome, Err(Status::UNREACHABLE)) || sent.elapsed() > AT_ONCE {
                break;
            }
            let peer = self.cluster.target(ask.target)?;
            // What is left in the dead connection must not come after what follows.
            let context = CallContext { sequence: self.give_up(context.sequence), ..context };
            outcome = peer.call_into(context, &ask.call, ask.payload, ask.into, MEMBER_TIMEOUT);
        }
        self.note(ask.target, &outcome);
        if let Err(Status::UNREACHABLE) = outcome {
            self.give_up(self.attempt.load(Ordering::SeqCst));
        }
        let (reply, got) = outcome?;
        if got == len { Ok(reply) } else { Err(Status::MALFORMED) }
    }
}

impl Port for RpcPort {
    fn group(&self, id: GroupId) -> Option<Group> {
        self.cluster.group(id)
    }

    fn refresh(&self) {
        // Without an authority the old map is the best there is.
        let _ = self.cluster.refresh();
    }

    fn exchange<'a, C: Call>(
        &self,
        session: SessionId,
        asks: Vec<Ask<'a, C>>,
    ) -> Vec<Result<C::Reply, Status>> {
        let sequence = self.attempt.load(Ordering::SeqCst);
        let context = CallContext { session: session.0, sequence, ..CallContext::default() };
        let sent = Instant::now();
        let start = |ask: &Ask<'a, C>| {
            let patience = self.patience(ask.target, MEMBER_TIMEOUT);
            let peer = self.cluster.target(ask.target);
            match peer.and_then(|peer| peer.reach(patience)) {
                Ok(reached) => {
                    Start::Sent(reached.start(context, &ask.call, ask.payload, patience))
                }
                Err(status) => Start::Unsent(status),
            }
        };
        let started: Vec<_> = asks.iter().map(start).collect();
        let finish = |(ask, started)| self.finish(context, ask, started, sent);
        asks.into_iter().zip(started).map(finish).collect()
    }

    fn change<C: Call>(
        &self,
        session: SessionId,
        target: TargetId,
        call: &C,
        patience: Duration,
    ) -> Result<C::Reply, Status> {
        let patience = self.patience(target, patience);
        self.send_change(session, target, call, &[], patience)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
