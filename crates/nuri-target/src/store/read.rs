//! Reading: plan under the lock, transfer without it, verify every block from the disk.
//!
//! Between plan and transfer a block may be overwritten or get another owner. Then its checksum
//! fails. The read is planned anew if the chunk has changed since. Only a chunk that has not
//! changed is corrupt.

use std::io;
use std::sync::Arc;

use nuri_io::buf::AlignedBuf;
use nuri_io::disk::{Disk, DiskOp};
use nuri_proto::checksum::crc64;
use nuri_proto::id::ChunkKey;
use nuri_rules::broken;

use super::contents::Small;
use super::error::StoreError;
use super::index::Extent;
use super::shadow::{base_of, staged_of};
use super::state::State;
use super::sums::{Group, bind};
use super::{BLOCK, CHUNK_BLOCKS, ChunkStore};

/// Reads up to this long go through one aligned copy when their ends are not on blocks.
const BOUNCE_BLOCKS: u32 = 16;
/// Plans that may miss checksum pages before they are read under the lock.
const PATIENCE: usize = 3;

enum Source {
    Hole,
    Memory(Arc<Small>),
    Disk { extent: Extent, sums: Vec<u64> },
}

/// Blocks of the chunk that come from one place.
struct Piece {
    at: u32,
    len: u32,
    source: Source,
}

struct Plan {
    version: u64,
    pieces: Vec<Piece>,
}

/// Part of the caller's buffer that a piece fills.
struct Job<'b> {
    piece: &'b Piece,
    /// Bytes of the piece's first block that are not asked for.
    skip: usize,
    out: &'b mut [u8],
}

impl<D: Disk> ChunkStore<D> {
    /// Fills `buf` from `offset` of the chunk. Holes and what lies beyond the data read as zeros.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] where a stored block fails its checksum or cannot be read; `buf`
    /// then holds nothing of use.
    pub fn read(&self, key: ChunkKey, offset: u32, buf: &mut [u8]) -> Result<(), StoreError> {
        self.read_versioned(key, offset, buf).map(drop)
    }

    /// Which byte ranges of the chunk hold data, ascending, in whole blocks.
    pub fn extents(&self, key: ChunkKey) -> Vec<(u32, u32)> {
        self.extents_of(&[key])
    }

    /// As [`ChunkStore::extents`], with what a staged write adds once it is committed.
    pub fn extents_with_staged(&self, key: ChunkKey) -> Vec<(u32, u32)> {
        self.extents_of(&[key, staged_of(key)])
    }

    fn extents_of(&self, keys: &[ChunkKey]) -> Vec<(u32, u32)> {
        let state = self.state.lock();
        let contents = &state.contents;
        let mapped = |key: &ChunkKey| contents.index.lookup(*key, 0, CHUNK_BLOCKS);
        let mapped = keys.iter().flat_map(mapped).map(|e| (e.at, e.end()));
        let smalls = |key: &ChunkKey| contents.smalls(*key, 0, CHUNK_BLOCKS);
        let smalls = keys.iter().flat_map(smalls).map(|(b, _)| (b, b + 1));
        let mut all: Vec<(u32, u32)> = mapped.chain(smalls).collect();
        all.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::new();
        for (start, end) in all {
            match joined.last_mut() {
                Some(last) if last.1 >= start => last.1 = last.1.max(end),
                _ => joined.push((start, end)),
            }
        }
        let bytes = |(start, end): (u32, u32)| (start * BLOCK as u32, (end - start) * BLOCK as u32);
        joined.into_iter().map(bytes).collect()
    }

    /// Fills `buf` with what the base will hold once the staged write is committed. The caller
    /// makes sure afterwards that it is still staged, on the same base.
    pub(super) fn read_with_staged(
        &self,
        key: ChunkKey,
        offset: u32,
        buf: &mut [u8],
    ) -> Result<(), StoreError> {
        let (staged, end) = (staged_of(key), offset + buf.len() as u32);
        let mut part = |key, from: u32, to: u32| {
            let out = &mut buf[(from - offset) as usize..(to - offset) as usize];
            self.read(key, from, out)
        };
        let mut at = offset;
        // What the write replaces is not looked at: it may be damaged.
        for (start, len) in self.extents(staged) {
            let (from, to) = (start.max(at), (start + len).min(end));
            if from < to {
                part(key, at, from)?;
                part(staged, from, to)?;
                at = to;
            }
        }
        part(key, at, end)
    }

