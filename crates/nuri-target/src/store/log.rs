//! The log's records: encoding, and the scan that finds them again.
//!
//! The log region is a window of an endless byte stream: stream position `p` lies at `p % length`.
//! A batch is written by one write and made durable by one sync before the next begins. It starts
//! on a 4 KiB boundary, and durable blocks are never rewritten. Every record carries its sequence
//! number and its batch's position. Its CRC is bound to log generation and position, so remains of
//! earlier laps and openings never pass for records. Pure: fuzzable by [`scan`].

use nuri_proto::checksum::{crc64, mix};
use nuri_proto::id::{ChunkKey, ObjectId};
use nuri_proto::stripe::{Held, Version};

use super::bytes::{Fields, Put, words};
use super::held::{put_held, take_held};
use super::index::{Extent, put_extent, put_key, take_extent, take_key};
use super::superblock::LogStart;
use super::{BLOCK, CHUNK_BLOCKS};

const MAGIC: u32 = u32::from_le_bytes(*b"NLOG");
/// Bytes of a record's head.
pub const HEAD: usize = 40;
/// Most ids of one `Delete` record.
pub const MAX_DELETE: usize = 1024;
/// Longest meta part and longest data part of a record, bytes.
const MAX_META: usize = 256 << 10;
const MAX_DATA: usize = 1 << 20;

/// What a record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// New extents with the checksums (bound) of their blocks in order.
    Write {
        key: ChunkKey,
        extents: Vec<Extent>,
        sums: Vec<u64>,
    },
    /// Whole blocks from `first` on, with the checksums (raw) of their content.
    Data {
        key: ChunkKey,
        first: u32,
        sums: Vec<u64>,
        data: &'a [u8],
    },
    /// `len` blocks from `at` on become a hole.
    Punch {
        key: ChunkKey,
        at: u32,
        len: u32,
    },
    /// All chunks of the object from this stripe on are gone.
    Truncate {
        object: ObjectId,
        from: u32,
    },
    Delete {
        objects: Vec<ObjectId>,
    },
    /// A write that is held beside the base: new extents with the checksums (bound) of their
    /// blocks, and whole blocks by their numbers with those (raw) of their content.
    Stage {
        key: ChunkKey,
        held: Held,
        extents: Vec<Extent>,
        sums: Vec<u64>,
        blocks: Vec<u64>,
        raw: Vec<u64>,
        data: &'a [u8],
    },
    /// The staged write of this version is the base.
    Commit {
        key: ChunkKey,
        version: Version,
    },
    /// What is held of the stripe; a staged write that is not in it is gone.
    Held {
        key: ChunkKey,
        held: Held,
    },
    /// The parts logged before are the base.
    Install {
        key: ChunkKey,
        held: Held,
    },
}

const KIND_WRITE: u32 = 1;
const KIND_DATA: u32 = 2;
const KIND_PUNCH: u32 = 3;
const KIND_TRUNCATE: u32 = 4;
const KIND_DELETE: u32 = 5;
const KIND_STAGE: u32 = 6;
const KIND_COMMIT: u32 = 7;
const KIND_HELD: u32 = 8;
const KIND_INSTALL: u32 = 9;

/// A record encoded except for its head: what can be done before its place is known.
pub struct Body<'a> {
    kind: u32,
    meta: Vec<u8>,
    data: &'a [u8],
}

