//! The life of nodes: they start, join, send heartbeats, and crash. They do so as `nuri-node` does,
//! with every call drawn from the network.

use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::clock::HEARTBEAT;
use nuri_proto::codec::{decode, encode};
use nuri_proto::id::{GroupId, SessionId, TargetId};
use nuri_proto::map::{Map, Standing};
use nuri_proto::op::Call;
use nuri_proto::op::cluster::{Heartbeat, HeartbeatReply, JoinReply, MapGet, Scrub, TargetReplace};

use super::actors::Worker;
use super::baton::{Answer, Packet};
use super::net::{Back, Host};
use super::world::{Event, World};
use crate::check::{Wrong, wrong};

fn packet<C: Call>(call: &C) -> Packet {
    let args = encode(call).unwrap_or_default();
    Packet { op: C::OP, session: SessionId(0), attempt: 0, args, payload: Vec::new() }
}

impl World {
    /// The node's process begins.
    ///
    /// # Errors
    /// A store that does not open, or forgot what it held.
    pub(super) fn start(&mut self, number: usize) -> Result<(), Wrong> {
        if self.nodes[number].server.is_none() {
            self.nodes[number].start()?;
            self.check_recovered(number)?;
        }
        let boots = self.nodes[number].boots;
        self.after(1, Event::Pulse { node: number, boots });
        // A new target has nothing to work for before it has an id.
        if self.nodes[number].target == TargetId(0) { Ok(()) } else { self.add_worker(number) }
    }

    fn add_worker(&mut self, number: usize) -> Result<(), Wrong> {
        let node = &self.nodes[number];
        let worker = Worker {
            target: node.target,
            life: node.boots << 8 | number as u64,
            power: node.power,
            ground: self.ground.clone(),
        };
        self.add_actor(Host::Node(number), SessionId(0), |baton| worker.run(baton))?;
        Ok(())
    }

    /// The node, which is down, loses its disk and gets an empty one. Returns the lost target.
    ///
    /// # Errors
    /// Where the store cannot be made.
    pub(super) fn wipe(&mut self, number: usize) -> Result<TargetId, Wrong> {
        self.reached.retain(|(node, _), _| *node != number);
        self.nodes[number].wipe()
    }

    /// Somebody gives the places of a lost target to the one that its node has now, as
    /// `nuri target replace` does.
    ///
    /// # Errors
    /// The authority's.
    pub(super) fn replace(&self, old: TargetId, number: usize) -> Result<(), Status> {
        let new = self.nodes[number].target;
        let answer = self.ask_authority(&packet(&TargetReplace { old, new }));
        answer.map(drop)
    }

    /// The node loses power, and comes back later.
    ///
    /// # Errors
    /// What an actor found.
    pub(super) fn fall(&mut self, number: usize) -> Result<(), Wrong> {
        self.stop(number)?;
        self.nodes[number].power += u64::from(self.rng.one_in(4));
        let away = if self.rng.one_in(3) { 300_000 } else { 9_000_000 };
        let delay = 1_000 + self.rng.below(away);
        self.after(delay, Event::Start(number));
        Ok(())
    }

    /// The node loses power, and does not come back by itself.
    ///
    /// # Errors
    /// What an actor found.
    pub(super) fn stop(&mut self, number: usize) -> Result<(), Wrong> {
        self.report.crashes += 1;
        self.nodes[number].crash(&mut self.rng);
        let host = Host::Node(number);
        self.slots.iter_mut().filter(|s| s.host == host).try_for_each(|s| s.actor.end())
    }

    /// Beats, and again after a while.
    pub(super) fn pulse(&mut self, number: usize, boots: u64) {
        if self.nodes[number].boots == boots && self.nodes[number].server.is_some() {
            self.beat(number, boots);
            let delay = HEARTBEAT.as_micros() as u64;
            self.after(delay, Event::Pulse { node: number, boots });
        }
    }

    pub(super) fn beat(&mut self, number: usize, boots: u64) {
        let now = self.now;
        let node = &mut self.nodes[number];
        node.run_clock(now);
        let Some(server) = node.server.as_ref().filter(|_| node.boots == boots) else { return };
        let (call, back) = if node.joined {
            let (sent, admitted) = (server.admission.now(), server.admission.version());
            let targets = server.reports();
            let beat = Heartbeat {
                node: node.id,
                instance: boots,
                targets,
                admitted,
                resyncs: Vec::new(),
                scrub: Scrub::default(),
            };
            (packet(&beat), Back::Beat { boots, sent })
        } else {
            (packet(&node.join_call()), Back::Join { boots })
        };
        self.send(Host::Node(number), Host::Authority, call, back);
    }