    /// As `read`, and tells which version of the chunk it saw.
    pub(super) fn read_versioned(
        &self,
        key: ChunkKey,
        offset: u32,
        buf: &mut [u8],
    ) -> Result<u64, StoreError> {
        super::write::check_range(offset, buf.len())?;
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            let plan = self.plan(key, offset, buf.len())?;
            // Beside the base too, a block is bound to the place that it will have in it.
            let Err(bad) = self.fill(base_of(key), &plan, offset, buf) else {
                return Ok(plan.version);
            };
            let state = self.state.lock();
            if state.contents.index.version(key) == plan.version {
                return Err(StoreError::Corrupt(base_of(key), bad));
            }
        }
    }

    fn plan(&self, key: ChunkKey, offset: u32, len: usize) -> Result<Plan, StoreError> {
        let first = offset / BLOCK as u32;
        let end = (u64::from(offset) + len as u64).div_ceil(BLOCK as u64) as u32;
        let mut patience = PATIENCE;
        loop {
            let mut state = self.state.lock();
            state.check()?;
            let mut pieces = lay_out(&state, key, first, end);
            if end - first > BOUNCE_BLOCKS {
                split_ends(&mut pieces, offset, len);
            }
            let missing = pieces.iter().find_map(|piece| match &piece.source {
                Source::Disk { extent, .. } => {
                    let page = state.sums.missing(extent.block, extent.len);
                    page.map(|page| (piece.at, *extent, page))
                }
                _ => None,
            });
            let Some((at, extent, page)) = missing else {
                take_sums(&mut state, &mut pieces);
                let version = state.contents.index.version(key);
                return Ok(Plan { version, pieces });
            };
            let corrupt = |_: io::Error| StoreError::Corrupt(base_of(key), at);
            if patience == 0 {
                state.sums.load(&self.disk, extent.block, extent.len).map_err(corrupt)?;
                continue;
            }
            patience -= 1;
            let group = state.sums.group(page);
            drop(state);
            self.load_group(&group).map_err(corrupt)?;
        }
    }

    /// Reads pages of the checksum table without the lock.
    ///
    /// A page that is being changed on the disk meanwhile is in memory, and that one stays.
    pub(super) fn load_group(&self, group: &Group) -> io::Result<()> {
        let mut buf = AlignedBuf::zeroed(group.bytes);
        self.disk.read_at(group.at, &mut buf)?;
        self.state.lock().sums.insert(group, &buf);
        Ok(())
    }

    /// Moves and verifies. The error names the first bad block.
    fn fill(&self, key: ChunkKey, plan: &Plan, offset: u32, buf: &mut [u8]) -> Result<(), u32> {
        let mut jobs = assign(&plan.pieces, offset, buf);
        let mut bounces: Vec<Option<AlignedBuf>> = jobs.iter().map(Job::bounce).collect();
        let mut ops = Vec::new();
        for (job, bounce) in jobs.iter_mut().zip(&mut bounces) {
            if let Source::Disk { extent, .. } = &job.piece.source {
                let offset = self.regions.block_at(extent.block);
                let buf = bounce.as_deref_mut().unwrap_or(job.out);
                ops.push(DiskOp::Read { offset, buf });
            }
        }
        let first = plan.pieces.first().map_or(0, |piece| piece.at);
        if !ops.is_empty() {
            self.disk.submit(&mut ops).map_err(|_| first)?;
        }
        drop(ops);
        for (job, bounce) in jobs.iter_mut().zip(&bounces) {
            job.finish(key, bounce.as_deref())?;
        }
        Ok(())
    }
}