impl<'a> Body<'a> {
    pub fn new(record: &Record<'a>) -> Body<'a> {
        let mut meta = Vec::new();
        let mut payload: &[u8] = &[];
        let kind = match record {
            Record::Write { key, extents, sums } => {
                put_key(&mut meta, *key);
                put_extents(&mut meta, extents, sums);
                KIND_WRITE
            }
            Record::Data { key, first, sums, data } => {
                put_key(&mut meta, *key);
                meta.put_u64(u64::from(*first));
                sums.iter().for_each(|sum| meta.put_u64(*sum));
                payload = data;
                KIND_DATA
            }
            Record::Punch { key, at, len } => {
                put_key(&mut meta, *key);
                meta.put_u32(*at);
                meta.put_u32(*len);
                KIND_PUNCH
            }
            Record::Truncate { object, from } => {
                meta.put_u64(object.0);
                meta.put_u64(u64::from(*from));
                KIND_TRUNCATE
            }
            Record::Delete { objects } => {
                objects.iter().for_each(|object| meta.put_u64(object.0));
                KIND_DELETE
            }
            Record::Stage { data, .. } => {
                put_stage(&mut meta, record);
                payload = data;
                KIND_STAGE
            }
            Record::Commit { key, version } => {
                put_key(&mut meta, *key);
                meta.put_u64(version.0);
                KIND_COMMIT
            }
            Record::Held { key, held } => {
                put_key(&mut meta, *key);
                put_held(&mut meta, held);
                KIND_HELD
            }
            Record::Install { key, held } => {
                put_key(&mut meta, *key);
                put_held(&mut meta, held);
                KIND_INSTALL
            }
        };
        Body { kind, meta, data: payload }
    }

    /// Bytes in the log; always a multiple of eight.
    pub fn log_len(&self) -> usize {
        HEAD + self.meta.len() + self.data.len()
    }

    /// Completes the record for its place and gives its parts to `push`.
    pub fn finish(&self, place: Place, mut push: impl FnMut(&[u8])) {
        let mut head = Vec::with_capacity(HEAD);
        head.put_u32(MAGIC);
        head.put_u32(self.kind);
        head.put_u32(self.meta.len() as u32);
        head.put_u32(self.data.len() as u32);
        head.put_u64(place.seq);
        head.put_u64(place.batch);
        head.put_u64(seal(&head, &self.meta, place));
        push(&head);
        push(&self.meta);
        push(self.data);
    }
}

/// Where a record stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub generation: u64,
    pub position: u64,
    pub seq: u64,
    /// Position of the first record that is written together with this one: everything before it
    /// was durable when this was written.
    pub batch: u64,
}

fn seal(head: &[u8], meta: &[u8], place: Place) -> u64 {
    crc64(&head[..HEAD - 8]) ^ mix(&[crc64(meta), place.generation, place.position])
}

/// Parses the record that starts `bytes`, data verified. The bytes it takes come last.
fn parse(bytes: &[u8], generation: u64, position: u64) -> Option<(Place, Body<'_>, usize)> {
    let mut f = Fields::new(bytes);
    let head = f.take(HEAD)?;
    let mut h = Fields::new(head);
    if h.u32()? != MAGIC {
        return None;
    }
    let kind = h.u32()?;
    let (meta_len, data_len) = (h.u32()? as usize, h.u32()? as usize);
    let place = Place { seq: h.u64()?, batch: h.u64()?, generation, position };
    if meta_len > MAX_META || data_len > MAX_DATA || (meta_len | data_len) % 8 != 0 {
        return None;
    }
    let meta = f.take(meta_len)?;
    let data = f.take(data_len)?;
    if h.u64()? != seal(head, meta, place) {
        return None;
    }
    let sums_at = meta.len().checked_sub(data_len / BLOCK * 8)?;
    let whole = data.chunks(BLOCK).map(crc64).eq(words(&meta[sums_at..]));
    if data_len > 0 && !whole {
        return None;
    }
    Some((place, Body { kind, meta: meta.to_vec(), data }, HEAD + meta_len + data_len))
}

impl<'a> Body<'a> {
    fn record(self, data_blocks: u64) -> Option<Record<'a>> {
        let mut f = Fields::new(&self.meta);
        let record = match self.kind {
            KIND_WRITE => {
                let key = take_key(&mut f)?;
                let (extents, sums) = take_extents(&mut f, data_blocks)?;
                Record::Write { key, extents, sums }
            }
            KIND_DATA => {
                let key = take_key(&mut f)?;
                let first = u32::try_from(f.u64()?).ok()?;
                let blocks = self.data.len() / BLOCK;
                let end = u64::from(first) + blocks as u64;
                if end > u64::from(CHUNK_BLOCKS) || !self.data.len().is_multiple_of(BLOCK) {
                    return None;
                }
                Record::Data { key, first, sums: f.words(blocks)?, data: self.data }
            }
            KIND_PUNCH => {
                let (key, at, len) = (take_key(&mut f)?, f.u32()?, f.u32()?);
                at.checked_add(len).filter(|end| *end <= CHUNK_BLOCKS)?;
                Record::Punch { key, at, len }
            }
            KIND_TRUNCATE => {
                let (object, from) = (ObjectId(f.u64()?), u32::try_from(f.u64()?).ok()?);
                Record::Truncate { object, from }
            }
            KIND_DELETE => {
                let objects = f.words(self.meta.len() / 8)?;
                Record::Delete { objects: objects.into_iter().map(ObjectId).collect() }
            }
            KIND_STAGE => take_stage(&mut f, self.data, data_blocks)?,
            KIND_COMMIT => Record::Commit { key: take_key(&mut f)?, version: Version(f.u64()?) },
            KIND_HELD => Record::Held { key: take_key(&mut f)?, held: take_held(&mut f)? },
            KIND_INSTALL => Record::Install { key: take_key(&mut f)?, held: take_held(&mut f)? },
            _ => return None,
        };
        f.is_empty().then_some(record)
    }
}

