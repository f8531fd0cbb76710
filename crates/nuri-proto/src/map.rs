//! The map: nodes, targets, pools and groups of a space, as data. The authority owns it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{BootId, ClusterId, Epoch, GroupId, Incarnation, NodeId, PoolId, TargetId};
use crate::layout::Shape;
use crate::stripe::Members;

/// Where a node can be reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    /// `HOST:PORT` that its services listen on.
    pub address: String,
    pub pid: u32,
    /// Heard from within the failure-detection time.
    pub up: bool,
    #[serde(default)]
    pub run: Run,
}

/// A process that runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// Of the program.
    pub version: String,
    /// Seconds since 1970, by its machine's clock.
    pub since: u64,
}

/// One target and what it last reported.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Target {
    pub id: TargetId,
    pub node: NodeId,
    /// Path on its node.
    pub path: String,
    pub state: TargetState,
    /// Bytes that chunks can use, and that they do use.
    pub size: u64,
    pub used: u64,
    pub incarnation: Incarnation,
    /// Of its superblock, as last heard: a lower one is an older state of the same target.
    pub sequence: u64,
    /// Of its last opening that the authority heard of.
    #[serde(default)]
    pub boot: BootId,
    /// Of its machine's kernel, when it was opened.
    #[serde(default)]
    pub machine: BootId,
    /// It is being emptied: new files avoid it.
    pub retiring: bool,
}

impl Target {
    /// Whether the target is nearly full, so that new files should go elsewhere.
    pub fn is_nearly_full(&self) -> bool {
        is_nearly_full(self.used, self.size)
    }
}

/// Whether so many bytes of a target of this size are nearly all.
pub fn is_nearly_full(used: u64, size: u64) -> bool {
    size > 0 && used >= size / 10 * 9
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TargetState {
    Up,
    /// Its node is not heard from, or does not serve it.
    Down,
    /// Took itself out of service after an I/O error.
    Failed,
}

/// A named set of targets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pool {
    pub id: PoolId,
    pub name: String,
    /// Those that new files lie on. Older ones, made when there were fewer targets, keep the files
    /// that lie on them.
    pub groups: Vec<GroupId>,
}

/// The ordered targets of one stripe group: data members first, then parity.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    pub id: GroupId,
    /// The map's when members or standings last changed.
    pub epoch: Epoch,
    pub shape: Shape,
    pub members: Vec<Member>,
}

/// One place of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    pub target: TargetId,
    pub standing: Standing,
    /// Its machine was started anew while it was live, and nobody compared it with the other
    /// members since: its disk may have lost what it said was durable.
    #[serde(default)]
    pub unproven: bool,
}

impl Member {
    pub fn new(target: TargetId, standing: Standing) -> Member {
        Member { target, standing, unproven: false }
    }
}

/// The standing of a member, which says what it may be asked. The epoch is the first whose writes
/// it missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Standing {
    /// Holds every decided write; reads and writes go to it.
    Live,
    /// Takes no part.
    Absent { since: Epoch },
    /// Takes part in writes; what it missed is being brought to it.
    Syncing { since: Epoch },
}

impl Group {
    /// Places whose members hold every decided write.
    pub fn live(&self) -> Members {
        self.places(|standing| standing == Standing::Live)
    }

    /// Places that take part in writes.
    pub fn writable(&self) -> Members {
        self.places(|standing| !matches!(standing, Standing::Absent { .. }))
    }

    /// Places of live members that may have lost something with the power.
    pub fn unproven(&self) -> Members {
        let unproven = |place: &usize| self.members[*place].unproven;
        Members::of(self.live().iter().filter(unproven))
    }

    fn places(&self, wanted: impl Fn(Standing) -> bool) -> Members {
        let members = self.members.iter().enumerate();
        Members::of(members.filter(|(_, m)| wanted(m.standing)).map(|(place, _)| place))
    }

    /// Whether the live members hold the whole data.
    pub fn is_available(&self) -> bool {
        self.live().iter().count() >= self.shape.data()
    }

    /// The place of a target in the group.
    pub fn place(&self, target: TargetId) -> Option<usize> {
        self.members.iter().position(|m| m.target == target)
    }
}

/// The whole map.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Map {
    pub cluster: ClusterId,
    /// Counts changes of membership (not of usage figures).
    pub epoch: Epoch,
    pub nodes: Vec<Node>,
    /// Highest number that a node was given: none is given twice.
    #[serde(default)]
    pub last_node: NodeId,
    pub targets: Vec<Target>,
    pub pools: Vec<Pool>,
    pub groups: Vec<Group>,
    /// Node that runs the metadata server.
    pub meta: Option<NodeId>,
    /// Shape of files where no directory says another.
    pub shape: Shape,
    /// How groups that are made from now on lie over targets.
    #[serde(default)]
    pub placement: Placement,
    pub resync: Pace,
    #[serde(default)]
    pub scrub: ScrubPolicy,
}