/// Where each block of `first..end` is, without checksums yet.
fn lay_out(state: &State, key: ChunkKey, first: u32, end: u32) -> Vec<Piece> {
    let mut extents = state.contents.index.lookup(key, first, end - first).peekable();
    let mut smalls = state.contents.smalls(key, first, end - first).peekable();
    let mut pieces = Vec::new();
    let mut at = first;
    while at < end {
        if let Some((_, small)) = smalls.next_if(|(block, _)| *block == at) {
            pieces.push(Piece { at, len: 1, source: Source::Memory(small.clone()) });
            at += 1;
            continue;
        }
        while extents.next_if(|e| e.end() <= at).is_some() {}
        let limit = smalls.peek().map_or(end, |(block, _)| *block);
        let (stop, source) = match extents.peek() {
            Some(e) if e.at <= at => {
                let stop = e.end().min(limit);
                let block = e.block + u64::from(at - e.at);
                let extent = Extent { at, len: stop - at, block, birth: e.birth };
                (stop, Source::Disk { extent, sums: Vec::new() })
            }
            next => (next.map_or(limit, |e| e.at.min(limit)), Source::Hole),
        };
        pieces.push(Piece { at, len: stop - at, source });
        at = stop;
    }
    pieces
}

/// Sets blocks apart that are asked for in part, so that the others need no copy.
fn split_ends(pieces: &mut Vec<Piece>, offset: u32, len: usize) {
    let block = BLOCK as u32;
    let end = offset + len as u32;
    if !offset.is_multiple_of(block) {
        split_at(pieces, offset / block + 1);
    }
    if !end.is_multiple_of(block) {
        split_at(pieces, end / block);
    }
}

fn split_at(pieces: &mut Vec<Piece>, block: u32) {
    let inside = |p: &Piece| p.at < block && block < p.at + p.len;
    let Some(i) = pieces.iter().position(inside) else { return };
    let Source::Disk { extent, .. } = pieces[i].source else { return };
    let head = block - extent.at;
    let part = |at, len, skip: u32| Piece {
        at,
        len,
        source: Source::Disk {
            extent: Extent { at, len, block: extent.block + u64::from(skip), ..extent },
            sums: Vec::new(),
        },
    };
    let both = [part(extent.at, head, 0), part(block, extent.len - head, head)];
    pieces.splice(i..=i, both);
}

fn take_sums(state: &mut State, pieces: &mut [Piece]) {
    for piece in pieces {
        if let Source::Disk { extent, sums } = &mut piece.source {
            let blocks = extent.block..extent.block + u64::from(extent.len);
            *sums = blocks.map(|block| state.sums.get(block).unwrap_or_default()).collect();
        }
    }
    state.sums.trim();
}

fn assign<'b>(pieces: &'b [Piece], offset: u32, buf: &'b mut [u8]) -> Vec<Job<'b>> {
    let mut rest = buf;
    let mut jobs = Vec::with_capacity(pieces.len());
    let mut at = offset as usize;
    for piece in pieces {
        let skip = at - piece.at as usize * BLOCK;
        let take = (piece.len as usize * BLOCK - skip).min(rest.len());
        let (out, later) = rest.split_at_mut(take);
        rest = later;
        at += take;
        jobs.push(Job { piece, skip, out });
    }
    jobs
}

impl Job<'_> {
    fn bounce(&self) -> Option<AlignedBuf> {
        let whole = self.piece.len as usize * BLOCK;
        let partial = self.out.len() < whole;
        (partial && matches!(self.piece.source, Source::Disk { .. }))
            .then(|| AlignedBuf::zeroed(whole))
    }

    fn finish(&mut self, key: ChunkKey, bounce: Option<&[u8]>) -> Result<(), u32> {
        match &self.piece.source {
            Source::Hole => self.out.fill(0),
            Source::Memory(small) => {
                let end = self.skip + self.out.len();
                self.out.copy_from_slice(&small.data[self.skip..end]);
            }
            Source::Disk { extent, sums } => {
                verify(key, extent, sums, bounce.unwrap_or(self.out))?;
                if let Some(bounce) = bounce {
                    let end = self.skip + self.out.len();
                    self.out.copy_from_slice(&bounce[self.skip..end]);
                }
            }
        }
        Ok(())
    }
}

/// The error names the first block whose content is not what was written there.
pub(super) fn verify(key: ChunkKey, extent: &Extent, sums: &[u64], data: &[u8]) -> Result<(), u32> {
    if broken!("skip_verify") {
        return Ok(());
    }
    for ((block, bytes), sum) in (extent.at..).zip(data.chunks(BLOCK)).zip(sums) {
        if bind(crc64(bytes), key, block, extent.birth) != *sum {
            return Err(block);
        }
    }
    Ok(())
}
