//! Records of the metadata log. Parsing is pure, so that it can be fuzzed.
//!
//! A segment is one header block of 4 KiB, followed by groups. A group is a run of records that one
//! sync made durable, padded with zeros to a 4 KiB boundary. So a group never rewrites a block that
//! an earlier sync covered. A group's first record is marked. A marked record behind a gap proves
//! that the gap had been durable. An unmarked one may be the rest of a torn group.

use nuri_proto::checksum::{crc64, mix};

use crate::engine::Batch;

/// Unit of log writes, bytes.
pub const BLOCK: usize = 4096;
/// Longest body of one record, bytes.
pub const MAX_BODY: usize = 16 << 20;
const MAGIC: u32 = u32::from_le_bytes(*b"NKVL");
const MAGIC_FIRST: u32 = u32::from_le_bytes(*b"NKVG");
/// Format of segments and records.
pub const FORMAT: u32 = 1;
/// Length of a record's head, bytes.
pub const RECORD_HEAD: usize = 32;
/// Bytes of a segment's head that say something. One sector: it is never torn.
const HEAD_USED: usize = 24;

/// First block of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHead {
    /// Rises with every reuse of a segment: records of an older use do not count.
    pub generation: u64,
}

/// What a segment's first block says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadState {
    /// Never written.
    Empty,
    /// Neither zeros nor a head.
    Damaged,
    Valid(SegmentHead),
    UnknownFormat(u32),
}

impl SegmentHead {
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut out = [0; BLOCK];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&FORMAT.to_le_bytes());
        out[8..16].copy_from_slice(&self.generation.to_le_bytes());
        let crc = crc64(&out[..16]);
        out[16..24].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(block: &[u8]) -> HeadState {
        let (Some(magic), Some(format)) = (word32(block, 0), word32(block, 4)) else {
            return HeadState::Empty;
        };
        let (Some(generation), Some(crc)) = (word64(block, 8), word64(block, 16)) else {
            return HeadState::Empty;
        };
        if block[..HEAD_USED].iter().all(|b| *b == 0) {
            return HeadState::Empty;
        }
        if magic != MAGIC || crc64(&block[..16]) != crc {
            return HeadState::Damaged;
        }
        if format != FORMAT {
            return HeadState::UnknownFormat(format);
        }
        HeadState::Valid(SegmentHead { generation })
    }
}

/// One record: a batch with its place in the order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The owner of the store that wrote it; a deposed owner's records do not count.
    pub epoch: u64,
    pub sequence: u64,
    pub place: Place,
    pub batch: Batch,
}

/// A record's place in its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Everything before it in the log was durable when it was written.
    First,
    Later,
}

/// Appends the encoded record to `out`.
pub fn encode(
    out: &mut Vec<u8>,
    generation: u64,
    epoch: u64,
    sequence: u64,
    place: Place,
    batch: &Batch,
) {
    let start = out.len();
    out.extend_from_slice(&[0; RECORD_HEAD]);
    for (key, value) in &batch.changes {
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        let len = value.as_ref().map_or(u32::MAX, |v| v.len() as u32);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    let record = &mut out[start..];
    let len = (record.len() - RECORD_HEAD) as u32;
    let magic = if place == Place::First { MAGIC_FIRST } else { MAGIC };
    record[..4].copy_from_slice(&len.to_le_bytes());
    record[4..8].copy_from_slice(&magic.to_le_bytes());
    record[8..16].copy_from_slice(&epoch.to_le_bytes());
    record[16..24].copy_from_slice(&sequence.to_le_bytes());
    seal(record, generation);
}

/// Seals a record again, for another generation.
pub fn reseal(record: &mut [u8], generation: u64) {
    if record.len() >= RECORD_HEAD {
        seal(record, generation);
    }
}

fn seal(record: &mut [u8], generation: u64) {
    let crc = record_crc(record, generation);
    record[24..32].copy_from_slice(&crc.to_le_bytes());
}

fn record_crc(record: &[u8], generation: u64) -> u64 {
    mix(&[crc64(&record[..24]), crc64(&record[RECORD_HEAD..]), generation])
}

/// What follows at a place of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// A record and the offset behind it.
    Record(Record, usize),
    /// No valid record starts here: the padding of a group, or the end.
    Nothing,
}

/// Parses the record at `at` of a segment. Never panics, whatever the bytes are.
pub fn parse(segment: &[u8], at: usize, generation: u64) -> Next {
    let Some(rest) = segment.get(at..) else {
        return Next::Nothing;
    };
    let (Some(len), Some(magic)) = (word32(rest, 0), word32(rest, 4)) else {
        return Next::Nothing;
    };
    let len = len as usize;
    let place = match magic {
        MAGIC => Place::Later,
        MAGIC_FIRST => Place::First,
        _ => return Next::Nothing,
    };
    if len > MAX_BODY || rest.len() < RECORD_HEAD + len {
        return Next::Nothing;
    }
    let record = &rest[..RECORD_HEAD + len];
    let fields = (word64(record, 8), word64(record, 16), word64(record, 24));
    let (Some(epoch), Some(sequence), Some(crc)) = fields else {
        return Next::Nothing;
    };
    if record_crc(record, generation) != crc {
        return Next::Nothing;
    }
    match parse_body(&record[RECORD_HEAD..]) {
        Some(batch) => {
            Next::Record(Record { epoch, sequence, place, batch }, at + RECORD_HEAD + len)
        }
        None => Next::Nothing,
    }
}