/// How the groups of a shape are placed on targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// RAID-5's rotation: group i on targets i, i + 1, ... in turn.
    Rotated,
    /// Petal's chained declustering: copy j of group i on target i + j of another node.
    Chained,
    /// RAID-x: the copies of a row of groups lie together on one target, another one each row.
    Orthogonal,
    /// Balanced pseudo-random: pairs of targets share about as many groups each.
    #[default]
    Declustered,
}

impl Placement {
    const NAMES: [(Placement, &str); 4] = [
        (Placement::Rotated, "rotated"),
        (Placement::Chained, "chained"),
        (Placement::Orthogonal, "orthogonal"),
        (Placement::Declustered, "declustered"),
    ];
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut names = Self::NAMES.iter().filter(|(placement, _)| placement == self);
        f.write_str(names.next().map_or("", |(_, name)| name))
    }
}

/// A text that names no placement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownPlacement(String);

impl std::error::Error for UnknownPlacement {}

impl std::fmt::Display for UnknownPlacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = Placement::NAMES.map(|(_, name)| name).join(", ");
        write!(f, "unknown placement {:?}: expected one of {names}", self.0)
    }
}

impl std::str::FromStr for Placement {
    type Err = UnknownPlacement;
    fn from_str(text: &str) -> Result<Placement, UnknownPlacement> {
        let mut names = Self::NAMES.iter().filter(|(_, name)| *name == text);
        let found = names.next().map(|(placement, _)| *placement);
        found.ok_or_else(|| UnknownPlacement(text.into()))
    }
}

/// When scrubs read and prove all data on the targets, and how fast.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubPolicy {
    /// Of the last scrub that began; 0 for none.
    pub number: u64,
    /// When it began, or the schedule did: seconds since 1970, 0 for never.
    pub started: u64,
    pub is_stopped: bool,
    /// Bytes that each node reads per second, at most.
    pub rate: u64,
    /// Days from one to the next.
    pub every_days: Option<u16>,
}

impl ScrubPolicy {
    /// The default rate, chosen so that programs notice little.
    pub const RATE: u64 = 32 << 20;
}

impl Default for ScrubPolicy {
    fn default() -> Self {
        let (rate, every_days) = (Self::RATE, Some(7));
        ScrubPolicy { number: 0, started: 0, is_stopped: false, rate, every_days }
    }
}

/// How fast targets are brought up to date.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Pace {
    /// So that programs keep most of the disks and the network.
    #[default]
    Gentle,
    /// Bytes per second to each target, at most.
    Rate(u64),
    Paused,
}

