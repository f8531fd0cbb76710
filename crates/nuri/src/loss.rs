//! How much of the files cannot be reached, or would be lost with one more target.
//!
//! The metadata server counts it exactly, for callers that may ask. For others it is an estimate by
//! how full the targets are.

use nuri_proto::id::GroupId;
use nuri_proto::layout::Shape;
use nuri_proto::map::{Group, Map, Member, Standing, TargetState};
use nuri_proto::op::meta::GroupUse;
use nuri_rpc::CallContext;
use nuri_volume::Cluster;

use crate::show::human;

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(4);

/// Bytes of files on some groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Loss {
    pub(crate) bytes: u64,
    /// That have bytes there; not known of an estimate.
    pub(crate) files: Option<u64>,
    is_cut_short: bool,
}

/// What a space has lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Losses {
    /// That one more loss would take.
    pub(crate) at_risk: Loss,
    /// That cannot be read now.
    pub(crate) out_of_reach: Loss,
}

impl Losses {
    /// Asks the metadata server, where anything is missing.
    pub(crate) fn of(cluster: &Cluster, map: &Map) -> Losses {
        let bare = |g: &&Group| g.shape.is_redundant() && present(map, g) == g.shape.data();
        let gone = |g: &&Group| present(map, g) < g.shape.data();
        // What lies on a target by itself is not told apart from its shares of redundant groups:
        // where that is not the space's shape, it is taken for none.
        let is_counted = |g: &Group| g.shape.is_redundant() || !map.shape.is_redundant();
        let guessed = |g: &&Group| gone(g) && is_counted(g);
        let ask = |groups: Vec<GroupId>| exact(cluster, groups);
        let of = |wanted: &dyn Fn(&&Group) -> bool| map.groups.iter().filter(wanted).collect();
        let (bare, gone, guessed): (Vec<&Group>, Vec<&Group>, Vec<&Group>) =
            (of(&bare), of(&gone), of(&guessed));
        let ids = |groups: &[&Group]| groups.iter().map(|group| group.id).collect();
        Losses {
            at_risk: ask(ids(&bare)).unwrap_or_else(|| guess(map, &bare)),
            out_of_reach: ask(ids(&gone)).unwrap_or_else(|| guess(map, &guessed)),
        }
    }
}

impl Loss {
    /// As `3.0 MiB of 2 files`, or what is known of that.
    pub(crate) fn told(&self) -> String {
        let bytes = human(self.bytes);
        match (self.files, self.is_cut_short) {
            (None, _) => format!("about {bytes}"),
            (Some(files), true) => format!("more than {bytes} of {files} files"),
            (Some(1), _) => format!("{bytes} of a file"),
            (Some(files), _) => format!("{bytes} of {files} files"),
        }
    }
}

fn exact(cluster: &Cluster, groups: Vec<GroupId>) -> Option<Loss> {
    if groups.is_empty() {
        return Some(Loss { files: Some(0), ..Loss::default() });
    }
    let meta = cluster.meta().ok()?;
    let call = GroupUse { groups };
    let (reply, _) = meta.call(CallContext::default(), &call, &[], &mut [], PATIENCE).ok()?;
    let (bytes, files, is_cut_short) = (reply.bytes, Some(reply.files), reply.is_cut_short);
    Some(Loss { bytes, files, is_cut_short })
}

/// Members that are live and whose targets serve.
fn present(map: &Map, group: &Group) -> usize {
    let serves = |t| map.target(t).is_some_and(|t| t.state == TargetState::Up);
    let live = |m: &&Member| m.standing == Standing::Live && serves(m.target);
    group.members.iter().filter(live).count()
}

/// Data bytes of groups, if targets hold about as much of each group.
fn guess(map: &Map, groups: &[&Group]) -> Loss {
    let groups_of = |target| {
        let has = |g: &&Group| g.place(target).is_some() && g.shape != Shape::Stripe;
        map.groups.iter().filter(has).count().max(1) as u64
    };
    let of_group = |g: &&Group| {
        let used = |m: &Member| map.target(m.target).map_or(0, |t| t.used) / groups_of(m.target);
        let all: u64 = g.members.iter().map(used).sum();
        all * g.shape.data() as u64 / g.members.len().max(1) as u64
    };
    Loss { bytes: groups.iter().map(of_group).sum(), ..Loss::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_said() {
        let loss = |files, is_cut_short| Loss { bytes: 3 << 20, files, is_cut_short }.told();
        assert_eq!(loss(None, false), "about 3.0 MiB");
        assert_eq!(loss(Some(1), false), "3.0 MiB of a file");
        assert_eq!(loss(Some(20), false), "3.0 MiB of 20 files");
        assert_eq!(loss(Some(20), true), "more than 3.0 MiB of 20 files");
    }
}
