//! Checksums of data blocks: a flat table on the disk behind a bounded page cache.
//!
//! There are eight bytes per data block: the CRC-64 of the content, mixed with the block's address
//! and birth. So a lost or misdirected write does not pass. The log carries every checksum since
//! the last checkpoint, so only checkpoints need to write changed pages. Unchanged pages may be
//! dropped at any time. An entry of a block that no extent holds means nothing.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::{Disk, DiskOp};
use nuri_proto::checksum::{crc64, mix};
use nuri_proto::id::ChunkKey;

use super::BLOCK;
use super::bytes::words;
use super::shadow;
use super::superblock::Regions;

/// Entries of a table page.
const PER_PAGE: u64 = BLOCK as u64 / 8;
/// Pages read at once: neighbours are wanted soon by sequential work.
const GROUP: u64 = 8;

type Sums = Arc<[u64; PER_PAGE as usize]>;

/// Binds a content checksum to where and when the block was born. A block keeps it when it moves
/// from beside the base into it.
pub fn bind(raw: u64, key: ChunkKey, block: u32, birth: u64) -> u64 {
    let key = shadow::base_of(key);
    let place = u64::from(key.component) << 32 | u64::from(key.stripe);
    raw ^ mix(&[key.object.0, place, u64::from(block), birth])
}

/// Checksums of the whole blocks of `data`.
pub fn raw_sums(data: &[u8]) -> Vec<u64> {
    data.chunks_exact(BLOCK).map(crc64).collect()
}

struct Page {
    sums: Sums,
    state: PageState,
    used: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PageState {
    Clean,
    /// Differs from the disk.
    Dirty,
    /// A checkpoint is writing it as it is.
    Writing,
    /// Changed again while being written.
    Redirtied,
}

/// See the module's text.
pub struct SumTable {
    at: u64,
    page_count: u64,
    pages: HashMap<u64, Page>,
    order: VecDeque<u64>,
    cap: usize,
    dirty: usize,
    /// Counts checkpoints, so that pages read before one are not taken for current after it.
    epoch: u64,
}

/// Table pages to be read from the disk.
pub struct Group {
    first: u64,
    epoch: u64,
    pub at: u64,
    pub bytes: usize,
}

impl SumTable {
    pub fn new(regions: &Regions, cache_bytes: usize) -> SumTable {
        SumTable {
            at: regions.sums_at,
            page_count: regions.sums_len / BLOCK as u64,
            pages: HashMap::new(),
            order: VecDeque::new(),
            cap: (cache_bytes / BLOCK).max(16),
            dirty: 0,
            epoch: 0,
        }
    }

    /// Changed pages have taken half of the cache (`num` 1, `den` 2) or another part of it.
    pub fn dirty_beyond(&self, num: usize, den: usize) -> bool {
        self.dirty * den > self.cap * num
    }

    /// A page of these blocks' entries that is not in memory.
    pub fn missing(&self, block: u64, len: u32) -> Option<u64> {
        let last = (block + u64::from(len.max(1)) - 1) / PER_PAGE;
        (block / PER_PAGE..=last).find(|page| !self.pages.contains_key(page))
    }

    /// The pages to read for `page`.
    pub fn group(&self, page: u64) -> Group {
        let first = page / GROUP * GROUP;
        let bytes = GROUP.min(self.page_count - first) as usize * BLOCK;
        Group { first, epoch: self.epoch, at: self.at + first * BLOCK as u64, bytes }
    }

    /// Takes over pages read from the disk; what is in memory already is newer and stays. Pages
    /// read before a checkpoint ended may be old and are ignored.
    pub fn insert(&mut self, group: &Group, bytes: &[u8]) {
        if group.epoch != self.epoch {
            return;
        }
        for (i, bytes) in bytes.chunks_exact(BLOCK).enumerate() {
            let number = group.first + i as u64;
            if self.pages.contains_key(&number) {
                continue;
            }
            let mut sums = [0; PER_PAGE as usize];
            sums.iter_mut().zip(words(bytes)).for_each(|(sum, word)| *sum = word);
            let page = Page { sums: Arc::new(sums), state: PageState::Clean, used: true };
            self.pages.insert(number, page);
            self.order.push_back(number);
        }
    }

    /// Reads what is missing for these blocks.
    pub fn load(&mut self, disk: &impl Disk, block: u64, len: u32) -> io::Result<()> {
        while let Some(page) = self.missing(block, len) {
            let group = self.group(page);
            let mut buf = AlignedBuf::zeroed(group.bytes);
            disk.read_at(group.at, &mut buf)?;
            self.insert(&group, &buf);
        }
        Ok(())
    }

    /// The entry of a block whose page was loaded.
    pub fn get(&mut self, block: u64) -> Option<u64> {
        let page = self.pages.get_mut(&(block / PER_PAGE))?;
        page.used = true;
        Some(page.sums[(block % PER_PAGE) as usize])
    }

