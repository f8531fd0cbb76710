//! Checks a stopped store: superblocks, log, index image, block ownership, every checksum.
//!
//! The check only reads. Each problem is one sentence for a person. Blocks that the log shadows are
//! not verified on the disk: the next opening rewrites them, and the log's own checksums cover
//! them.

use std::collections::BTreeSet;

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::Disk;
use nuri_proto::id::{ChunkKey, GroupId, TargetId};

use super::BLOCK;
use super::index::Extent;
use super::read::verify;
use super::recover::{self, Recovered};
use super::superblock::{Regions, Superblock};

/// Checksum pages kept while checking, bytes.
const CACHE: usize = 8 << 20;
/// Problems listed by name; more are only counted.
const MAX_LISTED: usize = 100;

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    pub target: TargetId,
    pub chunks: u64,
    pub extents: u64,
    pub blocks: u64,
    pub log_records: u64,
    pub overlay_blocks: u64,
    /// Data blocks that nothing holds.
    pub free_blocks: u64,
    /// At most a hundred sentences.
    pub problems: Vec<String>,
    pub problem_count: u64,
    /// What is worth knowing and no fault of the store.
    pub notes: Vec<String>,
}

impl CheckReport {
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    fn problem(&mut self, text: String) {
        self.problem_count += 1;
        if self.problems.len() < MAX_LISTED {
            self.problems.push(text);
        }
    }
}

/// Checks the store on `disk`, which nobody may have open.
pub fn check(disk: &impl Disk) -> CheckReport {
    let mut report = CheckReport::default();
    let superblock = match Superblock::load(disk) {
        Ok(superblock) => superblock,
        Err(e) => {
            report.problem(format!("superblock: {e}"));
            return report;
        }
    };
    report.target = superblock.target;
    for copy in Superblock::damaged_copies(disk) {
        report.notes.push(format!(
            "superblock copy {copy} is damaged, as a crash may leave it; the other one is used and \
             opening writes both anew"
        ));
    }
    let mut found = match recover::load(disk, &superblock, CACHE) {
        Ok(found) => found,
        Err(e) => {
            report.problem(e.to_string());
            return report;
        }
    };
    let (free, twice) = recover::free_map(&found, superblock.regions.data_blocks);
    twice.into_iter().for_each(|text| report.problem(text));
    (report.chunks, report.extents) = found.contents.index.counts();
    report.log_records = found.records as u64;
    report.overlay_blocks = found.contents.overlay_len() as u64;
    report.free_blocks = free.free();
    let held = superblock.regions.data_blocks - free.free();
    let image: u64 = found.image.iter().map(|run| u64::from(run.len)).sum();
    report.blocks = found.contents.index.blocks();
    if held != image + report.blocks {
        report.problem(format!(
            "{held} data blocks are held, but chunks hold {} and the index image {image}",
            report.blocks
        ));
    }
    for (key, held) in found.contents.members.beyond(superblock.map_epoch) {
        let (version, epoch) = (held.newest(), superblock.map_epoch);
        report.problem(format!(
            "chunk {key:?}: version {version} is of an epoch to come, the last one was {epoch}"
        ));
    }
    for key in found.contents.lost_staged() {
        report.problem(format!("chunk {key:?}: blocks are staged, but no staged write is named"));
    }
    let extents: Vec<(ChunkKey, Extent)> = found.contents.index.iter().collect();
    for (key, extent) in extents {
        check_extent(disk, &superblock.regions, &mut found, key, extent, &mut report);
    }
    report
}

/// Groups of stripes that take no writes before one of an epoch that is to come.
pub fn promised_beyond(disk: &impl Disk) -> Vec<GroupId> {
    let Ok(superblock) = Superblock::load(disk) else { return Vec::new() };
    let Ok(found) = recover::load(disk, &superblock, CACHE) else { return Vec::new() };
    let last = superblock.map_epoch;
    let beyond = found.contents.members.beyond(last).into_iter();
    let groups = beyond.filter(|(_, held)| held.floor.epoch() > last).map(|(_, held)| held.group);
    groups.collect::<BTreeSet<_>>().into_iter().collect()
}

fn check_extent(
    disk: &impl Disk,
    regions: &Regions,
    found: &mut Recovered,
    key: ChunkKey,
    extent: Extent,
    report: &mut CheckReport,
) {
    let mut data = AlignedBuf::zeroed(extent.len as usize * BLOCK);
    let read = disk
        .read_at(regions.block_at(extent.block), &mut data)
        .and_then(|()| found.sums.load(disk, extent.block, extent.len));
    if let Err(e) = read {
        report.problem(format!("chunk {key:?}: blocks from {} cannot be read: {e}", extent.at));
        return;
    }
    for (i, bytes) in data.chunks_exact(BLOCK).enumerate() {
        let block = extent.at + i as u32;
        if found.contents.small(key, block).is_some() {
            continue;
        }
        let one = Extent { at: block, len: 1, block: extent.block + i as u64, ..extent };
        let sum = found.sums.get(one.block).unwrap_or_default();
        if verify(key, &one, &[sum], bytes).is_err() {
            report.problem(format!(
                "chunk {key:?}: block {block} (data block {}) fails its checksum",
                one.block
            ));
        }
    }
    found.sums.trim();
}
