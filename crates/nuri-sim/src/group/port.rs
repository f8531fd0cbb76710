//! The stripe engine's outside in the simulator: every call hands the baton to the world.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::codec::{decode, encode};
use nuri_proto::id::{GroupId, SessionId, TargetId};
use nuri_proto::map::{Group, Map};
use nuri_proto::op::Call;
use nuri_proto::op::cluster::MapGet;
use nuri_volume::group::{Ask, Port};
use parking_lot::Mutex;

use super::baton::{Answer, Baton, Packet, Want};

/// One actor's members, map and time.
pub(super) struct SimPort {
    baton: Arc<Baton>,
    map: Mutex<Map>,
    attempt: AtomicU64,
    /// Targets that this actor does not reach, to see what the others give.
    pub(super) without: Mutex<Vec<TargetId>>,
}

impl SimPort {
    pub(super) fn new(baton: Arc<Baton>) -> SimPort {
        let (map, attempt, without) = Default::default();
        SimPort { baton, map, attempt, without }
    }

    /// Asks the authority.
    pub(super) fn ask<C: Call>(&self, call: &C) -> Result<C::Reply, Status> {
        let (session, args) = (SessionId(0), encode(call)?);
        let packet = Packet { op: C::OP, session, attempt: 0, args, payload: Vec::new() };
        let answer = self.baton.want(Want::Authority(packet)).pop();
        decode(&answer.ok_or(Status::IO)??.0)
    }

    pub(super) fn map(&self) -> Map {
        self.map.lock().clone()
    }
}

fn take<C: Call>(answer: Answer, into: &mut [u8]) -> Result<C::Reply, Status> {
    let (args, payload) = answer?;
    if payload.len() != into.len() {
        return Err(Status::MALFORMED);
    }
    into.copy_from_slice(&payload);
    decode(&args)
}

impl Port for SimPort {
    fn group(&self, id: GroupId) -> Option<Group> {
        self.map.lock().group(id).cloned()
    }

    fn refresh(&self) {
        if let Ok(map) = self.ask(&MapGet {}) {
            *self.map.lock() = map;
        }
    }

    fn exchange<C: Call>(
        &self,
        session: SessionId,
        asks: Vec<Ask<'_, C>>,
    ) -> Vec<Result<C::Reply, Status>> {
        let without = self.without.lock().clone();
        let reached = |ask: &&Ask<'_, C>| !without.contains(&ask.target);
        let attempt = self.attempt.load(Ordering::SeqCst);
        let packet = |ask: &Ask<'_, C>| {
            let args = encode(&ask.call).unwrap_or_default();
            let payload = ask.payload.to_vec();
            (ask.target, Packet { op: C::OP, session, attempt, args, payload })
        };
        let packets = asks.iter().filter(reached).map(packet).collect();
        let answers = self.baton.want(Want::Exchange(packets));
        if answers.contains(&Err(Status::UNREACHABLE)) {
            self.attempt.fetch_max(attempt + 1, Ordering::SeqCst);
        }
        let mut answers = answers.into_iter();
        let answer = |ask: Ask<'_, C>| {
            let lost = Err(Status::UNREACHABLE);
            let answer = if reached(&&ask) { answers.next().unwrap_or(lost) } else { lost };
            take::<C>(answer, ask.into)
        };
        asks.into_iter().map(answer).collect()
    }

    fn change<C: Call>(
        &self,
        session: SessionId,
        target: TargetId,
        call: &C,
        _: Duration,
    ) -> Result<C::Reply, Status> {
        let (attempt, args) = (self.attempt.load(Ordering::SeqCst), encode(call)?);
        let packet = Packet { op: C::OP, session, attempt, args, payload: Vec::new() };
        let answer = self.baton.want(Want::Exchange(vec![(target, packet)])).pop();
        let outcome = take::<C>(answer.ok_or(Status::IO)?, &mut []);
        if let Err(Status::UNREACHABLE) = outcome {
            self.attempt.fetch_add(1, Ordering::SeqCst);
        }
        outcome
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.baton.now())
    }

    fn pause(&self, time: Duration) {
        self.baton.want(Want::Pause(time));
    }
}
