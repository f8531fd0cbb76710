//! What happens to the disks themselves.

use nuri_io::disk::Disk;
use nuri_proto::id::ChunkKey;
use nuri_proto::limit::BLOCK;
use nuri_proto::op::member::Purpose;
use nuri_proto::stripe::Version;
use nuri_target::store::MemberRead;

use super::ground::CELLS;
use super::world::World;
use crate::check::CELL;

const PAGE: usize = BLOCK as usize;

impl World {
    /// Turns a bit over in one block of a chunk that a node has on its disk. False: nothing of the
    /// chunk is there but in the log.
    pub(super) fn rot(&mut self, number: usize, key: ChunkKey) -> bool {
        let mut chunk = vec![0; CELLS * CELL];
        let Some(store) = self.nodes[number].store() else { return false };
        let read = store.read_member(key, 0, &mut chunk, Version::NONE, Purpose::Base);
        if !matches!(read, Ok(MemberRead::Read(_))) {
            return false;
        }
        let (regions, disk) = (store.superblock().regions, &self.nodes[number].disk);
        let blocks: Vec<_> = chunk.chunks(PAGE).filter(|b| b.iter().any(|b| *b != 0)).collect();
        let places: Vec<u64> = blocks_of(&**disk, regions.data_at)
            .filter(|(_, found)| blocks.iter().any(|block| found.starts_with(block)))
            .map(|(at, _)| at)
            .collect();
        let Some(at) = places.get(self.rng.below(places.len() as u64) as usize) else {
            return false;
        };
        let offset = at + self.rng.below(CELL as u64);
        disk.flip_bit(offset, self.rng.below(8) as u32);
        true
    }
}

/// What was ever written on the disk from there on, block by block.
fn blocks_of(disk: &impl Disk, from: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let mut at = from;
    std::iter::from_fn(move || {
        let next = disk.next_written(at).ok()??.start / BLOCK * BLOCK;
        let mut block = vec![0; PAGE];
        disk.read_at(next, &mut block).ok()?;
        at = next + BLOCK;
        Some((next, block))
    })
}
