//! Epochs of the groups that a node's targets belong to: which writes the targets accept, and which
//! reads they answer.
//!
//! EPOCH-1 A write of a group is accepted only in the epoch that this node adopted. A higher epoch
//!    makes the node fetch the map. A lower epoch is over.
//! EPOCH-2 A new map is adopted only once no write that the old one admitted is still running. So a
//!    caller that settles in the new epoch sees all that was accepted in the old one.
//! EPOCH-3 Programs read only from a live member. A member that is being brought up to date may
//!    have missed writes.
//! EPOCH-4 Epochs never go back, not even across a restart. The newest map is noted on the targets
//!    before the node obeys it, and an older map changes nothing.
//! EPOCH-5 A member whose machine was started anew gives no evidence and accepts no write before it
//!    was compared with the others of its group. Its disk may have acknowledged more than it kept.
//!    Then it has lost its newest writes, and would say that they never were. Meanwhile the member
//!    tells others what it holds, and accepts what was computed from them.

use std::collections::HashMap;
use std::time::Duration;

use nuri_proto::Status;
use nuri_proto::id::{Epoch, GroupId, TargetId};
use nuri_proto::map::{Group, Map, Standing};
use nuri_rules::broken;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

/// The map as this node's targets obey it.
#[derive(Default)]
pub struct Epochs {
    view: RwLock<View>,
    /// Before this process began.
    obeyed: Epoch,
    /// Highest epoch that a caller named.
    named: Mutex<Epoch>,
    raised: Condvar,
}

#[derive(Default)]
pub struct View {
    map: Epoch,
    groups: HashMap<GroupId, Group>,
}

impl View {
    fn is_unproven(&self, group: GroupId, target: TargetId) -> bool {
        let group = self.groups.get(&group);
        let own = group.and_then(|g| g.members.iter().find(|m| m.target == target));
        own.is_some_and(|m| m.unproven) && !broken!("trust_restarted")
    }
}

/// Held while a write runs: a new map waits for it.
pub type Entered<'a> = RwLockReadGuard<'a, View>;

impl Epochs {
    /// For targets that obeyed a map of that epoch before.
    pub fn since(obeyed: Option<Epoch>) -> Epochs {
        Epochs { obeyed: obeyed.unwrap_or_default(), ..Epochs::default() }
    }

    /// Obeys the map from now on (EPOCH-2, EPOCH-4).
    pub fn adopt(&self, map: &Map) {
        let redundant = map.groups.iter().filter(|g| g.shape.is_redundant());
        let groups = redundant.map(|g| (g.id, g.clone())).collect();
        let mut view = self.view.write();
        let is_newer = map.epoch > view.map && map.epoch >= self.obeyed;
        if is_newer || broken!("epochs_go_back") {
            *view = View { map: map.epoch, groups };
        }
    }

    /// Epoch of the adopted map.
    pub fn adopted(&self) -> Epoch {
        self.view.read().map
    }

