//! A small generator (xorshift64*) for places: the same numbers for the same seed.

pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        // Never 0, from which only zeros come.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// At least 0 and less than `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(number) * u128::from(limit)) >> 64) as u64
    }

    /// Puts items in random order (Fisher and Yates).
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffling_keeps_all_items() {
        let items: Vec<u64> = (0..1000).collect();
        let (mut mixed, mut again) = (items.clone(), items.clone());
        Random::new(5).shuffle(&mut mixed);
        Random::new(5).shuffle(&mut again);
        assert_eq!(mixed, again);
        assert_ne!(mixed, items);
        mixed.sort_unstable();
        assert_eq!(mixed, items);
    }

    #[test]
    fn numbers_spread_over_the_range() {
        let mut random = Random::new(0);
        let mut counts = [0; 10];
        (0..10_000).for_each(|_| counts[random.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