impl Map {
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|n| n.id == id)
    }

    pub fn target(&self, id: TargetId) -> Option<&Target> {
        self.targets.iter().find(|t| t.id == id)
    }

    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.iter().find(|g| g.id == id)
    }

    /// Address of the node that serves `target`.
    pub fn target_address(&self, target: TargetId) -> Option<&str> {
        Some(self.node(self.target(target)?.node)?.address.as_str())
    }

    /// The metadata server's address.
    pub fn meta_address(&self) -> Option<&str> {
        Some(self.node(self.meta?)?.address.as_str())
    }

    /// The shape of new files in directories without a layout of their own. It is the space's shape
    /// as soon as there are enough targets.
    pub fn shape_now(&self) -> Shape {
        let staying = self.targets.iter().filter(|t| !t.retiring).count();
        if self.shape.members() <= staying { self.shape } else { Shape::Stripe }
    }

    /// Groups of the pool that new files of this shape lie on.
    pub fn pool_groups(&self, id: PoolId, shape: Shape) -> Vec<&Group> {
        let pool = self.pools.iter().find(|p| p.id == id);
        let groups = pool.into_iter().flat_map(|p| &p.groups).filter_map(|id| self.group(*id));
        groups.filter(|g| g.shape == shape).collect()
    }

    /// (size, used) in bytes of files, if all files have the space's shape. Redundancy is left out.
    /// So is the space left on larger targets once no group has space on all its members.
    pub fn usable(&self) -> (u64, u64) {
        let (size, used) = self.capacity();
        let of_files = |bytes: u64| {
            let shape = self.shape_now();
            (u128::from(bytes) * shape.data() as u128 / shape.members() as u128) as u64
        };
        let groups: Vec<_> = self.groups.iter().filter(|g| self.is_for_new_files(g)).collect();
        if groups.is_empty() {
            return (of_files(size), of_files(used));
        }
        (of_files(used) + self.room_in(&groups), of_files(used))
    }

    fn is_for_new_files(&self, group: &Group) -> bool {
        let listed = self.pools.iter().any(|pool| pool.groups.contains(&group.id));
        group.shape == self.shape_now() && listed
    }

    /// Bytes of files that fit on the groups: they fill all of them alike until a target is full,
    /// then those that do without it, and so on.
    fn room_in(&self, groups: &[&Group]) -> u64 {
        let free = |t: &Target| (t.id, t.size.saturating_sub(t.used));
        let mut free: BTreeMap<TargetId, u64> = self.targets.iter().map(free).collect();
        let mut room = 0;
        loop {
            let has_room = |m: &Member| free.get(&m.target).is_some_and(|bytes| *bytes > 0);
            let open = groups.iter().filter(|g| g.members.iter().all(has_room));
            let open: Vec<_> = open.collect();
            let mut places: BTreeMap<TargetId, u64> = BTreeMap::new();
            for member in open.iter().flat_map(|g| &g.members) {
                *places.entry(member.target).or_default() += 1;
            }
            let until_full = places.iter().map(|(target, count)| free[target].div_ceil(*count));
            let Some(each) = until_full.min() else { return room };
            room += each * open.iter().map(|g| g.shape.data() as u64).sum::<u64>();
            for (target, count) in places {
                if let Some(bytes) = free.get_mut(&target) {
                    *bytes = bytes.saturating_sub(each * count);
                }
            }
        }
    }

    /// Bytes that are free on a target.
    pub fn room_on(&self, target: TargetId) -> u64 {
        self.target(target).map_or(0, |t| t.size.saturating_sub(t.used))
    }

    /// (size, used) over all targets, bytes.
    pub fn capacity(&self) -> (u64, u64) {
        self.targets.iter().fold((0, 0), |(size, used), t| (size + t.size, used + t.used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Targets of these sizes and groups of these targets.
    fn map(shape: Shape, sizes: &[u64], groups: &[&[u32]]) -> Map {
        let target = |(i, size): (usize, &u64)| Target {
            id: TargetId(i as u32 + 1),
            node: NodeId(i as u32 + 1),
            path: String::new(),
            state: TargetState::Up,
            size: *size,
            used: 0,
            incarnation: Incarnation(1),
            sequence: 1,
            boot: BootId(1),
            machine: BootId(1),
            retiring: false,
        };
        let group = |(i, members): (usize, &&[u32])| Group {
            id: GroupId(i as u32 + 1),
            epoch: Epoch(1),
            shape,
            members: members.iter().map(|t| Member::new(TargetId(*t), Standing::Live)).collect(),
        };
        let groups: Vec<_> = groups.iter().enumerate().map(group).collect();
        let listed = groups.iter().map(|g| g.id).collect();
        let pool = Pool { id: PoolId(1), name: "default".into(), groups: listed };
        let targets = sizes.iter().enumerate().map(target).collect();
        Map { shape, targets, groups, pools: vec![pool], ..Map::default() }
    }

    #[test]
    fn what_fits_is_what_the_groups_have_room_for() {
        let parity = Shape::Parity { k: 3, m: 1 };
        let all_needed = map(parity, &[100, 100, 50, 100], &[&[1, 2, 3, 4]]);
        assert_eq!(all_needed.usable(), (150, 0), "what is over is of no use");
        let stripes = map(Shape::Stripe, &[100, 50], &[&[1], &[2], &[1]]);
        assert_eq!(stripes.usable().0, 150, "the smaller one is full later or earlier");
        // Both large ones with the small one until that is full, then by themselves.
        let mirrors = map(Shape::Mirror(2), &[100, 100, 50], &[&[1, 2], &[2, 3], &[3, 1]]);
        assert_eq!(mirrors.usable().0, 125);
        let mut half = mirrors.clone();
        half.targets.iter_mut().for_each(|t| t.used = t.size / 2);
        assert_eq!(half.usable(), (125, 62));
    }

    #[test]
    fn before_there_are_groups_the_shape_alone_counts() {
        assert_eq!(map(Shape::Mirror(2), &[100, 100], &[]).usable(), (100, 0));
    }

    #[test]
    fn a_shape_waits_for_targets_enough() {
        let mut one = map(Shape::Mirror(2), &[100], &[]);
        assert_eq!((one.shape_now(), one.usable()), (Shape::Stripe, (100, 0)));
        let two = map(Shape::Mirror(2), &[100, 100], &[]);
        assert_eq!(two.shape_now(), Shape::Mirror(2));
        one.shape = Shape::Stripe;
        assert_eq!(one.shape_now(), Shape::Stripe);
    }
}
