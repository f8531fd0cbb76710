//! How a file's bytes are spread over groups: the layout, which is fixed when the file is created.

use serde::{Deserialize, Serialize};

use crate::id::{GroupId, PoolId};
use crate::limit::{
    DEFAULT_CHUNK, MAX_CHUNK, MAX_COPIES, MAX_DATA, MAX_PARITY, MAX_WIDTH, MIN_CHUNK,
};

/// Redundancy of a layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Shape {
    /// No redundancy.
    #[default]
    Stripe,
    /// `n` copies.
    Mirror(u8),
    /// `k` data and `m` parity members.
    Parity { k: u8, m: u8 },
}

impl Shape {
    /// Number of data members of a group. As many members must be left for the data to be whole.
    pub fn data(self) -> usize {
        match self {
            Shape::Stripe | Shape::Mirror(_) => 1,
            Shape::Parity { k, .. } => usize::from(k),
        }
    }

    /// Number of members of a group.
    pub fn members(self) -> usize {
        match self {
            Shape::Stripe => 1,
            Shape::Mirror(copies) => usize::from(copies),
            Shape::Parity { k, m } => usize::from(k) + usize::from(m),
        }
    }

    pub fn is_redundant(self) -> bool {
        self != Shape::Stripe
    }

    /// The best shape that so many targets can have.
    pub fn best_for(targets: usize) -> Shape {
        match targets {
            0..2 => Shape::Stripe,
            2..4 => Shape::Mirror(2),
            _ => Shape::Parity { k: 3, m: 1 },
        }
    }

    /// The shape that was asked for, or the best one that so many targets can have.
    ///
    /// # Errors
    /// [`LayoutError::TooFewTargets`].
    pub fn for_targets(asked: Option<Shape>, targets: usize) -> Result<Shape, LayoutError> {
        let best = Shape::best_for(targets);
        let shape = asked.unwrap_or(best);
        if shape.members() > targets {
            return Err(LayoutError::TooFewTargets { shape, targets, best });
        }
        Ok(shape)
    }

    /// Refuses what cannot be stored.
    ///
    /// # Errors
    /// [`LayoutError::Shape`].
    pub fn check(self) -> Result<Shape, LayoutError> {
        let fits = match self {
            Shape::Stripe => true,
            Shape::Mirror(copies) => (2..=MAX_COPIES).contains(&usize::from(copies)),
            Shape::Parity { k, m } => {
                (1..=MAX_DATA).contains(&usize::from(k))
                    && (1..=MAX_PARITY).contains(&usize::from(m))
            }
        };
        if fits { Ok(self) } else { Err(LayoutError::Shape) }
    }
}

/// A chunk size that was checked: a power of two between 64 KiB and 64 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct ChunkSize(u32);

impl ChunkSize {
    pub const DEFAULT: ChunkSize = ChunkSize(DEFAULT_CHUNK);

    /// Length in bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }
}

impl From<ChunkSize> for u32 {
    fn from(size: ChunkSize) -> u32 {
        size.0
    }
}

impl TryFrom<u32> for ChunkSize {
    type Error = LayoutError;
    fn try_from(bytes: u32) -> Result<ChunkSize, LayoutError> {
        if bytes.is_power_of_two() && (MIN_CHUNK..=MAX_CHUNK).contains(&bytes) {
            Ok(ChunkSize(bytes))
        } else {
            Err(LayoutError::ChunkSize(bytes))
        }
    }
}

/// One entry of a layout: a byte range of the file and how it is stored. Covers the whole file now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Component {
    pub start: u64,
    pub end: u64,
    pub shape: Shape,
    pub chunk_size: ChunkSize,
    pub pool: PoolId,
    /// Stripe `i` lies on `groups[i % groups.len()]`; the length is the width.
    pub groups: Vec<GroupId>,
}

/// A file's layout.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    pub generation: u32,
    pub components: Vec<Component>,
}

impl Layout {
    /// Bytes of a file of this size that lie on some of its groups.
    pub fn bytes_on(&self, size: u64, are_meant: impl Fn(GroupId) -> bool) -> u64 {
        let mut bytes = 0;
        for component in &self.components {
            let span = size.min(component.end).saturating_sub(component.start);
            let stripe = component.chunk_size.bytes() * component.shape.data() as u64;
            let (stripes, width) = (span.div_ceil(stripe), component.groups.len() as u64);
            let meant = component.groups.iter().zip(0..).filter(|(group, _)| are_meant(**group));
            for (_, first) in meant.filter(|(_, first)| *first < stripes) {
                let own = (stripes - first).div_ceil(width);
                let has_last = (stripes - 1) % width == first;
                bytes += own * stripe - if has_last { stripes * stripe - span } else { 0 };
            }
        }
        bytes
    }
}

/// The layout that new files of a directory inherit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LayoutPolicy {
    pub shape: Shape,
    pub chunk_size: ChunkSize,
    /// 0: over all groups of the pool.
    pub width: u16,
    pub pool: PoolId,
}

