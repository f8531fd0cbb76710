//! Sets of byte ranges within one buffer block.

/// Disjoint, ascending, merged ranges `start..end`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct RangeSet {
    ranges: Vec<(u32, u32)>,
}

impl RangeSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.ranges.iter().copied()
    }

    /// Bytes in the set.
    pub(crate) fn total(&self) -> u64 {
        self.ranges.iter().map(|(s, e)| u64::from(e - s)).sum()
    }

    /// Adds a range; returns how many bytes were not in the set before.
    pub(crate) fn insert(&mut self, start: u32, end: u32) -> u64 {
        if start >= end {
            return 0;
        }
        let before = self.total();
        let first = self.ranges.partition_point(|r| r.1 < start);
        let last = self.ranges.partition_point(|r| r.0 <= end);
        let merged = self.ranges[first..last]
            .iter()
            .fold((start, end), |acc, r| (acc.0.min(r.0), acc.1.max(r.1)));
        self.ranges.splice(first..last, [merged]);
        self.total() - before
    }

    /// Takes a range out; returns how many bytes went.
    pub(crate) fn remove(&mut self, start: u32, end: u32) -> u64 {
        if start >= end {
            return 0;
        }
        let before = self.total();
        let mut out = Vec::with_capacity(self.ranges.len() + 1);
        for &(s, e) in &self.ranges {
            if s < start.min(e) {
                out.push((s, start.min(e)));
            }
            if e > end.max(s) {
                out.push((end.max(s), e));
            }
        }
        self.ranges = out;
        before - self.total()
    }

    /// The parts of `start..end` that are in the set.
    pub(crate) fn within(&self, start: u32, end: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.ranges.iter().map(move |r| (r.0.max(start), r.1.min(end))).filter(|(s, e)| s < e)
    }

    /// The parts of `start..end` that are not in the set.
    pub(crate) fn gaps(&self, start: u32, end: u32) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        let mut at = start;
        for (s, e) in self.within(start, end) {
            if at < s {
                out.push((at, s));
            }
            at = e;
        }
        if at < end {
            out.push((at, end));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operations() -> impl Strategy<Value = Vec<(bool, u32, u32)>> {
        prop::collection::vec((any::<bool>(), 0u32..64, 0u32..64), 0..40)
    }

    proptest! {
        #[test]
        fn behaves_like_a_bitmap(ops in operations()) {
            let mut set = RangeSet::default();
            let mut bits = [false; 64];
            for (add, a, b) in ops {
                let (start, end) = (a.min(b), a.max(b));
                let part = &bits[start as usize..end as usize];
                let changed = part.iter().filter(|x| **x != add).count();
                let told = if add { set.insert(start, end) } else { set.remove(start, end) };
                bits[start as usize..end as usize].fill(add);
                prop_assert_eq!(told, changed as u64);
                let mut seen = [false; 64];
                set.iter().for_each(|(s, e)| seen[s as usize..e as usize].fill(true));
                prop_assert_eq!(seen, bits);
                let gaps: u32 = set.gaps(0, 64).iter().map(|(s, e)| e - s).sum();
                prop_assert_eq!(u64::from(gaps) + set.total(), 64);
                prop_assert!(set.ranges.windows(2).all(|w| w[0].1 < w[1].0));
            }
        }
    }
}