    /// Enters a write of the group on a target, or a question whose answer decides about one
    /// (EPOCH-1, EPOCH-5).
    ///
    /// # Errors
    /// As [`Epochs::enter`]; [`Status::EPOCH`] also for a member that is not proven yet.
    pub fn enter_on(
        &self,
        target: TargetId,
        group: GroupId,
        epoch: Epoch,
    ) -> Result<Entered<'_>, Status> {
        let view = self.enter(group, epoch)?;
        if view.is_unproven(group, target) { Err(Status::EPOCH) } else { Ok(view) }
    }

    /// Enters the group's epoch, as the caller knows it (EPOCH-1).
    ///
    /// # Errors
    /// [`Status::EPOCH`] where the caller or this node knows an older map.
    pub fn enter(&self, group: GroupId, epoch: Epoch) -> Result<Entered<'_>, Status> {
        let view = self.view.read();
        let adopted = view.groups.get(&group).map_or(Epoch(0), |g| g.epoch);
        if epoch > adopted {
            self.name(epoch);
            return Err(Status::EPOCH);
        }
        if epoch < adopted && !broken!("old_epoch_writes") {
            return Err(Status::EPOCH);
        }
        Ok(view)
    }

    /// Whether programs may read the group's chunks here (EPOCH-3, EPOCH-5).
    ///
    /// # Errors
    /// [`Status::BEHIND`]; [`Status::EPOCH`] for a group that this node does not know yet.
    pub fn check_read(&self, group: GroupId, target: TargetId) -> Result<(), Status> {
        let view = self.view.read();
        let known = view.groups.get(&group).ok_or(Status::EPOCH)?;
        let place = known.place(target).ok_or(Status::BEHIND)?;
        let is_live = known.members[place].standing == Standing::Live;
        if view.is_unproven(group, target) {
            return Err(Status::BEHIND);
        }
        if is_live || broken!("read_while_syncing") { Ok(()) } else { Err(Status::BEHIND) }
    }

    fn name(&self, epoch: Epoch) {
        let mut named = self.named.lock();
        if epoch > *named {
            *named = epoch;
            self.raised.notify_all();
        }
    }

    /// Waits until a caller named an epoch that this node does not know, at most so long.
    pub fn wait_named(&self, at_most: Duration) {
        let adopted = self.adopted();
        let mut named = self.named.lock();
        if *named <= adopted {
            self.raised.wait_for(&mut named, at_most);
        } else {
            // Nothing newer came of the last try: do not ask without a pause.
            drop(named);
            std::thread::sleep(at_most.min(Duration::from_millis(20)));
        }
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::layout::Shape;
    use nuri_proto::map::Member;

    use super::*;

    const GROUP: GroupId = GroupId(3);

    fn map(epoch: u64, standing: Standing) -> Map {
        let members =
            vec![Member::new(TargetId(1), standing), Member::new(TargetId(2), Standing::Live)];
        let group = Group { id: GROUP, epoch: Epoch(epoch), shape: Shape::Mirror(2), members };
        Map { epoch: Epoch(epoch), groups: vec![group], ..Map::default() }
    }

    /// Catches `broken!("old_epoch_writes")` and `broken!("epochs_go_back")`.
    #[test]
    fn writes_run_in_the_adopted_epoch_only() {
        let epochs = Epochs::default();
        assert_eq!(epochs.enter(GROUP, Epoch(5)).err(), Some(Status::EPOCH));
        epochs.adopt(&map(5, Standing::Live));
        assert!(epochs.enter(GROUP, Epoch(5)).is_ok());
        assert_eq!(epochs.enter(GROUP, Epoch(4)).err(), Some(Status::EPOCH));
        assert_eq!(epochs.enter(GROUP, Epoch(6)).err(), Some(Status::EPOCH));
        epochs.wait_named(Duration::from_secs(60));
        epochs.adopt(&map(4, Standing::Live));
        assert_eq!(epochs.adopted(), Epoch(5));
        let restarted = Epochs::since(Some(Epoch(5)));
        restarted.adopt(&map(4, Standing::Live));
        assert_eq!(restarted.adopted(), Epoch(0));
        restarted.adopt(&map(5, Standing::Live));
        assert_eq!(restarted.adopted(), Epoch(5));
    }

    /// Catches `broken!("read_while_syncing")`.
    #[test]
    fn programs_read_from_live_members() {
        let epochs = Epochs::default();
        assert_eq!(epochs.check_read(GROUP, TargetId(1)), Err(Status::EPOCH));
        epochs.adopt(&map(5, Standing::Syncing { since: Epoch(4) }));
        assert_eq!(epochs.check_read(GROUP, TargetId(1)), Err(Status::BEHIND));
        assert_eq!(epochs.check_read(GROUP, TargetId(9)), Err(Status::BEHIND));
        assert_eq!(epochs.check_read(GROUP, TargetId(2)), Ok(()));
    }

    /// Catches `broken!("trust_restarted")`.
    #[test]
    fn an_unproven_member_only_tells_what_it_holds() {
        let epochs = Epochs::default();
        let mut unproven = map(5, Standing::Live);
        unproven.groups[0].members[0].unproven = true;
        epochs.adopt(&unproven);
        let enter = |target| epochs.enter_on(TargetId(target), GROUP, Epoch(5)).err();
        assert_eq!([enter(1), enter(2)], [Some(Status::EPOCH), None]);
        assert_eq!(epochs.check_read(GROUP, TargetId(1)), Err(Status::BEHIND));
        assert!(epochs.enter(GROUP, Epoch(5)).is_ok(), "the others look at it");
        epochs.adopt(&map(6, Standing::Live));
        assert_eq!(epochs.enter_on(TargetId(1), GROUP, Epoch(6)).err(), None);
        assert_eq!(epochs.check_read(GROUP, TargetId(1)), Ok(()));
    }

    #[test]
    fn a_new_map_waits_for_writes_under_the_old_one() {
        let epochs = Epochs::default();
        epochs.adopt(&map(5, Standing::Live));
        let running = epochs.enter(GROUP, Epoch(5)).unwrap();
        std::thread::scope(|scope| {
            let adopting = scope.spawn(|| epochs.adopt(&map(6, Standing::Live)));
            std::thread::sleep(Duration::from_millis(30));
            assert!(!adopting.is_finished());
            drop(running);
            adopting.join().unwrap();
        });
        assert_eq!(epochs.adopted(), Epoch(6));
    }
}