/// Why a layout is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("chunk size {0} is not a power of two between 64 KiB and 64 MiB")]
    ChunkSize(u32),
    #[error("width {0} is more than {MAX_WIDTH}")]
    Width(u16),
    #[error(
        "a shape is `stripe`, `mirror:N` with 2 to {MAX_COPIES} copies, or `parity:K+M` with \
         1 to {MAX_DATA} data and 1 to {MAX_PARITY} parity members"
    )]
    Shape,
    #[error(
        "{shape} needs {} targets, and there are {targets}: give more targets, or choose --shape \
         {best}",
        shape.members()
    )]
    TooFewTargets { shape: Shape, targets: usize, best: Shape },
}

impl Default for LayoutPolicy {
    fn default() -> Self {
        LayoutPolicy {
            shape: Shape::Stripe,
            chunk_size: ChunkSize::DEFAULT,
            width: 0,
            pool: PoolId(0),
        }
    }
}

impl LayoutPolicy {
    /// Refuses what cannot be stored.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn check(&self) -> Result<(), LayoutError> {
        self.shape.check()?;
        if self.width > MAX_WIDTH { Err(LayoutError::Width(self.width)) } else { Ok(()) }
    }

    /// The layout of a new file: `width` of the pool's groups, the first one chosen by `seed` so
    /// that files start on different targets.
    pub fn instantiate(&self, pool_groups: &[GroupId], seed: u64) -> Layout {
        let all = pool_groups.len();
        let width = if self.width == 0 { all } else { all.min(self.width as usize) };
        let first = if all == 0 { 0 } else { (seed % all as u64) as usize };
        let groups = (0..width).map(|i| pool_groups[(first + i) % all]).collect();
        let component = Component {
            start: 0,
            end: u64::MAX,
            shape: self.shape,
            chunk_size: self.chunk_size,
            pool: self.pool,
            groups,
        };
        Layout { generation: 1, components: vec![component] }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shape::Stripe => f.write_str("stripe"),
            Shape::Mirror(n) => write!(f, "mirror:{n}"),
            Shape::Parity { k, m } => write!(f, "parity:{k}+{m}"),
        }
    }
}

impl std::str::FromStr for Shape {
    type Err = LayoutError;
    fn from_str(text: &str) -> Result<Shape, LayoutError> {
        let number = |text: &str| text.parse::<u8>().map_err(|_| LayoutError::Shape);
        let shape = match text.split_once(':') {
            None if text == "stripe" => Shape::Stripe,
            Some(("mirror", copies)) => Shape::Mirror(number(copies)?),
            Some(("parity", members)) => {
                let (k, m) = members.split_once('+').ok_or(LayoutError::Shape)?;
                Shape::Parity { k: number(k)?, m: number(m)? }
            }
            _ => return Err(LayoutError::Shape),
        };
        shape.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_checked() {
        assert!(ChunkSize::try_from(65536).is_ok());
        assert!(ChunkSize::try_from(100_000).is_err());
        assert!(ChunkSize::try_from(32 << 10).is_err());
        assert!(crate::codec::decode::<ChunkSize>(&crate::codec::encode(&7u32).unwrap()).is_err());
    }

    #[test]
    fn shapes_are_read_and_checked() {
        for text in ["stripe", "mirror:2", "mirror:4", "parity:1+1", "parity:16+4"] {
            assert_eq!(text.parse::<Shape>().unwrap().to_string(), text);
        }
        for text in ["", "mirror", "mirror:1", "mirror:5", "parity:3", "parity:0+1", "parity:17+1"]
        {
            assert!(text.parse::<Shape>().is_err(), "{text}");
        }
        let shape = Shape::Parity { k: 3, m: 2 };
        assert_eq!((shape.data(), shape.members()), (3, 5));
    }

    #[test]
    fn bytes_are_counted_by_group() {
        const MIB: u64 = 1 << 20;
        let of = |shape| {
            LayoutPolicy { shape, ..LayoutPolicy::default() }
                .instantiate(&[GroupId(4), GroupId(5)], 0)
        };
        let on = |shape, size, group| of(shape).bytes_on(size, |g| g == GroupId(group));
        let size = 2 * MIB + 100;
        assert_eq!(on(Shape::Stripe, size, 4), MIB + 100);
        assert_eq!(on(Shape::Stripe, size, 5), MIB);
        assert_eq!(on(Shape::Mirror(2), MIB, 5), 0);
        let parity = Shape::Parity { k: 3, m: 1 };
        assert_eq!([4, 5].map(|g| on(parity, 7 * MIB, g)), [4 * MIB, 3 * MIB]);
        assert_eq!([4, 5, 6].map(|g| on(parity, 0, g)), [0; 3]);
    }

    #[test]
    fn files_rotate_their_first_group() {
        let groups = [GroupId(0), GroupId(1), GroupId(2)];
        let policy = LayoutPolicy { width: 2, ..LayoutPolicy::default() };
        let firsts: Vec<_> = (0..4).map(|s| policy.instantiate(&groups, s)).collect();
        assert_eq!(firsts[0].components[0].groups, [GroupId(0), GroupId(1)]);
        assert_eq!(firsts[2].components[0].groups, [GroupId(2), GroupId(0)]);
        assert_eq!(firsts[3].components[0].groups, firsts[0].components[0].groups);
    }
}
