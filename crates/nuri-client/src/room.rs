//! What room the targets have, so that "no space left" comes at the write that found none.
//!
//! What is written behind is accepted before any target gave it room. So a mount accepts no more
//! than its part of what the targets have left, as the authority told it last; a write beyond is
//! written through (`through.rs`). What the authority tells is old by up to the time after which it
//! would call a node down: so what was accepted in that time counts as not yet told of.
//!
//! That is no reservation. Where mounts begin to write all at once, or the file system under a
//! target fills up, a target may refuse what was accepted. That is told at the next sync or close,
//! and the group is written through for a while.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use nuri_proto::Status;
use nuri_proto::clock::{FAILURE_DETECTION, HEARTBEAT};
use nuri_proto::id::{GroupId, TargetId};
use nuri_proto::op::cluster::MountReply;
use parking_lot::Mutex;

/// Least part of a target's room that a write takes.
const BLOCK: u64 = 4096;
/// Of each target and for each mount, what is not counted on: a write to a stripe takes room for
/// the old and the new state of its chunks until it is decided, parity a whole chunk for little.
const MARGIN: u64 = 16 << 20;
/// Words of the authority until one is sure to tell of a write, and one more for those on the way.
const WORDS: usize = (FAILURE_DETECTION.as_millis() / HEARTBEAT.as_millis()) as usize + 1;
/// A group that refused is written through at least this long, and for longer at most until a
/// write found room.
const REFUSED: Duration = Duration::from_secs(10);
const FORGOTTEN: Duration = Duration::from_secs(60);

/// See the module's text.
#[derive(Default)]
pub(crate) struct Room {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// By target. Those that nobody told of are taken to have room.
    left: HashMap<TargetId, u64>,
    /// Of these, the least; none before the first word.
    least: Option<u64>,
    /// Since each of the last words, the latest first.
    since: VecDeque<Since>,
    refused: HashMap<GroupId, Instant>,
}

/// The time from one word of the authority to the next.
#[derive(Default)]
struct Since {
    mounts: u64,
    /// When it began.
    buffered: u64,
    accepted: u64,
}

impl Room {
    /// The authority told what is left; so many bytes are still buffered here.
    pub(crate) fn told(&self, reply: &MountReply, buffered: u64, now: Instant) {
        let mut known = self.known.lock();
        known.left.extend(reply.rooms.iter().copied());
        known.least = known.left.values().min().copied();
        let mounts = u64::from(reply.mounts.max(1));
        known.since.push_front(Since { mounts, buffered, accepted: 0 });
        known.since.truncate(WORDS);
        known.refused.retain(|_, at| now.duration_since(*at) < FORGOTTEN);
    }

    /// Counts a write of which a target gets so many bytes. `None` where all targets have room for
    /// it; else how much one must have, for [`Room::has`].
    pub(crate) fn take(&self, bytes: u64) -> Option<u64> {
        if cfg!(nuri_break = "room_unasked") {
            return None;
        }
        let mut known = self.known.lock();
        known.since.front_mut()?.accepted += bytes.next_multiple_of(BLOCK);
        let accepted: u64 = known.since.iter().map(|since| since.accepted).sum();
        let buffered = known.since.iter().map(|since| since.buffered).max().unwrap_or(0);
        let mounts = known.since.iter().map(|since| since.mounts).max().unwrap_or(1);
        let needed = (accepted + buffered + MARGIN) * mounts;
        let is_ample = known.least.is_none_or(|least| needed <= least);
        if is_ample && known.refused.is_empty() { None } else { Some(needed) }
    }

    /// Whether each of the group's targets has so much left.
    pub(crate) fn has(
        &self,
        needed: u64,
        group: GroupId,
        mut targets: impl Iterator<Item = TargetId>,
    ) -> bool {
        let known = self.known.lock();
        !known.refused.contains_key(&group)
            && targets.all(|target| known.left.get(&target).is_none_or(|left| needed <= *left))
    }