    /// The authority answered a node.
    ///
    /// # Errors
    /// Where the node cannot take the answer.
    pub(super) fn node_answered(
        &mut self,
        to: Host,
        back: Back,
        answer: Answer,
    ) -> Result<(), Wrong> {
        let Host::Node(number) = to else { return Ok(()) };
        let now = self.now;
        let node = &mut self.nodes[number];
        node.run_clock(now);
        let boots = node.boots;
        let is_same = |b: u64| b == boots;
        let Some(server) = &node.server else { return Ok(()) };
        match (back, answer) {
            (Back::Beat { boots, sent }, Ok((args, _))) if is_same(boots) => {
                let reply: HeartbeatReply = decode(&args)?;
                let (list, is_new) = (reply.admitted.clone(), reply.admitted.is_some());
                if reply.map_epoch > server.epochs.adopted() {
                    let back = Back::Map { boots, sent, list };
                    self.send(to, Host::Authority, packet(&MapGet {}), back);
                } else {
                    server.admission.renew(sent, list);
                    if is_new {
                        self.after(1, Event::Beat { node: number, boots });
                    }
                }
            }
            (Back::Beat { boots, .. }, Err(Status::WRONG_PEER)) if is_same(boots) => {
                node.joined = false;
            }
            (Back::Map { boots, sent, list }, Ok((args, _))) if is_same(boots) => {
                let map: Map = decode(&args)?;
                // A disk that fails cannot note it.
                if server.adopt(&map).is_ok() {
                    server.admission.renew(sent, list);
                }
            }
            (Back::Join { boots }, Ok((args, _))) if is_same(boots) => {
                let reply: JoinReply = decode(&args)?;
                let target = *reply.targets.first().ok_or("joined without a target")?;
                let is_new = node.target != target;
                match node.adopt(reply.node, target) {
                    // Its disk fails just now.
                    Err(_) if node.dying => return self.fall(number),
                    outcome => outcome?,
                }
                if is_new {
                    self.add_worker(number)?;
                }
                self.after(1, Event::Beat { node: number, boots });
            }
            _ => {}
        }
        Ok(())
    }

    /// Nothing that a live member holds went back while it ran. What one that is brought up to date
    /// took over from its past may be put right.
    ///
    /// # Errors
    /// The stripe that did.
    pub(super) fn check_reached(&mut self, number: usize) -> Result<(), Wrong> {
        self.forget_reached();
        let map = self.authority.map();
        let mut groups: Vec<_> = self.ground.stripes.iter().map(|s| s.group).collect();
        groups.dedup();
        groups.retain(|group| self.is_live(&map, *group, number));
        for group in groups {
            for (key, covers) in self.nodes[number].committed(group) {
                let before = self.reached.entry((number, key)).or_default();
                if !covers.reaches(before) {
                    return Err(wrong!("node {number} went back from {before:?} to {covers:?}"));
                }
                *before = covers;
            }
        }
        Ok(())
    }

    fn is_live(&self, map: &Map, group: GroupId, number: usize) -> bool {
        let target = self.nodes[number].target;
        let members = map.group(group).into_iter().flat_map(|g| &g.members);
        members.into_iter().any(|m| m.target == target && m.standing == Standing::Live)
    }

    /// Only live members count.
    fn forget_reached(&mut self) {
        let map = self.authority.map();
        let mut reached = std::mem::take(&mut self.reached);
        let group = |key| self.ground.stripes.iter().find(|s| s.key == key).map(|s| s.group);
        let lives = |node, key| group(key).is_some_and(|g| self.is_live(&map, g, node));
        reached.retain(|(node, key), _| lives(*node, *key));
        self.reached = reached;
    }

    /// Nor when it started again: what was committed is committed or still staged.
    fn check_recovered(&mut self, number: usize) -> Result<(), Wrong> {
        self.forget_reached();
        let store = self.nodes[number].store().ok_or("not open")?;
        let of_node = self.reached.iter_mut().filter(|((node, _), _)| *node == number);
        for ((_, key), before) in of_node {
            let held = store.held(*key).map_err(|e| wrong!("held: {e}"))?;
            let staged = held.staged.as_ref().is_some_and(|s| s.covers.reaches(before));
            if !held.covers.reaches(before) && !staged {
                return Err(wrong!("node {number} lost {before:?} in a crash: {held:?}"));
            }
            *before = held.covers;
        }
        Ok(())
    }

    /// Lets the time of a node's service lease pass for nodes that are not heard of.
    pub(super) fn all_are_back(&self) -> bool {
        let up = |n: &super::node::Node| n.server.is_some() && n.joined && n.is_in_service();
        self.nodes.iter().all(up)
    }
}

/// Longest time until a crashed node is back and brought up to date.
pub(super) const RECOVERY: Duration = Duration::from_secs(300);
