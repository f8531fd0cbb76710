//! The checkpoint's image of the index: a chain of runs in the data region.
//!
//! Each run starts with a head that names the next one. The head's CRC covers the run, and is bound
//! to the checkpoint's generation and the run's place. So a stale or misplaced run does not pass.

use std::io;

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::Disk;
use nuri_proto::checksum::{crc64, mix};

use super::BLOCK;
use super::alloc::{MAX_RUN, Run};
use super::bytes::{Fields, Put};
use super::superblock::{CheckpointAt, NONE, Regions};

const MAGIC: u64 = u64::from_le_bytes(*b"NURI-IDX");
const HEAD: usize = 64;
/// Least payload of one block, bytes.
pub const PER_BLOCK: u64 = (BLOCK - HEAD) as u64;

/// Blocks that surely hold an image of `bytes`, however they are cut into runs.
pub fn blocks_for(bytes: u64) -> u64 {
    bytes.div_ceil(PER_BLOCK)
}

fn payload(run: Run) -> usize {
    run.len as usize * BLOCK - HEAD
}

fn seal(run_bytes: &[u8], generation: u64, run: Run) -> u64 {
    crc64(&run_bytes[8..]) ^ mix(&[generation, run.start, u64::from(run.len)])
}

/// Writes the image into `runs` (enough of them) and returns where it starts. Not yet durable.
pub fn write(
    disk: &impl Disk,
    regions: &Regions,
    generation: u64,
    runs: &[Run],
    image: &[u8],
) -> io::Result<CheckpointAt> {
    let mut rest = image;
    for (i, run) in runs.iter().enumerate() {
        let (now, later) = rest.split_at(rest.len().min(payload(*run)));
        rest = later;
        let next = runs.get(i + 1);
        let mut head = Vec::with_capacity(HEAD);
        head.put_u64(0);
        head.put_u64(MAGIC);
        head.put_u64(generation);
        head.put_u32(i as u32);
        head.put_u32(now.len() as u32);
        head.put_u64(next.map_or(NONE, |run| run.start));
        head.put_u32(next.map_or(0, |run| run.len));
        let mut buf = AlignedBuf::zeroed(run.len as usize * BLOCK);
        buf[..head.len()].copy_from_slice(&head);
        buf[HEAD..HEAD + now.len()].copy_from_slice(now);
        let crc = seal(&buf, generation, *run);
        buf[..8].copy_from_slice(&crc.to_le_bytes());
        disk.write_at(regions.block_at(run.start), &buf)?;
    }
    debug_assert!(rest.is_empty(), "too few runs for the image");
    let first = runs.first();
    Ok(CheckpointAt {
        generation,
        first: first.map_or(NONE, |run| run.start),
        blocks: first.map_or(0, |run| run.len),
    })
}

/// Why an image cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("run {0} of the index image at data block {1} is damaged")]
    Damaged(u32, u64),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads a whole image and the runs it lies in.
pub fn read(
    disk: &impl Disk,
    regions: &Regions,
    at: CheckpointAt,
) -> Result<(Vec<u8>, Vec<Run>), ImageError> {
    let (mut image, mut runs) = (Vec::new(), Vec::new());
    let mut next = Run { start: at.first, len: at.blocks };
    while next.start != NONE {
        let index = runs.len() as u32;
        let damaged = ImageError::Damaged(index, next.start);
        let end = next.start.saturating_add(u64::from(next.len));
        if next.len == 0 || next.len > MAX_RUN || end > regions.data_blocks {
            return Err(damaged);
        }
        let mut buf = AlignedBuf::zeroed(next.len as usize * BLOCK);
        disk.read_at(regions.block_at(next.start), &mut buf)?;
        let Some((len, after)) = parse_head(&buf, at.generation, index, next) else {
            return Err(damaged);
        };
        image.extend_from_slice(&buf[HEAD..HEAD + len]);
        runs.push(next);
        next = after;
    }
    Ok((image, runs))
}

/// Payload length and the next run, if the run is what it should be.
fn parse_head(buf: &[u8], generation: u64, index: u32, run: Run) -> Option<(usize, Run)> {
    let mut f = Fields::new(buf);
    let whole = f.u64()? == seal(buf, generation, run)
        && f.u64()? == MAGIC
        && f.u64()? == generation
        && f.u32()? == index;
    let len = f.u32()? as usize;
    let after = Run { start: f.u64()?, len: f.u32()? };
    (whole && len <= payload(run)).then_some((len, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::superblock::Superblock;
    use nuri_io::mem::MemDisk;
    use nuri_proto::id::{ClusterId, Incarnation};

    fn formatted() -> (MemDisk, Superblock) {
        let disk = MemDisk::new();
        let options = crate::store::FormatOptions {
            cluster: ClusterId([0; 16]),
            target: None,
            incarnation: Incarnation(1),
            capacity_bytes: 4 << 20,
            log_bytes: 0,
        };
        let superblock = crate::store::superblock::format(&disk, &options).unwrap();
        (disk, superblock)
    }

    #[test]
    fn chain_of_runs_comes_back_and_damage_is_told() {
        let (disk, superblock) = formatted();
        let regions = &superblock.regions;
        let image: Vec<u8> = (0..20_000u32).map(|i| (i * 7) as u8).collect();
        let runs = [Run { start: 9, len: 2 }, Run { start: 1, len: 1 }, Run { start: 40, len: 3 }];
        let at = write(&disk, regions, 5, &runs, &image).unwrap();
        let (back, back_runs) = read(&disk, regions, at).unwrap();
        assert!(back == image && back_runs == runs);
        assert!(read(&disk, regions, CheckpointAt { generation: 6, ..at }).is_err());
        disk.flip_bit(regions.block_at(1) + 4000, 0);
        assert!(matches!(read(&disk, regions, at), Err(ImageError::Damaged(1, 1))));
    }

    #[test]
    fn blocks_are_enough_however_cut() {
        for bytes in [1, 4032, 4033, 100_000] {
            let single = blocks_for(bytes) * PER_BLOCK;
            assert!(single >= bytes);
        }
    }
}
