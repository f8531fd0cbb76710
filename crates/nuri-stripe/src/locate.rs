//! Maps a range of a file to pieces: which part of which chunk, on which group.

use nuri_proto::id::{ChunkKey, GroupId, ObjectId};
use nuri_proto::layout::{Component, Layout, Shape};
use nuri_proto::limit::MAX_PAYLOAD;

/// A part of one chunk, short enough for one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub group: GroupId,
    pub shape: Shape,
    pub key: ChunkKey,
    /// The data member's place in the group.
    pub place: usize,
    /// Where the piece begins in its chunk, bytes.
    pub offset: u32,
    pub len: u32,
    /// Where the piece begins in the file, bytes.
    pub file_offset: u64,
}

/// The pieces of `offset..offset + len`, ascending. Empty where the layout has no component there.
pub fn pieces(
    layout: &Layout,
    object: ObjectId,
    offset: u64,
    len: u64,
) -> impl Iterator<Item = Piece> + '_ {
    short_pieces(layout, object, (offset, len), MAX_PAYLOAD as u32)
}

/// As [`pieces`], of at most `most` bytes each, which divides a frame's payload.
pub fn short_pieces(
    layout: &Layout,
    object: ObjectId,
    (offset, len): (u64, u64),
    most: u32,
) -> impl Iterator<Item = Piece> + '_ {
    let end = offset.saturating_add(len);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (index, component) = component_at(layout, at)?;
        let piece = piece_at(component, index, object, (at, end), most)?;
        at += u64::from(piece.len);
        Some(piece)
    })
}

fn component_at(layout: &Layout, at: u64) -> Option<(u16, &Component)> {
    let index = layout.components.iter().position(|c| (c.start..c.end).contains(&at))?;
    Some((index as u16, &layout.components[index]))
}

fn piece_at(
    c: &Component,
    index: u16,
    object: ObjectId,
    (at, end): (u64, u64),
    most: u32,
) -> Option<Piece> {
    let chunk = c.chunk_size.bytes();
    let data = c.shape.data() as u64;
    let stripe = u32::try_from(at / (chunk * data)).ok()?;
    let place = (at / chunk % data) as usize;
    let within = at % chunk;
    let group = *c.groups.get(stripe as usize % c.groups.len().max(1))?;
    // Pieces end at multiples of their length, so that large transfers stay aligned.
    let most = u64::from(most);
    let len = (chunk - within).min(most - within % most).min(end.min(c.end) - at);
    Some(Piece {
        group,
        shape: c.shape,
        place,
        key: ChunkKey { object, component: index, stripe },
        offset: within as u32,
        len: len as u32,
        file_offset: at,
    })
}

/// Blocks of one frame's length, one per data member, that hold the same rows of stripes as this
/// one, ascending: what is written together so that parity follows from it.
pub fn row_blocks(component: &Component, block: u64) -> Vec<u64> {
    let data = component.shape.data() as u64;
    // Chunks shorter than a block: as many blocks as data members hold whole stripes.
    let per_chunk = (component.chunk_size.bytes() / MAX_PAYLOAD as u64).max(1);
    let first = block / (data * per_chunk) * data * per_chunk + block % per_chunk;
    (0..data).map(|place| first + place * per_chunk).collect()
}

#[cfg(test)]
mod tests {
    use nuri_proto::layout::{ChunkSize, LayoutPolicy};

    use super::*;

    fn layout(chunk: u32, width: u16) -> Layout {
        let groups: Vec<_> = (0..8).map(GroupId).collect();
        let chunk_size = ChunkSize::try_from(chunk).unwrap();
        LayoutPolicy { chunk_size, width, ..LayoutPolicy::default() }.instantiate(&groups, 0)
    }

    #[test]
    fn pieces_tile_the_range_and_rotate() {
        for (chunk, width) in [(65536, 1), (65536, 3), (1 << 20, 4), (4 << 20, 8)] {
            let layout = layout(chunk, width);
            for (offset, len) in [(0, 1), (65535, 2), (123, 9 << 20), (5 << 20, 3 << 20)] {
                let mut at = offset;
                for p in pieces(&layout, ObjectId(9), offset, len) {
                    assert_eq!(p.file_offset, at);
                    assert_eq!(
                        at,
                        u64::from(p.key.stripe) * u64::from(chunk) + u64::from(p.offset)
                    );
                    assert_eq!(p.group, GroupId(p.key.stripe % u32::from(width)));
                    assert!(p.len > 0 && p.len as usize <= MAX_PAYLOAD);
                    at += u64::from(p.len);
                }
                assert_eq!(at, offset + len);
            }
        }
    }

    #[test]
    fn short_pieces_are_parts_of_pieces() {
        let layout = layout(4 << 20, 3);
        let range = (123, 9 << 20);
        let short: Vec<_> = short_pieces(&layout, ObjectId(9), range, 256 << 10).collect();
        let ends = |p: &Piece| (p.file_offset, p.file_offset + u64::from(p.len));
        assert!(short.windows(2).all(|pair| ends(&pair[0]).1 == ends(&pair[1]).0));
        assert!(short.iter().all(|p| p.len <= 256 << 10));
        for piece in pieces(&layout, ObjectId(9), range.0, range.1) {
            let (from, to) = ends(&piece);
            let within = |p: &&Piece| (from..to).contains(&p.file_offset);
            let parts: Vec<_> = short.iter().filter(within).collect();
            assert!(parts.iter().all(|p| p.key == piece.key && p.group == piece.group));
            assert_eq!(parts.iter().map(|p| p.len).sum::<u32>(), piece.len);
        }
    }

    #[test]
    fn a_stripe_of_parity_holds_its_data_members_chunks_in_turn() {
        let groups: Vec<_> = (0..4).map(GroupId).collect();
        let shape = Shape::Parity { k: 3, m: 1 };
        let layout = LayoutPolicy { shape, ..LayoutPolicy::default() }.instantiate(&groups, 0);
        let all: Vec<_> = pieces(&layout, ObjectId(1), 0, 7 << 20).collect();
        let places: Vec<_> = all.iter().map(|p| (p.key.stripe, p.place, p.group.0)).collect();
        let expected =
            [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 1), (1, 1, 1), (1, 2, 1), (2, 0, 2)];
        assert_eq!(places, expected);
        let within = pieces(&layout, ObjectId(1), (4 << 20) + 5, 10).next().unwrap();
        assert_eq!((within.key.stripe, within.place, within.offset), (1, 1, 5));
    }

    #[test]
    fn rows_are_whole_stripes_or_whole_frames_of_one() {
        let shape = Shape::Parity { k: 3, m: 1 };
        for (chunk, block, expected) in [
            (1 << 20, 4, [3, 4, 5]),
            (64 << 10, 5, [3, 4, 5]),
            (4 << 20, 0, [0, 4, 8]),
            (4 << 20, 18, [14, 18, 22]),
        ] {
            let chunk_size = ChunkSize::try_from(chunk).unwrap();
            let policy = LayoutPolicy { shape, chunk_size, ..LayoutPolicy::default() };
            let layout = policy.instantiate(&[GroupId(0)], 0);
            assert_eq!(row_blocks(&layout.components[0], block), expected, "{chunk}");
        }
    }

    #[test]
    fn beyond_the_largest_file_is_nothing() {
        assert_eq!(pieces(&layout(65536, 2), ObjectId(1), u64::MAX - 4, 4).count(), 0);
    }
}
