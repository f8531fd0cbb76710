//! The superblock: whose store this is, where its regions lie, and where its checkpoint and log
//! start.
//!
//! Two copies of 4 KiB lie at bytes 0 and 4096, each with a CRC-64 and a sequence number. The
//! newest whole copy wins. An update writes and syncs one copy, then the other, before anything
//! that the older copy points to is reused. So either copy alone opens the store. Damage of both is
//! an error, never a reason to format.

use std::io;

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::Disk;
use nuri_proto::checksum::crc64;
use nuri_proto::id::{ClusterId, Epoch, Incarnation, TargetId};
use nuri_proto::limit::TARGET_MAGIC;

use super::BLOCK;
use super::bytes::{Fields, Put};
use super::error::{FormatError, OpenError, is_full};
use super::index::BIRTH_END;

/// Format version that this program writes and reads.
pub const VERSION: u32 = 1;
/// Compatible feature: the authority refused this state as older than what was known of the target.
/// However often it is opened since, it is no newer for that.
const DOUBTED: u64 = 1;
/// Incompatible feature: log and image may tell of members of redundant groups.
const MEMBERS: u64 = 1;
/// Feature bits that this program knows. A store without them is read, and has them from then on.
const KNOWN_INCOMPATIBLE: u64 = MEMBERS;
const KNOWN_READ_ONLY: u64 = 0;
const CRC_AT: usize = BLOCK - 8;
/// Where the regions begin: behind the two copies.
const REGIONS_AT: u64 = 2 * BLOCK as u64;
/// Smallest log, bytes: room for the longest records while a checkpoint runs.
const MIN_LOG: u64 = 512 << 10;
/// The log's part of a target, where that is more than a small log: it is written once when the
/// target is made.
const LOG_SHARE: u64 = 128;
const SMALL_LOG: u64 = 8 << 20;
/// Smallest store, bytes.
pub const MIN_CAPACITY: u64 = 2 << 20;
/// "No run".
pub const NONE: u64 = u64::MAX;

/// Where everything lies, bytes from the start of the disk. All on 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Regions {
    pub log_at: u64,
    pub log_len: u64,
    pub sums_at: u64,
    pub sums_len: u64,
    pub data_at: u64,
    pub data_blocks: u64,
}

impl Regions {
    fn plan(capacity: u64, log_len: u64) -> Option<Regions> {
        let block = BLOCK as u64;
        let share = (capacity / LOG_SHARE).max(SMALL_LOG).min(capacity / 4);
        let log_len = log_len.min(share).max(MIN_LOG) / block * block;
        let rest = capacity.checked_sub(REGIONS_AT + log_len + block)?;
        let data_blocks = rest / (block + 8);
        let sums_len = (data_blocks * 8).next_multiple_of(block);
        let sums_at = REGIONS_AT + log_len;
        let data_at = sums_at + sums_len;
        let log_at = REGIONS_AT;
        Some(Regions { log_at, log_len, sums_at, sums_len, data_at, data_blocks })
    }

    /// End of the last region, bytes.
    pub fn end(&self) -> u64 {
        self.data_at + self.data_blocks * BLOCK as u64
    }

    /// Byte address of a data block.
    pub fn block_at(&self, block: u64) -> u64 {
        self.data_at + block * BLOCK as u64
    }

    fn sane(&self) -> bool {
        let block = BLOCK as u64;
        let bound = 1u64 << 60;
        let fields = [self.log_at, self.log_len, self.sums_at, self.sums_len, self.data_at];
        fields.iter().all(|f| f % block == 0 && *f < bound)
            && self.data_blocks < bound / block
            && self.log_at >= REGIONS_AT
            && self.log_len >= MIN_LOG
            && self.sums_at >= self.log_at + self.log_len
            && self.sums_len / 8 >= self.data_blocks
            && self.data_at >= self.sums_at + self.sums_len
    }
}

