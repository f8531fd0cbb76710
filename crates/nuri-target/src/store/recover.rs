//! Reads a store back: the index image, then every log record since. It changes nothing on the
//! disk.
//!
//! Opening and `check` share this code, so what the check proves is what opening sees.

use nuri_io::disk::Disk;

use super::alloc::{FreeMap, Run};
use super::contents::Contents;
use super::error::OpenError;
use super::image::{self, ImageError};
use super::log::{Record, scan};
use super::sums::SumTable;
use super::superblock::{LogStart, NONE, Superblock};

/// A store's content as its disk tells it.
pub struct Recovered {
    pub contents: Contents,
    pub sums: SumTable,
    /// Where the index image lies.
    pub image: Vec<Run>,
    /// Log records replayed.
    pub records: usize,
    /// There were parts of installs that never became real; the disk still tells of them.
    pub dropped: bool,
    /// Where the log goes on, in the generation it was written in.
    pub log_end: LogStart,
    /// Every extent was born before this.
    pub next_birth: u64,
}

/// Loads the image and replays the log.
///
/// # Errors
/// Damage of either; nothing is guessed.
pub fn load(
    disk: &impl Disk,
    superblock: &Superblock,
    cache_bytes: usize,
) -> Result<Recovered, OpenError> {
    let regions = &superblock.regions;
    let (mut contents, image) = load_image(disk, superblock)?;
    let mut sums = SumTable::new(regions, cache_bytes);
    let log = read_log(disk, superblock)?;
    let found = scan(&log, superblock.log, regions.data_blocks)
        .map_err(|d| OpenError::LogDamaged { at: d.at, later: d.later })?;
    let mut next_birth = superblock.next_birth;
    for (seq, record) in &found.records {
        contents.replay(*seq, record);
        if let Record::Write { extents, sums: bound, .. }
        | Record::Stage { extents, sums: bound, .. } = record
        {
            let mut rest = &bound[..];
            for extent in extents {
                next_birth = next_birth.max(extent.birth + 1);
                let (now, later) = rest.split_at(extent.len as usize);
                sums.load(disk, extent.block, extent.len)?;
                sums.set(extent.block, now);
                rest = later;
            }
        }
        sums.trim();
    }
    let log_end = LogStart {
        generation: superblock.log.generation,
        position: found.end,
        seq: found.next_seq,
    };
    let dropped = contents.drop_parts();
    let records = found.records.len();
    Ok(Recovered { contents, sums, image, records, dropped, log_end, next_birth })
}

fn load_image(
    disk: &impl Disk,
    superblock: &Superblock,
) -> Result<(Contents, Vec<Run>), OpenError> {
    if superblock.checkpoint.first == NONE {
        return Ok((Contents::default(), Vec::new()));
    }
    let (bytes, runs) =
        image::read(disk, &superblock.regions, superblock.checkpoint).map_err(|e| match e {
            ImageError::Io(e) => OpenError::Io(e),
            e @ ImageError::Damaged(..) => OpenError::IndexDamaged(e.to_string()),
        })?;
    let contents = Contents::decode(&bytes, superblock.regions.data_blocks)
        .ok_or_else(|| OpenError::IndexDamaged("the image does not parse".to_owned()))?;
    Ok((contents, runs))
}

/// The log region, turned so that it begins where replay begins.
fn read_log(disk: &impl Disk, superblock: &Superblock) -> Result<Vec<u8>, OpenError> {
    let r = &superblock.regions;
    let offset = superblock.log.position % r.log_len;
    let mut bytes = vec![0; r.log_len as usize];
    let (old, new) = bytes.split_at_mut((r.log_len - offset) as usize);
    disk.read_at(r.log_at + offset, old)?;
    disk.read_at(r.log_at, new)?;
    Ok(bytes)
}

/// The free map that follows from what is held; the second value names blocks held twice.
pub fn free_map(found: &Recovered, data_blocks: u64) -> (FreeMap, Vec<String>) {
    let mut free = FreeMap::new(data_blocks);
    let mut twice = Vec::new();
    for run in &found.image {
        if !free.claim(*run) {
            twice.push(format!("index image run at data block {} is held twice", run.start));
        }
    }
    for (key, extent) in found.contents.index.iter() {
        if !free.claim(extent.run()) {
            twice.push(format!(
                "chunk {key:?}: blocks {}..{} lie on data blocks that something else holds \
                 (from {})",
                extent.at,
                extent.end(),
                extent.block
            ));
        }
    }
    (free, twice)
}
