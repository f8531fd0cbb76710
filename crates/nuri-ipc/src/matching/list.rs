//! Entries that are in one list by age and in a bucket by key. Removal from both takes constant
//! time.

/// Buckets for exact keys, a power of two.
const BUCKETS: u16 = 256;
/// The bucket of what has no exact key.
pub(super) const WILD: u16 = BUCKETS;
const NONE: u32 = u32::MAX;

/// The bucket of a sender and a tag.
#[inline]
pub(super) fn bucket(source: u32, tag: u64) -> u16 {
    let mixed = (tag ^ (u64::from(source) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u16
}

/// Names an entry; never valid again once the entry is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    age: u64,
}

impl Key {
    /// Lower is older.
    #[inline]
    pub(super) fn age(self) -> u64 {
        self.age
    }
}

/// Neighbours in a list.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

/// First and last of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends { first: NONE, last: NONE };

#[derive(Debug)]
struct Entry<T> {
    age: u64,
    bucket: u16,
    /// By age, and within the bucket.
    links: [Link; 2],
    value: Option<T>,
}

const AGE: usize = 0;
const BUCKET: usize = 1;

#[derive(Debug)]
pub(super) struct Lists<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    all: Ends,
    buckets: Box<[Ends]>,
    next_age: u64,
}

impl<T> Lists<T> {
    pub(super) fn new() -> Self {
        let buckets = vec![EMPTY; usize::from(BUCKETS) + 1].into_boxed_slice();
        Self { entries: Vec::new(), free: Vec::new(), all: EMPTY, buckets, next_age: 0 }
    }

    /// Adds the youngest entry.
    #[inline]
    pub(super) fn push(&mut self, bucket: u16, value: T) -> Key {
        let age = self.next_age;
        self.next_age += 1;
        let links = [
            Link { before: self.all.last, after: NONE },
            Link { before: self.buckets[usize::from(bucket)].last, after: NONE },
        ];
        let entry = Entry { age, bucket, links, value: Some(value) };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        for list in [AGE, BUCKET] {
            let before = links[list].before;
            if before == NONE {
                self.ends(list, bucket).first = index;
            } else {
                self.entries[before as usize].links[list].after = index;
            }
            self.ends(list, bucket).last = index;
        }
        Key { index, age }
    }

    /// Takes an entry out, if it is still there.
    #[inline]
    pub(super) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.index as usize).filter(|e| e.age == key.age)?;
        let value = entry.value.take()?;
        let (links, bucket) = (entry.links, entry.bucket);
        for (list, Link { before, after }) in links.into_iter().enumerate() {
            match before {
                NONE => self.ends(list, bucket).first = after,
                before => self.entries[before as usize].links[list].after = after,
            }
            match after {
                NONE => self.ends(list, bucket).last = before,
                after => self.entries[after as usize].links[list].before = before,
            }
        }
        self.free.push(key.index);
        Some(value)
    }

    pub(super) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index as usize).filter(|e| e.age == key.age)?;
        entry.value.as_ref()
    }

    #[inline]
    pub(super) fn oldest(&self) -> Option<(Key, &T)> {
        self.by_age().next()
    }

    pub(super) fn by_age(&self) -> impl Iterator<Item = (Key, &T)> {
        self.walk(AGE, self.all.first)
    }

    pub(super) fn in_bucket(&self, bucket: u16) -> impl Iterator<Item = (Key, &T)> {
        self.walk(BUCKET, self.buckets[usize::from(bucket)].first)
    }

    fn walk(&self, list: usize, mut at: u32) -> impl Iterator<Item = (Key, &T)> {
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            let key = Key { index: at, age: entry.age };
            at = entry.links[list].after;
            entry.value.as_ref().map(|value| (key, value))
        })
    }

    #[inline]
    fn ends(&mut self, list: usize, bucket: u16) -> &mut Ends {
        if list == AGE { &mut self.all } else { &mut self.buckets[usize::from(bucket)] }
    }
}