    /// Sets entries of neighbouring blocks; their pages must have been loaded.
    pub fn set(&mut self, block: u64, sums: &[u64]) {
        for (i, sum) in sums.iter().enumerate() {
            let block = block + i as u64;
            let Some(page) = self.pages.get_mut(&(block / PER_PAGE)) else {
                debug_assert!(false, "checksum page of block {block} not loaded");
                continue;
            };
            Arc::make_mut(&mut page.sums)[(block % PER_PAGE) as usize] = *sum;
            page.used = true;
            page.state = match page.state {
                PageState::Clean => {
                    self.dirty += 1;
                    PageState::Dirty
                }
                PageState::Writing => PageState::Redirtied,
                other => other,
            };
        }
    }

    /// Drops pages that were not used lately until the cache is within its bound.
    pub fn trim(&mut self) {
        let mut tries = self.order.len() * 2;
        while self.pages.len() > self.cap && tries > 0 {
            tries -= 1;
            let Some(number) = self.order.pop_front() else { break };
            let Some(page) = self.pages.get_mut(&number) else { continue };
            if page.state == PageState::Clean && !page.used {
                self.pages.remove(&number);
            } else {
                page.used = false;
                self.order.push_back(number);
            }
        }
    }

    /// The changed pages as they are now, to be written; follow with [`SumTable::written`].
    pub fn take_dirty(&mut self) -> Vec<(u64, Sums)> {
        let mut out: Vec<_> = Vec::with_capacity(self.dirty);
        for (number, page) in &mut self.pages {
            if page.state != PageState::Clean {
                page.state = PageState::Writing;
                out.push((*number, page.sums.clone()));
            }
        }
        out.sort_unstable_by_key(|(number, _)| *number);
        out
    }

    /// What [`SumTable::take_dirty`] gave is durable.
    pub fn written(&mut self) {
        self.epoch += 1;
        for page in self.pages.values_mut() {
            page.state = match page.state {
                PageState::Writing => {
                    self.dirty -= 1;
                    PageState::Clean
                }
                PageState::Redirtied => PageState::Dirty,
                other => other,
            };
        }
    }

    pub fn resident_bytes(&self) -> usize {
        self.pages.len() * BLOCK
    }
}

/// Writes table pages, ascending, neighbours together.
pub fn write_pages(disk: &impl Disk, table_at: u64, pages: &[(u64, Sums)]) -> io::Result<()> {
    for part in pages.chunks(256) {
        let mut buf = AlignedBuf::zeroed(part.len() * BLOCK);
        for ((_, sums), out) in part.iter().zip(buf.chunks_exact_mut(BLOCK)) {
            let (slots, _) = out.as_chunks_mut::<8>();
            slots.iter_mut().zip(sums.iter()).for_each(|(o, sum)| *o = sum.to_le_bytes());
        }
        let mut ops = Vec::new();
        let mut rest: &[u8] = &buf;
        for run in part.chunk_by(|a, b| a.0 + 1 == b.0) {
            let (now, later) = rest.split_at(run.len() * BLOCK);
            ops.push(DiskOp::Write { offset: table_at + run[0].0 * BLOCK as u64, data: now });
            rest = later;
        }
        disk.submit(&mut ops)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuri_io::mem::MemDisk;

    fn table(disk: &MemDisk) -> SumTable {
        let regions = Regions {
            log_at: 0,
            log_len: 0,
            sums_at: 4096,
            sums_len: 1 << 20,
            data_at: 1 << 21,
            data_blocks: 1 << 17,
        };
        disk.set_len(1 << 21).unwrap();
        SumTable::new(&regions, 16 * BLOCK)
    }

    #[test]
    fn changed_pages_stay_until_written_and_others_go() {
        let disk = MemDisk::new();
        let mut table = table(&disk);
        table.load(&disk, 511, 2).unwrap();
        table.set(511, &[7, 8]);
        for block in (0..1 << 17).step_by(512) {
            table.load(&disk, block, 1).unwrap();
            table.trim();
        }
        assert!(table.resident_bytes() <= 24 * BLOCK);
        assert_eq!((table.get(511), table.get(512)), (Some(7), Some(8)));
        let pages = table.take_dirty();
        assert_eq!(pages.iter().map(|p| p.0).collect::<Vec<_>>(), [0, 1]);
        table.set(512, &[9]);
        write_pages(&disk, 4096, &pages).unwrap();
        table.written();
        assert_eq!(table.take_dirty().len(), 1, "changed again while being written");
        let mut fresh = SumTable { pages: HashMap::new(), ..table };
        fresh.load(&disk, 511, 2).unwrap();
        assert_eq!((fresh.get(511), fresh.get(512)), (Some(7), Some(8)));
    }

    #[test]
    fn pages_read_before_a_checkpoint_ended_are_ignored() {
        let disk = MemDisk::new();
        let mut table = table(&disk);
        let group = table.group(0);
        table.written();
        table.insert(&group, &vec![0; group.bytes]);
        assert_eq!(table.missing(0, 1), Some(0));
    }
}
