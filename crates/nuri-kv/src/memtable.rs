//! Changes that are not yet in the tables, and merged views over both.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::engine::{Batch, Pair};

/// Changes by key; `None` is a deletion.
#[derive(Default)]
pub(crate) struct MemTable {
    map: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl MemTable {
    pub(crate) fn apply(&mut self, batch: &Batch) {
        for (key, value) in &batch.changes {
            self.map.insert(key.clone(), value.clone());
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        self.map.get(key).map(|value| value.as_deref())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.map.iter().map(|(k, v)| (k.as_slice(), v.as_deref()))
    }

    /// Changes of keys above `after`, ascending.
    pub(crate) fn above<'a>(
        &'a self,
        after: &[u8],
    ) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + use<'a> {
        self.map
            .range::<[u8], _>((Bound::Excluded(after), Bound::Unbounded))
            .map(|(k, v)| (k.as_slice(), v.as_deref()))
    }
}

/// Merges a newer layer of changes over an older, each ascending by key; the newer wins.
pub(crate) fn overlay<'a>(
    newer: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    older: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> {
    let (mut newer, mut older) = (newer.peekable(), older.peekable());
    std::iter::from_fn(move || match (newer.peek(), older.peek()) {
        (Some((n, _)), Some((o, _))) if n == o => {
            older.next();
            newer.next()
        }
        (Some((n, _)), Some((o, _))) if n < o => newer.next(),
        (Some(_), None) => newer.next(),
        _ => older.next(),
    })
}

/// Merges changes over stored pairs until `limit` pairs of `prefix` are found. `fetch` returns a
/// page of stored pairs above a key, empty at the end.
pub(crate) fn merge<'a, E>(
    changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    prefix: &[u8],
    after: &[u8],
    limit: usize,
    mut fetch: impl FnMut(&[u8]) -> Result<Vec<Pair>, E>,
) -> Result<Vec<Pair>, E> {
    let mut changes = changes.take_while(|(key, _)| key.starts_with(prefix)).peekable();
    let mut page = fetch(after)?.into_iter().peekable();
    let mut out: Vec<Pair> = Vec::new();
    let mut last = after.to_vec();
    let mut stored_left = page.peek().is_some();
    while out.len() < limit {
        if stored_left && page.peek().is_none() {
            page = fetch(&last)?.into_iter().peekable();
            stored_left = page.peek().is_some();
        }
        let change_first = match (changes.peek(), page.peek()) {
            (Some((c, _)), Some((p, _))) => *c <= p.as_slice(),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => break,
        };
        if change_first {
            let Some((key, value)) = changes.next() else {
                break;
            };
            if page.peek().is_some_and(|(p, _)| p == key) {
                last = key.to_vec();
                page.next();
            }
            if let Some(value) = value {
                out.push((key.to_vec(), value.to_vec()));
            }
        } else if let Some((key, value)) = page.next() {
            last.clone_from(&key);
            out.push((key, value));
        }
    }
    Ok(out)
}
