//! What is at risk in a space, in sentences, computed from the map and the reports of nodes.

use std::collections::BTreeSet;

use nuri_proto::map::{Group, Map, Pace, Standing, TargetState};
use nuri_proto::op::cluster::{ClusterState, Resync};
use serde::Serialize;

use crate::loss::Losses;

/// `ok`, `degraded`, `damaged` or `stopped`, and why.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Health {
    pub(crate) state: &'static str,
    pub(crate) sentences: Vec<String>,
    /// Bytes that one more loss would take.
    pub(crate) at_risk: u64,
    /// Bytes that cannot be reached now.
    pub(crate) out_of_reach: u64,
    pub(crate) resyncs: Vec<ResyncView>,
}

/// A target that is being brought up to date.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ResyncView {
    pub(crate) target: u32,
    pub(crate) stripes: u64,
    pub(crate) done: u64,
    pub(crate) bytes: u64,
    /// Estimate.
    pub(crate) seconds_left: Option<u64>,
}

impl Health {
    /// Of a space that was stopped.
    pub(crate) fn stopped(sentence: String) -> Health {
        Health { state: "stopped", ..Health::unreachable(sentence) }
    }

    /// Of a space that does not answer.
    pub(crate) fn unreachable(sentence: String) -> Health {
        let resyncs = Vec::new();
        Health { state: "damaged", sentences: vec![sentence], at_risk: 0, out_of_reach: 0, resyncs }
    }

    pub(crate) fn of(state: &ClusterState, losses: &Losses) -> Health {
        let map = &state.map;
        let mut health = Health {
            state: "ok",
            sentences: Vec::new(),
            at_risk: losses.at_risk.bytes,
            out_of_reach: losses.out_of_reach.bytes,
            resyncs: state.resyncs.iter().map(resync_view).collect(),
        };
        health.tell_losses(map, losses);
        health.tell_doubts(map);
        health.tell_failures(state, losses);
        health.tell_findings(state);
        health.tell_fullness(map);
        health.tell_shape(map);
        health
    }

    fn tell_losses(&mut self, map: &Map, losses: &Losses) {
        let total = map.targets.len();
        let down = map.targets.iter().filter(|t| t.state == TargetState::Down).count();
        let standing = |wanted: fn(&Standing) -> bool| {
            map.groups.iter().flat_map(|g| &g.members).any(|m| wanted(&m.standing))
        };
        let absent = standing(|s| matches!(s, Standing::Absent { .. }));
        let syncing = standing(|s| matches!(s, Standing::Syncing { .. }));
        if down == 0 && !absent && !syncing {
            return;
        }
        self.state = "degraded";
        let mut parts = Vec::new();
        if down > 0 {
            parts.push(format!("{down} of {total} targets down"));
        }
        if self.out_of_reach > 0 {
            let bytes = losses.out_of_reach.told();
            parts.push(format!(
                "{bytes} cannot be reached until they are back (nuri fs lost MOUNT lists them)"
            ));
        }
        if self.at_risk > 0 {
            parts.push(format!("{} have no redundancy left", losses.at_risk.told()));
        }
        if absent || syncing {
            parts.push(self.resync_text(map, syncing));
        }
        self.sentences.push(parts.join("; "));
    }

    fn resync_text(&self, map: &Map, syncing: bool) -> String {
        if !syncing {
            return "resync not started".into();
        }
        if map.resync == Pace::Paused {
            return "resync paused: nuri target resync --gentle".into();
        }
        let (done, all) = self.resyncs.iter().fold((0, 0), |(d, a), r| (d + r.done, a + r.stripes));
        let percent = (done * 100).checked_div(all).unwrap_or(0);
        match self.resyncs.iter().filter_map(|r| r.seconds_left).max() {
            Some(left) => format!("resync {percent} % done, about {left} s left"),
            None => format!("resync {percent} % done"),
        }
    }

    fn tell_doubts(&mut self, map: &Map) {
        let unproven = |g: &Group| g.unproven().iter().map(|p| g.members[p].target).collect();
        let targets: BTreeSet<_> =
            map.groups.iter().flat_map(|g| -> Vec<_> { unproven(g) }).collect();
        if targets.is_empty() {
            return;
        }
        self.state = "degraded";
        let names: Vec<_> = targets.iter().map(ToString::to_string).collect();
        self.sentences.push(format!(
            "the machine of target {} was started anew: it is compared with the others before it \
             serves",
            names.join(", ")
        ));
    }

