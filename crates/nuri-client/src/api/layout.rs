//! The client's API: layouts, and how much room the space has.

use nuri_proto::Status;
use nuri_proto::id::{GroupId, Ino};
use nuri_proto::layout::{Layout, LayoutPolicy};
use nuri_proto::map::{Map, Standing, TargetState};
use nuri_proto::op::meta::{LayoutGet, LayoutReply, LayoutSet, StatFs};

use crate::client::Client;

impl Client {
    /// A file's layout, or what a directory's new files inherit.
    ///
    /// # Errors
    /// The server's.
    pub fn layout(&self, ino: Ino) -> Result<LayoutReply, Status> {
        self.journal.flush_of(ino)?;
        self.session.call(&LayoutGet { ino })
    }

    /// Bytes of a file that cannot be read now: their groups miss too many members.
    ///
    /// # Errors
    /// The server's.
    pub fn out_of_reach(&self, ino: Ino) -> Result<u64, Status> {
        let LayoutReply::File(_, layout, size) = self.layout(ino)? else { return Ok(0) };
        let map = self.cluster.state()?.map;
        Ok(bytes_on(&layout, size, |group| !can_be_read(&map, group)))
    }

    /// Sets what a directory's new files inherit.
    ///
    /// # Errors
    /// `NOTDIR` for other inodes, `INVAL` for what cannot be stored.
    pub fn set_layout(&self, ino: Ino, policy: LayoutPolicy) -> Result<(), Status> {
        self.journal.flush()?;
        self.session.change(&LayoutSet { ino, policy }, &[])
    }

    /// (bytes in all, bytes used, inodes used).
    ///
    /// # Errors
    /// Where a server does not answer.
    pub fn statfs(&self) -> Result<(u64, u64, u64), Status> {
        let (size, used) = self.cluster.state()?.map.usable();
        let counts = self.session.call(&StatFs {})?;
        Ok((size, used, counts.inodes))
    }
}

/// Whether enough members of the group are there.
fn can_be_read(map: &Map, id: GroupId) -> bool {
    let Some(group) = map.group(id) else { return false };
    let serves = |t| map.target(t).is_some_and(|t| t.state == TargetState::Up);
    let is_there = |m: &&nuri_proto::map::Member| m.standing == Standing::Live && serves(m.target);
    group.members.iter().filter(is_there).count() >= group.shape.data()
}

/// Bytes of a file of this size that lie on some of its groups.
fn bytes_on(layout: &Layout, size: u64, are_meant: impl Fn(GroupId) -> bool) -> u64 {
    let mut bytes = 0;
    for component in &layout.components {
        let span = size.min(component.end).saturating_sub(component.start);
        let stripe = component.chunk_size.bytes() * component.shape.data() as u64;
        let (stripes, width) = (span.div_ceil(stripe), component.groups.len() as u64);
        let meant = component.groups.iter().zip(0..).filter(|(group, _)| are_meant(**group));
        for (_, first) in meant.filter(|(_, first)| *first < stripes) {
            let own = (stripes - first).div_ceil(width);
            let has_last = (stripes - 1) % width == first;
            bytes += own * stripe - if has_last { stripes * stripe - span } else { 0 };
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::PoolId;
    use nuri_proto::layout::{ChunkSize, Component, Shape};

    use super::*;

    #[test]
    fn bytes_are_counted_by_group() {
        const MIB: u64 = 1 << 20;
        let of = |shape| Layout {
            generation: 1,
            components: vec![Component {
                start: 0,
                end: u64::MAX,
                shape,
                chunk_size: ChunkSize::DEFAULT,
                pool: PoolId(1),
                groups: vec![GroupId(4), GroupId(5)],
            }],
        };
        let on = |shape, size, group| bytes_on(&of(shape), size, |g| g == GroupId(group));
        let size = 2 * MIB + 100;
        assert_eq!(on(Shape::Stripe, size, 4), MIB + 100);
        assert_eq!(on(Shape::Stripe, size, 5), MIB);
        assert_eq!(on(Shape::Mirror(2), MIB, 5), 0);
        let parity = Shape::Parity { k: 3, m: 1 };
        assert_eq!([4, 5].map(|g| on(parity, 7 * MIB, g)), [4 * MIB, 3 * MIB]);
        assert_eq!([4, 5, 6].map(|g| on(parity, 0, g)), [0; 3]);
    }
}
