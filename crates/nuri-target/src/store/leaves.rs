//! An ordered map for millions of small values: sorted leaves that are nearly full.
//!
//! The standard tree keeps an entry in a node that ascending insertion leaves half empty. Here the
//! tree holds leaves of many entries. Insertion at the end of a full leaf begins a new leaf and
//! leaves the old one full. Insertion elsewhere splits the leaf. Capacity grows and shrinks with
//! the entries, and neighbours that became small are joined. Caller: the index.

use std::collections::BTreeMap;

/// Most entries of a leaf.
const FULL: usize = 64;
/// Neighbours are joined up to this many entries, so that the next insertions do not split again.
const JOINED: usize = FULL * 3 / 4;
/// Entries that a leaf grows by.
const STEP: usize = 4;

/// See the module's text. A leaf's key in the tree is not above its entries' keys.
pub struct LeafMap<K, V> {
    leaves: BTreeMap<K, Vec<(K, V)>>,
    len: u64,
}

impl<K, V> Default for LeafMap<K, V> {
    fn default() -> Self {
        LeafMap { leaves: BTreeMap::new(), len: 0 }
    }
}

fn find<K: Ord, V>(leaf: &[(K, V)], key: &K) -> Result<usize, usize> {
    leaf.binary_search_by(|(there, _)| there.cmp(key))
}

impl<K: Ord + Copy, V: Default> LeafMap<K, V> {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        let (_, leaf) = self.leaves.range(..=key).next_back()?;
        Some(&leaf[find(leaf, key).ok()?].1)
    }

    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (_, leaf) = self.leaves.range_mut(..=key).next_back()?;
        let i = find(leaf, key).ok()?;
        Some(&mut leaf[i].1)
    }

    /// The value of the key, made where there is none.
    pub fn get_or_default(&mut self, key: K) -> &mut V {
        let low = self.leaf_for(key);
        let leaf = self.leaves.entry(low).or_default();
        let i = match find(leaf, &key) {
            Ok(i) => i,
            Err(i) => {
                if leaf.len() == leaf.capacity() {
                    leaf.reserve_exact(STEP);
                }
                leaf.insert(i, (key, V::default()));
                self.len += 1;
                i
            }
        };
        &mut leaf[i].1
    }

    pub fn remove(&mut self, key: &K) {
        let Some((&low, leaf)) = self.leaves.range_mut(..=key).next_back() else { return };
        let Ok(i) = find(leaf, key) else { return };
        leaf.remove(i);
        self.len -= 1;
        if leaf.capacity() > leaf.len() + 2 * STEP {
            leaf.shrink_to(leaf.len() + STEP);
        }
        if leaf.len() < FULL / 4 {
            self.join_next(low);
            if let Some((&before, _)) = self.leaves.range(..low).next_back() {
                self.join_next(before);
            }
        }
    }

    /// Everything from `key` on, ascending.
    pub fn range(&self, key: K) -> impl Iterator<Item = (&K, &V)> {
        let low = self.leaves.range(..=key).next_back().map_or(key, |(low, _)| *low);
        let all = self.leaves.range(low..).flat_map(|(_, leaf)| leaf);
        all.skip_while(move |(there, _)| *there < key).map(|(key, value)| (key, value))
    }

    /// Everything, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.leaves.values().flatten().map(|(key, value)| (key, value))
    }

    /// The leaf that has the key or room for it.
    fn leaf_for(&mut self, key: K) -> K {
        if self.leaves.first_key_value().is_none_or(|(low, _)| key < *low) {
            // Below all others: the first leaf takes it, under a lower key.
            let first = self.leaves.pop_first().unwrap_or((key, Vec::new()));
            self.leaves.insert(key, first.1);
        }
        let Some((&low, leaf)) = self.leaves.range_mut(..=key).next_back() else { return key };
        let Err(at) = find(leaf, &key) else { return low };
        if leaf.len() < FULL {
            return low;
        }
        let upper = leaf.split_off(if at == FULL { FULL } else { FULL / 2 });
        leaf.shrink_to_fit();
        let next = upper.first().map_or(key, |(first, _)| *first);
        self.leaves.insert(next, upper);
        if key < next { low } else { next }
    }

    /// Joins the leaf with the next one where both are small.
    fn join_next(&mut self, low: K) {
        let next = self.leaves.range(low..).nth(1).map(|(next, leaf)| (*next, leaf.len()));
        let Some(leaf) = self.leaves.get(&low) else { return };
        match next {
            Some((next, more)) if leaf.len() + more <= JOINED => {
                let mut upper = self.leaves.remove(&next).unwrap_or_default();
                if let Some(leaf) = self.leaves.get_mut(&low) {
                    leaf.reserve_exact(upper.len());
                    leaf.append(&mut upper);
                }
            }
            _ if leaf.is_empty() => drop(self.leaves.remove(&low)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuri_io::rng::Rng;

    fn check(map: &LeafMap<u64, u64>, model: &BTreeMap<u64, u64>) {
        assert!(map.iter().eq(model.iter()));
        assert_eq!(map.len(), model.len() as u64);
        assert!(map.leaves.values().all(|leaf| !leaf.is_empty() && leaf.len() <= FULL));
        assert!(map.leaves.iter().all(|(low, leaf)| *low <= leaf[0].0));
    }

    #[test]
    fn random_against_tree() {
        let mut rng = Rng::new(8);
        let (mut map, mut model) = (LeafMap::default(), BTreeMap::new());
        for round in 0..40_000u64 {
            let key = rng.below(3000);
            // Grows, then shrinks, again and again.
            if rng.below(10) < if round / 5000 % 2 == 0 { 7 } else { 2 } {
                *map.get_or_default(key) = round;
                model.insert(key, round);
            } else {
                map.remove(&key);
                model.remove(&key);
            }
            let probe = rng.below(3000);
            assert_eq!(map.get(&probe), model.get(&probe));
            assert_eq!(map.get_mut(&key).copied(), model.get(&key).copied());
            if round % 500 == 0 {
                check(&map, &model);
                assert!(map.range(probe).eq(model.range(probe..)));
            }
        }
        model.keys().for_each(|key| map.remove(key));
        check(&map, &BTreeMap::new());
    }

    #[test]
    fn leaves_are_full_after_ascending_and_never_much_too_large() {
        let mut map: LeafMap<u64, u64> = LeafMap::default();
        // Two ascending sequences at once, as two growing files make them.
        for i in 0..6400 {
            map.get_or_default(i);
            map.get_or_default(1_000_000 + i);
        }
        assert!(map.leaves.len() <= 203, "{}", map.leaves.len());
        let slots = |map: &LeafMap<u64, u64>| map.leaves.values().map(Vec::capacity).sum::<usize>();
        assert!(slots(&map) <= 12_800 + 2 * FULL);
        (0..6400).filter(|i| i % 20 != 0).for_each(|i| map.remove(&i));
        assert!(map.leaves.len() < 120, "{}", map.leaves.len());
        assert!(slots(&map) as u64 <= map.len() * 5 / 4, "{} {}", slots(&map), map.len());
    }
}