    fn tell_failures(&mut self, state: &ClusterState, losses: &Losses) {
        for t in state.map.targets.iter().filter(|t| t.state == TargetState::Failed) {
            // Where every file can be read without it, nothing is damaged.
            let is_known = state.map.shape.is_redundant() || losses.out_of_reach.files.is_some();
            let is_spared = is_known && self.out_of_reach == 0;
            self.state = if is_spared { "degraded" } else { "damaged" };
            let (id, path) = (t.id, &t.path);
            let why = state.reasons.iter().find(|(failed, _)| *failed == id);
            let why = why.map_or(path.clone(), |(_, why)| format!("{path}: {why}"));
            self.sentences.push(format!(
                "target {id} is failed ({why}): put its disk in order, then start its node anew, \
                 or put another in its place: nuri target replace {id} NEW"
            ));
        }
    }

    fn tell_findings(&mut self, state: &ClusterState) {
        let unrepaired: u64 = state.scrubs.iter().map(|(_, s)| s.unrepaired).sum();
        if unrepaired > 0 {
            self.state = "damaged";
            self.sentences.push(format!(
                "the scrub found {unrepaired} chunks that it could not repair (below): restore \
                 their files, then look again: nuri target scrub --wait"
            ));
        }
    }

    /// Nodes enough for copies, and none are made.
    fn tell_shape(&mut self, map: &Map) {
        if map.shape_now() != map.shape {
            return self.sentences.push(waits_for_targets(map));
        }
        let serves = |t: &&nuri_proto::map::Target| t.state == TargetState::Up && !t.retiring;
        let nodes: BTreeSet<_> = map.targets.iter().filter(serves).map(|t| t.node).collect();
        if nodes.len() > 1 && !map.shape.is_redundant() {
            let nodes = nodes.len();
            self.sentences.push(format!(
                "new files have no redundancy where no directory says otherwise, though there are \
                 {nodes} nodes: nuri space set --shape mirror:2"
            ));
        }
    }

    fn tell_fullness(&mut self, map: &Map) {
        for t in map.targets.iter().filter(|t| t.is_nearly_full()) {
            let (id, path, percent) = (t.id, &t.path, t.used * 100 / t.size.max(1));
            self.sentences.push(format!(
                "target {id} ({path}) is {percent} % full: new files avoid it; make room, or \
                 spread what is there: nuri target rebalance"
            ));
        }
        let (size, used) = map.capacity();
        if size > 0 && used > size / 100 * 95 {
            self.sentences.push(format!("the space is {} % full", used * 100 / size));
        }
    }
}

/// That there are fewer targets than the space's shape needs.
pub(crate) fn waits_for_targets(map: &Map) -> String {
    let staying = map.targets.iter().filter(|t| !t.retiring).count();
    let (shape, needed) = (map.shape, map.shape.members());
    format!(
        "new files are kept as stripe, without redundancy: {shape} needs {needed} targets, and \
         there are {staying}; it holds as soon as more have joined (nuri node run --join)"
    )
}

fn resync_view(r: &Resync) -> ResyncView {
    let left = r.stripes.saturating_sub(r.done);
    let seconds_left = (r.done > 0).then(|| r.seconds * left / r.done);
    let (stripes, done, bytes) = (r.stripes, r.done, r.bytes);
    ResyncView { target: r.target.0, stripes, done, bytes, seconds_left }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::{Epoch, GroupId, TargetId};
    use nuri_proto::layout::Shape;
    use nuri_proto::map::Member;

    use super::*;

    #[test]
    fn who_is_compared_is_named() {
        let mut members = vec![Member::new(TargetId(1), Standing::Live); 2];
        members[1] = Member { unproven: true, ..Member::new(TargetId(2), Standing::Live) };
        let group = Group { id: GroupId(1), epoch: Epoch(1), shape: Shape::Mirror(2), members };
        let map = Map { groups: vec![group.clone(), group], ..Map::default() };
        let mut health = Health::unreachable(String::new());
        health.tell_doubts(&Map::default());
        assert_eq!(health.sentences.len(), 1);
        health.tell_doubts(&map);
        assert!(health.sentences[1].starts_with("the machine of target 2 was"), "{health:?}");
        assert_eq!(health.state, "degraded");
    }
}