/// What a new store should be.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    pub cluster: ClusterId,
    /// `None`: assigned later, once.
    pub target: Option<TargetId>,
    /// Random, so that an emptied target is known as another one.
    pub incarnation: Incarnation,
    /// Bytes of the disk to use; a file grows to it (sparse).
    pub capacity_bytes: u64,
    /// Bytes of the log; cut to a part of the capacity.
    pub log_bytes: u64,
}

impl FormatOptions {
    /// Log length when nobody chose one, bytes.
    pub const LOG_BYTES: u64 = 64 << 20;
}

/// The decoded superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    pub sequence: u64,
    pub cluster: ClusterId,
    /// 0 while not assigned.
    pub target: TargetId,
    pub incarnation: Incarnation,
    pub regions: Regions,
    pub compatible: u64,
    pub checkpoint: CheckpointAt,
    pub log: LogStart,
    /// No extent of the checkpoint was born at or after this.
    pub next_birth: u64,
    /// The newest map that this target obeyed: it obeys no older one.
    pub map_epoch: Epoch,
}

/// Where the index's image starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointAt {
    pub generation: u64,
    /// First data block of the first run, [`NONE`] for an empty index.
    pub first: u64,
    pub blocks: u32,
}

/// Where replay of the log starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogStart {
    /// New at every opening, so that remains of a torn write never look like records.
    pub generation: u64,
    /// Byte position in the endless stream that the log region holds a window of.
    pub position: u64,
    /// Sequence number of the record there.
    pub seq: u64,
}

impl Superblock {
    /// Whether this state was refused as older than what was known of the target.
    pub fn is_doubted(&self) -> bool {
        self.compatible & DOUBTED != 0
    }

    pub(super) fn doubt(&mut self, doubted: bool) {
        self.compatible = self.compatible & !DOUBTED | if doubted { DOUBTED } else { 0 };
    }