fn parse_body(mut body: &[u8]) -> Option<Batch> {
    let mut batch = Batch::new();
    while !body.is_empty() {
        let key_len = word32(body, 0)? as usize;
        let value_len = word32(body, 4)?;
        body = &body[8..];
        let key = body.get(..key_len)?;
        body = &body[key_len..];
        if value_len == u32::MAX {
            batch.delete(key.to_vec());
        } else {
            let value = body.get(..value_len as usize)?;
            body = &body[value_len as usize..];
            batch.put(key.to_vec(), value.to_vec());
        }
    }
    Some(batch)
}

/// All records of a segment up to the first gap. Where a later group begins behind the gap, the
/// gap is damage and not the torn end.
pub fn scan(segment: &[u8], generation: u64) -> (Vec<Record>, Gap) {
    let mut records: Vec<Record> = Vec::new();
    let mut at = BLOCK;
    loop {
        let next = records.last().map(|last| last.sequence.wrapping_add(1));
        match parse(segment, at, generation) {
            Next::Record(record, end) if next.is_none_or(|next| next == record.sequence) => {
                records.push(record);
                at = end;
            }
            _ if at.is_multiple_of(BLOCK) => break,
            _ => at = at.next_multiple_of(BLOCK),
        }
    }
    let last = records.last().map_or(0, |r| r.sequence);
    for probe in (at..segment.len()).step_by(BLOCK) {
        if let Next::Record(record, _) = parse(segment, probe, generation)
            && record.place == Place::First
            && record.sequence > last
        {
            return (records, Gap::Damage { at, later: record.sequence });
        }
    }
    (records, Gap::End { at })
}

/// How a segment ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gap {
    End {
        at: usize,
    },
    /// What lay at `at` had been durable before record `later` was written.
    Damage {
        at: usize,
        later: u64,
    },
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(groups: &[&[u64]]) -> Vec<u8> {
        let mut out = SegmentHead { generation: 7 }.encode().to_vec();
        for group in groups {
            for (i, &sequence) in group.iter().enumerate() {
                let mut batch = Batch::new();
                let place = if i == 0 { Place::First } else { Place::Later };
                batch.put(sequence.to_be_bytes().to_vec(), vec![sequence as u8; 300]);
                batch.delete(b"gone".to_vec());
                encode(&mut out, 7, 1, sequence, place, &batch);
            }
            out.resize(out.len().next_multiple_of(BLOCK), 0);
        }
        out.resize(64 * BLOCK, 0);
        out
    }

    #[test]
    fn groups_come_back_in_order() {
        let (records, gap) = scan(&segment(&[&[1, 2, 3], &[4], &[5, 6]]), 7);
        let sequences: Vec<_> = records.iter().map(|r| r.sequence).collect();
        assert_eq!((sequences, gap), (vec![1, 2, 3, 4, 5, 6], Gap::End { at: 4 * BLOCK }));
        assert_eq!(records[0].batch.get(b"gone"), Some(None));
    }

    #[test]
    fn an_older_use_of_the_segment_does_not_count() {
        assert_eq!(scan(&segment(&[&[1]]), 8).0, []);
    }

    #[test]
    fn a_bad_group_before_a_good_one_is_damage() {
        let mut bytes = segment(&[&[1], &[2], &[3]]);
        bytes[2 * BLOCK + 40] ^= 1;
        let (records, gap) = scan(&bytes, 7);
        assert_eq!((records.len(), gap), (1, Gap::Damage { at: 2 * BLOCK, later: 3 }));
    }

    #[test]
    fn a_bad_last_group_is_the_torn_end() {
        let mut bytes = segment(&[&[1], &[2]]);
        bytes[2 * BLOCK + 40] ^= 1;
        assert_eq!(scan(&bytes, 7).1, Gap::End { at: 2 * BLOCK });
    }
    /// Two records of a block each: the second one lies where a group could begin.
    #[test]
    fn the_rest_of_a_torn_group_is_not_a_later_group() {
        let mut bytes = SegmentHead { generation: 7 }.encode().to_vec();
        for (sequence, place) in [(1, Place::First), (2, Place::Later), (3, Place::Later)] {
            let mut batch = Batch::new();
            batch.put(b"key".to_vec(), vec![sequence as u8; BLOCK - RECORD_HEAD - 8 - 3]);
            encode(&mut bytes, 7, 1, sequence, place, &batch);
        }
        assert_eq!(bytes.len(), 4 * BLOCK);
        bytes.resize(16 * BLOCK, 0);
        assert_eq!(scan(&bytes, 7).0.len(), 3);
        for torn in 1..=3 {
            let mut bad = bytes.clone();
            bad[torn * BLOCK + 100] ^= 1;
            let (records, gap) = scan(&bad, 7);
            assert_eq!((records.len(), gap), (torn - 1, Gap::End { at: torn * BLOCK }));
        }
    }

    #[test]
    fn a_head_is_valid_or_never_written_or_damaged() {
        let good = SegmentHead { generation: 7 }.encode();
        assert_eq!(SegmentHead::decode(&good), HeadState::Valid(SegmentHead { generation: 7 }));
        assert_eq!(SegmentHead::decode(&[0; BLOCK]), HeadState::Empty);
        for bit in 0..HEAD_USED * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHead::decode(&bad), HeadState::Damaged, "bit {bit}");
        }
    }
}