fn put_extents(meta: &mut Vec<u8>, extents: &[Extent], sums: &[u64]) {
    meta.put_u64(extents.len() as u64);
    extents.iter().for_each(|e| put_extent(meta, e));
    sums.iter().for_each(|sum| meta.put_u64(*sum));
}

fn take_extents(f: &mut Fields<'_>, data_blocks: u64) -> Option<(Vec<Extent>, Vec<u64>)> {
    let mut extents = Vec::new();
    let mut blocks = 0;
    for _ in 0..f.u64()? {
        let extent = take_extent(f, data_blocks)?;
        blocks += extent.len as usize;
        extents.push(extent);
    }
    Some((extents, f.words(blocks)?))
}

fn put_stage(meta: &mut Vec<u8>, record: &Record<'_>) {
    let Record::Stage { key, held, extents, sums, blocks, raw, .. } = record else { return };
    put_key(meta, *key);
    put_held(meta, held);
    put_extents(meta, extents, sums);
    blocks.iter().chain(raw).for_each(|word| meta.put_u64(*word));
}

fn take_stage<'a>(f: &mut Fields<'_>, data: &'a [u8], data_blocks: u64) -> Option<Record<'a>> {
    let (key, held) = (take_key(f)?, take_held(f)?);
    let (extents, sums) = take_extents(f, data_blocks)?;
    let count = data.len() / BLOCK;
    let blocks = f.words(count)?;
    let sane = |block: &u64| *block < u64::from(CHUNK_BLOCKS);
    if !blocks.iter().all(sane) || !data.len().is_multiple_of(BLOCK) {
        return None;
    }
    Some(Record::Stage { key, held, extents, sums, blocks, raw: f.words(count)?, data })
}

/// What a scan found.
#[derive(Debug)]
pub struct Scan<'a> {
    /// In order, each with its sequence number.
    pub records: Vec<(u64, Record<'a>)>,
    /// Where the next batch goes.
    pub end: u64,
    pub next_seq: u64,
}

/// A record that must have been durable is not whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Position of what is not whole, and of a whole record written after it was durable.
    pub at: u64,
    pub later: u64,
}