    fn encode(&self) -> AlignedBuf {
        let mut out = TARGET_MAGIC.to_vec();
        out.put_u32(VERSION);
        out.put_u32(0);
        [self.compatible, 0, MEMBERS, self.sequence].into_iter().for_each(|f| out.put_u64(f));
        out.extend_from_slice(&self.cluster.0);
        out.put_u32(self.target.0);
        out.put_u32(self.checkpoint.blocks);
        let r = &self.regions;
        let fields = [
            self.incarnation.0,
            r.log_at,
            r.log_len,
            r.sums_at,
            r.sums_len,
            r.data_at,
            r.data_blocks,
            self.checkpoint.generation,
            self.checkpoint.first,
            self.log.generation,
            self.log.position,
            self.log.seq,
            self.next_birth,
            self.map_epoch.0,
        ];
        fields.into_iter().for_each(|f| out.put_u64(f));
        let mut block = AlignedBuf::zeroed(BLOCK);
        block[..out.len()].copy_from_slice(&out);
        let crc = crc64(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Parses one copy. Whole copies of other versions are errors of their own.
    fn decode(block: &[u8]) -> Result<Superblock, OpenError> {
        if block.len() != BLOCK || block[..8] != *TARGET_MAGIC {
            return Err(OpenError::NotAStore);
        }
        let stored = Fields::new(&block[CRC_AT..]).u64();
        if stored != Some(crc64(&block[..CRC_AT])) {
            return Err(OpenError::SuperblocksDamaged);
        }
        let mut f = Fields::new(&block[8..CRC_AT]);
        let version = f.u32().unwrap_or_default();
        if version != VERSION {
            return Err(OpenError::Version(version, VERSION));
        }
        Self::fields(&mut f).unwrap_or(Err(OpenError::SuperblocksDamaged))
    }

    fn fields(f: &mut Fields<'_>) -> Option<Result<Superblock, OpenError>> {
        f.u32()?;
        let compatible = f.u64()?;
        let unknown = f.u64()? & !KNOWN_READ_ONLY | f.u64()? & !KNOWN_INCOMPATIBLE;
        if unknown != 0 {
            return Some(Err(OpenError::Features(unknown)));
        }
        let sequence = f.u64()?;
        let cluster = ClusterId(f.take(16)?.try_into().ok()?);
        let target = TargetId(f.u32()?);
        let blocks = f.u32()?;
        let incarnation = Incarnation(f.u64()?);
        let (log_at, log_len, sums_at) = (f.u64()?, f.u64()?, f.u64()?);
        let (sums_len, data_at, data_blocks) = (f.u64()?, f.u64()?, f.u64()?);
        let regions = Regions { log_at, log_len, sums_at, sums_len, data_at, data_blocks };
        let checkpoint = CheckpointAt { generation: f.u64()?, first: f.u64()?, blocks };
        let log = LogStart { generation: f.u64()?, position: f.u64()?, seq: f.u64()? };
        let next_birth = f.u64()?;
        let map_epoch = Epoch(f.u64()?);
        let position = log.position.is_multiple_of(BLOCK as u64);
        if !regions.sane() || !position || next_birth >= BIRTH_END {
            return Some(Err(OpenError::SuperblocksDamaged));
        }
        Some(Ok(Superblock {
            sequence,
            cluster,
            target,
            incarnation,
            regions,
            compatible,
            checkpoint,
            log,
            next_birth,
            map_epoch,
        }))
    }

    /// Reads both copies and returns the newest whole one. A copy of another version or with
    /// unknown features wins over silence: the store is then not opened.
    ///
    /// # Errors
    /// Says what is wrong with the better of the two copies.
    pub fn load(disk: &impl Disk) -> Result<Superblock, OpenError> {
        let mut best: Result<Superblock, OpenError> = Err(OpenError::NotAStore);
        let len = disk.len()?;
        for copy in 0..2u64 {
            let mut block = AlignedBuf::zeroed(BLOCK);
            if len < (copy + 1) * BLOCK as u64 {
                continue;
            }
            disk.read_at(copy * BLOCK as u64, &mut block)?;
            best = match (best, Superblock::decode(&block)) {
                (Ok(a), Ok(b)) => Ok(if b.sequence > a.sequence { b } else { a }),
                (Err(e @ (OpenError::Version(..) | OpenError::Features(_))), _) => Err(e),
                (_, Err(e @ (OpenError::Version(..) | OpenError::Features(_)))) => Err(e),
                (Ok(a), Err(_)) => Ok(a),
                (Err(_), Ok(b)) => Ok(b),
                (Err(OpenError::NotAStore), Err(e)) => Err(e),
                (Err(e), Err(_)) => Err(e),
            };
        }
        let found = best?;
        if len < found.regions.end() {
            return Err(OpenError::Short(len, found.regions.end()));
        }
        Ok(found)
    }

    /// Numbers of the copies (0, 1) that do not parse.
    pub fn damaged_copies(disk: &impl Disk) -> Vec<u64> {
        let mut block = AlignedBuf::zeroed(BLOCK);
        let mut bad = |copy: u64| {
            let read = disk.read_at(copy * BLOCK as u64, &mut block);
            read.is_err() || Superblock::decode(&block).is_err()
        };
        (0..2).filter(|copy| bad(*copy)).collect()
    }

    /// Makes this superblock the valid one: copy A, sync, copy B, sync. A crash between leaves
    /// the old and the new one, and both still open.
    pub fn store(&self, disk: &impl Disk) -> io::Result<()> {
        let block = self.encode();
        disk.write_at(0, &block)?;
        disk.sync()?;
        disk.write_at(BLOCK as u64, &block)?;
        disk.sync()
    }
}

/// Writes an empty store. Log and checksum table take their room now; the log is written with
/// zeros, so that a later sync of its records needs no file-system journal commit. The
/// superblocks come last: a crash before leaves no store.
///
/// # Errors
/// A capacity too small, too little room, or the disk's errors. A file that was empty is again.
pub fn format(disk: &impl Disk, options: &FormatOptions) -> Result<Superblock, FormatError> {
    let small = FormatError::TooSmall(options.capacity_bytes, MIN_CAPACITY);
    if options.capacity_bytes < MIN_CAPACITY {
        return Err(small);
    }
    let regions = Regions::plan(options.capacity_bytes, options.log_bytes).ok_or(small)?;
    let was_empty = disk.is_empty()?;
    let made = prepare(disk, options, &regions).and_then(|()| start(disk, options, regions));
    made.map_err(|error| {
        if was_empty {
            let _ = disk.set_len(0);
        }
        match is_full(&error) {
            true => FormatError::NoRoom(regions.data_at.div_ceil(1 << 20)),
            false => FormatError::Io(error),
        }
    })
}

fn prepare(disk: &impl Disk, options: &FormatOptions, regions: &Regions) -> io::Result<()> {
    let zeros = AlignedBuf::zeroed(1 << 20);
    if disk.len()? >= REGIONS_AT {
        disk.write_at(0, &zeros[..REGIONS_AT as usize])?;
        disk.sync()?;
    }
    disk.allocate(0, regions.data_at)?;
    if disk.len()? < options.capacity_bytes {
        disk.set_len(options.capacity_bytes)?;
    }
    let log_end = regions.log_at + regions.log_len;
    let mut at = regions.log_at;
    while at < log_end {
        let take = (log_end - at).min(zeros.len() as u64);
        disk.write_at(at, &zeros[..take as usize])?;
        at += take;
    }
    disk.sync()
}

fn start(disk: &impl Disk, options: &FormatOptions, regions: Regions) -> io::Result<Superblock> {
    let superblock = Superblock {
        sequence: 1,
        cluster: options.cluster,
        target: options.target.unwrap_or(TargetId(0)),
        incarnation: options.incarnation,
        regions,
        compatible: 0,
        checkpoint: CheckpointAt { generation: 0, first: NONE, blocks: 0 },
        log: LogStart { generation: options.incarnation.0, position: 0, seq: 1 },
        next_birth: 1,
        map_epoch: Epoch(0),
    };
    superblock.store(disk)?;
    Ok(superblock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuri_io::mem::MemDisk;
    use nuri_io::rng::Rng;

    fn options(capacity_bytes: u64) -> FormatOptions {
        FormatOptions {
            cluster: ClusterId([3; 16]),
            target: None,
            incarnation: Incarnation(77),
            capacity_bytes,
            log_bytes: FormatOptions::LOG_BYTES,
        }
    }

    #[test]
    fn regions_fill_the_disk_and_do_not_overlap() {
        for capacity in [MIN_CAPACITY, 5_000_001, 1 << 30, 100 << 40] {
            let r = Regions::plan(capacity, FormatOptions::LOG_BYTES).unwrap();
            assert!(r.sane(), "{r:?}");
            assert!(r.end() <= capacity && capacity - r.end() < 3 * BLOCK as u64, "{r:?}");
        }
        let disk = MemDisk::new();
        let small = format(&disk, &options(MIN_CAPACITY - 1));
        assert!(matches!(small, Err(FormatError::TooSmall(..))));
    }

    #[test]
    fn a_cut_at_any_moment_of_an_update_leaves_the_old_or_the_new_one() {
        let disk = MemDisk::recording();
        let old = format(&disk, &options(4 << 20)).unwrap();
        let born = disk.events();
        let new = Superblock { sequence: 2, target: TargetId(9), ..old.clone() };
        new.store(&disk).unwrap();
        for cut in born..=disk.events() {
            for seed in 0..50 {
                let image = disk.image_at_event(cut, &mut Rng::new(seed));
                let found = Superblock::load(&image).unwrap();
                assert!(found == new || (found == old && cut < disk.events()), "cut {cut}");
            }
        }
    }
}
