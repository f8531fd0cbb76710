//! The changes from one map to the next, as sentences for the log of every node.

use std::collections::BTreeMap;

use nuri_proto::id::TargetId;
use nuri_proto::map::{Map, Node, Standing, Target, TargetState};

/// Whether a sentence tells of something worse than before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    Worse,
    Better,
}

/// Tells what changed. Maps that follow each other only.
pub fn news(old: &Map, new: &Map) -> Vec<(Tone, String)> {
    let mut out = Vec::new();
    for node in &new.nodes {
        let before = old.nodes.iter().find(|n| n.id == node.id);
        out.extend(of_node(before, node));
    }
    for target in &new.targets {
        let before = old.targets.iter().find(|t| t.id == target.id);
        out.extend(of_target(before, target));
    }
    let gone = |t: &&Target| new.targets.iter().all(|now| now.id != t.id);
    let removed = old.targets.iter().filter(gone);
    out.extend(removed.map(|t| (Tone::Better, format!("{} is removed", name(t)))));
    out.extend(of_groups(old, new));
    out
}

fn of_node(before: Option<&Node>, now: &Node) -> Option<(Tone, String)> {
    let name = format!("node {} at {}", now.id, now.address);
    let Some(before) = before else { return Some((Tone::Better, format!("{name} has joined"))) };
    match (before.up, now.up) {
        (true, false) => Some((Tone::Worse, format!("{name} is not heard from"))),
        (false, true) => Some((Tone::Better, format!("{name} is back"))),
        _ if before.address != now.address => {
            Some((Tone::Better, format!("{name} was at {} before", before.address)))
        }
        _ => None,
    }
}

fn name(target: &Target) -> String {
    format!("target {} (node {}, {})", target.id, target.node, target.path)
}

fn of_target(before: Option<&Target>, now: &Target) -> Option<(Tone, String)> {
    let Some(before) = before else { return Some((Tone::Better, format!("{} is new", name(now)))) };
    let said = match now.state {
        _ if !before.retiring && now.retiring => (Tone::Better, "is being emptied"),
        state if state == before.state => return None,
        TargetState::Up => (Tone::Better, "is served again"),
        TargetState::Down => (Tone::Worse, "is not served"),
        TargetState::Failed => (Tone::Worse, "has failed"),
    };
    Some((said.0, format!("{} {}", name(now), said.1)))
}

/// What became of a target in how many groups.
fn of_groups(old: &Map, new: &Map) -> Vec<(Tone, String)> {
    let mut counts: BTreeMap<(TargetId, u8), usize> = BTreeMap::new();
    let before: BTreeMap<_, _> = old.groups.iter().map(|group| (group.id, group)).collect();
    for group in &new.groups {
        let Some(before) = before.get(&group.id) else { continue };
        for member in &group.members {
            let was = before.place(member.target).map(|place| before.members[place].standing);
            if let Some(was) = was
                && kind(was) != kind(member.standing)
            {
                *counts.entry((member.target, kind(member.standing))).or_default() += 1;
            }
        }
    }
    let tell = |((target, kind), count): ((TargetId, u8), usize)| {
        let (tone, what) = match kind {
            0 => (Tone::Better, "holds everything again in"),
            1 => (Tone::Better, "is being brought up to date in"),
            _ => (Tone::Worse, "is taken out of"),
        };
        (tone, format!("target {target} {what} {count} groups"))
    };
    counts.into_iter().map(tell).collect()
}

fn kind(standing: Standing) -> u8 {
    match standing {
        Standing::Live => 0,
        Standing::Syncing { .. } => 1,
        Standing::Absent { .. } => 2,
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::{Epoch, GroupId, NodeId};
    use nuri_proto::layout::Shape;
    use nuri_proto::map::{Group, Member, Run};

    use super::*;
    use crate::standing::fixture::target;

    fn map(up: bool, state: TargetState, standing: Standing) -> Map {
        let address = "10.0.0.2:7000".to_string();
        let node = Node { id: NodeId(2), address, pid: 1, up, run: Run::default() };
        let target = Target { node: NodeId(2), state, ..target(4) };
        let members = vec![Member::new(TargetId(4), standing)];
        let group = |id| Group {
            id: GroupId(id),
            epoch: Epoch(1),
            shape: Shape::Stripe,
            members: members.clone(),
        };
        Map {
            nodes: vec![node],
            targets: vec![target],
            groups: vec![group(1), group(2)],
            ..Map::default()
        }
    }

    #[test]
    fn what_goes_and_comes_back_is_told() {
        let well = map(true, TargetState::Up, Standing::Live);
        let ill = map(false, TargetState::Down, Standing::Absent { since: Epoch(2) });
        let text = |old: &Map, new: &Map| {
            news(old, new).into_iter().map(|(_, said)| said).collect::<Vec<_>>().join("\n")
        };
        let worse = text(&well, &ill);
        assert!(worse.contains("node 2 at 10.0.0.2:7000 is not heard from"), "{worse}");
        assert!(worse.contains("is not served"), "{worse}");
        assert!(worse.contains("target 4 is taken out of 2 groups"), "{worse}");
        assert!(news(&well, &ill).iter().all(|(tone, _)| *tone == Tone::Worse));
        let better = text(&ill, &well);
        assert!(better.contains("is back") && better.contains("is served again"), "{better}");
        assert!(better.contains("target 4 holds everything again in 2 groups"), "{better}");
        assert_eq!(news(&well, &well), []);
        assert!(text(&Map::default(), &well).contains("has joined"));
    }
}