/// Finds the records from `start` on. `bytes` is the whole log region turned so that it begins
/// with the byte at `start.position`.
///
/// A batch that was torn by a crash ends the log. Where a later batch is whole, what lies before
/// it had been durable, and its loss is damage.
///
/// # Errors
/// [`Damage`], with both places.
pub fn scan(bytes: &[u8], start: LogStart, data_blocks: u64) -> Result<Scan<'_>, Damage> {
    let mut records = Vec::new();
    let mut seq = start.seq;
    let mut at = 0;
    while at < bytes.len() {
        let position = start.position.wrapping_add(at as u64);
        let found = parse(&bytes[at..], start.generation, position);
        match found.filter(|(place, ..)| place.seq == seq) {
            Some((_, body, len)) => {
                let Some(record) = body.record(data_blocks) else {
                    return Err(Damage { at: position, later: position });
                };
                records.push((seq, record));
                seq += 1;
                at += len;
            }
            None if at % BLOCK == 0 => break,
            // The rest of a batch's last block is padding, or its next record was torn.
            None => at = at.next_multiple_of(BLOCK).min(bytes.len()),
        }
    }
    let end = start.position.wrapping_add(at as u64);
    for later in (at..bytes.len()).step_by(BLOCK) {
        let position = start.position.wrapping_add(later as u64);
        let found = parse(&bytes[later..], start.generation, position);
        if found.is_some_and(|(place, ..)| place.batch == position && place.seq >= seq) {
            return Err(Damage { at: end, later: position });
        }
    }
    Ok(Scan { records, end, next_seq: seq })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuri_io::rng::Rng;
    use nuri_proto::id::{GroupId, SessionId};
    use nuri_proto::stripe::{Covers, Members, Staged, WriteId};

    const KEY: ChunkKey = ChunkKey { object: ObjectId(1), component: 0, stripe: 0 };
    const START: LogStart = LogStart { generation: 7, position: 8192, seq: 5 };

    /// Two batches of two records each, then zeros.
    fn sample(data: &[u8]) -> Vec<u8> {
        let sums: Vec<u64> = data.chunks(BLOCK).map(crc64).collect();
        let extents = vec![Extent { at: 0, len: 2, block: 3, birth: 1 }];
        let records = [
            Record::Punch { key: KEY, at: 1, len: 2 },
            Record::Data { key: KEY, first: 3, sums, data },
            Record::Write { key: KEY, extents, sums: vec![1, 2] },
            Record::Delete { objects: vec![ObjectId(1), ObjectId(2)] },
        ];
        batches(&records)
    }

    /// Batches of two records each, then zeros.
    fn batches(records: &[Record<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        for (b, batch) in records.chunks(2).enumerate() {
            let base = START.position + out.len() as u64;
            for (i, record) in batch.iter().enumerate() {
                let place = Place {
                    generation: 7,
                    position: START.position + out.len() as u64,
                    seq: 5 + (b * 2 + i) as u64,
                    batch: base,
                };
                Body::new(record).finish(place, |part| out.extend_from_slice(part));
            }
            out.resize(out.len().next_multiple_of(BLOCK), 0);
        }
        out.resize(1 << 16, 0);
        out
    }

    #[test]
    fn whole_log_comes_back() {
        let data = vec![9; 2 * BLOCK];
        let log = sample(&data);
        let scan = scan(&log, START, 100).unwrap();
        assert_eq!((scan.records.len(), scan.next_seq), (4, 9));
        assert_eq!(scan.end % BLOCK as u64, 0);
        assert!(matches!(&scan.records[1].1, Record::Data { data: d, .. } if *d == data));
    }

    #[test]
    fn records_of_members_come_back() {
        let data = vec![9; 2 * BLOCK];
        let covers = Covers(vec![Version(0), Version(4)]);
        let (id, version) = (WriteId { session: SessionId(1), number: 2 }, Version(5));
        let staged = Staged { version, id, covers: covers.clone(), participants: Members(5) };
        let (group, floor) = (GroupId(3), Version(1));
        let held = Held { group, covers, last: id, floor, staged: Some(staged) };
        let stage = Record::Stage {
            key: KEY,
            held: held.clone(),
            extents: vec![Extent { at: 1, len: 2, block: 3, birth: 1 }],
            sums: vec![1, 2],
            blocks: vec![0, 3],
            raw: data.chunks(BLOCK).map(crc64).collect(),
            data: &data,
        };
        let records = [
            stage,
            Record::Commit { key: KEY, version },
            Record::Held { key: KEY, held: Held { staged: None, ..held.clone() } },
            Record::Install { key: KEY, held },
        ];
        let log = batches(&records);
        let found = scan(&log, START, 100).unwrap().records;
        assert!(found.into_iter().map(|(_, record)| record).eq(records));
        assert!(scan(&log, START, 4).is_err(), "an extent beyond the data region");
    }

    #[test]
    fn first_batch_damaged_is_damage_last_batch_torn_is_the_end() {
        let log = sample(&vec![9; 2 * BLOCK]);
        let ends = scan(&log, START, 100).unwrap();
        let second = log.len().min((ends.end - START.position) as usize) - BLOCK;
        for at in [0, 20, 50, BLOCK + 100] {
            let mut bad = log.clone();
            bad[at] ^= 1;
            assert!(scan(&bad, START, 100).is_err(), "byte {at}");
        }
        let mut torn = log.clone();
        torn[second + 3] ^= 1;
        let scan = scan(&torn, START, 100).unwrap();
        assert_eq!((scan.records.len(), scan.end), (2, START.position + second as u64));
    }

    #[test]
    fn other_generation_position_or_seq_is_no_record() {
        let log = sample(&vec![9; BLOCK]);
        for start in [
            LogStart { generation: 8, ..START },
            LogStart { position: 8192 + 65536, ..START },
            LogStart { position: 0, seq: 4, ..START },
        ] {
            assert!(scan(&log, start, 100).unwrap().records.is_empty());
        }
    }

    #[test]
    fn garbage_never_panics() {
        let mut rng = Rng::new(3);
        let clean = sample(&vec![9; BLOCK]);
        for _ in 0..300 {
            let mut log = clean.clone();
            for _ in 0..rng.below(4) + 1 {
                let at = rng.below(3 * BLOCK as u64) as usize;
                log[at] = rng.next() as u8;
            }
            if let Ok(scan) = scan(&log, START, 100) {
                assert!(scan.records.len() <= 4);
            }
        }
    }
}