    /// What became of a push to the group: bytes that it took room for, or why it failed.
    pub(crate) fn heard(&self, group: GroupId, outcome: Result<u64, Status>, now: Instant) {
        let mut known = self.known.lock();
        match outcome {
            Err(Status::NOSPC) => {
                known.refused.insert(group, now);
            }
            Ok(1..) if !known.refused.is_empty() => {
                known.refused.retain(|g, at| *g != group || now.duration_since(*at) < REFUSED);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: GroupId = GroupId(1);
    const FAR: GroupId = GroupId(2);
    const PLENTY: u64 = 1 << 40;

    fn told(room: &Room, near: u64, far: u64, mounts: u32, buffered: u64) {
        let rooms = vec![(TargetId(1), near), (TargetId(2), far)];
        room.told(&MountReply { rooms, mounts }, buffered, Instant::now());
    }

    fn take(room: &Room, group: GroupId, bytes: u64) -> bool {
        let targets = [TargetId(group.0)].into_iter();
        room.take(bytes).is_none_or(|needed| room.has(needed, group, targets))
    }

    #[test]
    fn what_was_accepted_counts_until_it_must_have_been_told_of() {
        let room = Room::default();
        assert!(take(&room, NEAR, PLENTY), "nothing is known yet");
        told(&room, (30 << 20) + MARGIN, PLENTY, 1, 0);
        assert!(take(&room, NEAR, 30 << 20));
        assert!(!take(&room, NEAR, 1));
        for _ in 1..WORDS {
            told(&room, (30 << 20) + MARGIN, PLENTY, 1, 0);
            assert!(!take(&room, NEAR, 0), "the word may be from before");
        }
        told(&room, (30 << 20) + MARGIN, PLENTY, 1, 9 << 20);
        assert!(take(&room, NEAR, 21 << 20) && !take(&room, NEAR, 1), "what is buffered counts");
    }

    #[test]
    fn mounts_share_and_short_writes_take_whole_blocks() {
        let room = Room::default();
        told(&room, 4 * 8192 + 4 * MARGIN, PLENTY, 4, 0);
        assert!(take(&room, NEAR, 1) && take(&room, NEAR, 1));
        assert!(!take(&room, NEAR, 1));
    }

    #[test]
    fn a_mount_that_was_not_counted_once_still_counts() {
        let room = Room::default();
        told(&room, PLENTY, PLENTY, 2, 0);
        told(&room, 8192 + MARGIN, PLENTY, 1, 0);
        assert!(!take(&room, NEAR, 1));
    }

    #[test]
    fn only_files_on_the_full_target_are_written_through() {
        let room = Room::default();
        told(&room, 0, PLENTY, 1, 0);
        assert!(!take(&room, NEAR, 4096));
        assert!(take(&room, FAR, 4096));
        room.told(&MountReply { rooms: Vec::new(), mounts: 1 }, 0, Instant::now());
        assert!(!take(&room, NEAR, 4096), "what nobody tells of is as before");
    }

    #[test]
    fn a_group_that_refused_is_tried_again_later() {
        let (room, start) = (Room::default(), Instant::now());
        told(&room, PLENTY, PLENTY, 1, 0);
        room.heard(NEAR, Err(Status::IO), start);
        assert!(take(&room, NEAR, 4096), "another error says nothing of room");
        room.heard(NEAR, Err(Status::NOSPC), start);
        assert!(!take(&room, NEAR, 4096) && take(&room, FAR, 4096));
        room.heard(NEAR, Ok(4096), start + REFUSED / 2);
        assert!(!take(&room, NEAR, 4096), "a little may find room where more does not");
        room.heard(NEAR, Ok(0), start + REFUSED);
        assert!(!take(&room, NEAR, 4096), "an overwrite needs no room");
        room.heard(NEAR, Ok(4096), start + REFUSED);
        assert!(take(&room, NEAR, 4096));
        room.heard(NEAR, Err(Status::NOSPC), start);
        let later = start + FORGOTTEN;
        room.told(&MountReply { rooms: Vec::new(), mounts: 1 }, 0, later);
        assert!(take(&room, NEAR, 4096), "where nobody tries");
    }
}
