//! What a round's files must hold: bytes in memory.

use std::collections::BTreeMap;

use super::call::{Fill, MOST, Mode};

/// Files by number; names lead to them, open files keep them.
#[derive(Default)]
pub(super) struct Expected {
    pub(super) names: BTreeMap<u64, usize>,
    pub(super) files: Vec<Vec<u8>>,
}

impl Expected {
    /// The file of a name, made where there is none.
    pub(super) fn open(&mut self, name: u64, truncate: bool) -> usize {
        let next = self.files.len();
        let number = *self.names.entry(name).or_insert(next);
        if number == next {
            self.files.push(Vec::new());
        }
        if truncate {
            self.files[number].clear();
        }
        number
    }

    pub(super) fn size(&self, file: usize) -> u64 {
        self.files[file].len() as u64
    }

    pub(super) fn fill(&mut self, file: usize, fill: Fill) {
        let Fill { at, len, value } = fill;
        let (bytes, end) = (&mut self.files[file], (at + len) as usize);
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[at as usize..end].fill(value);
    }

    pub(super) fn resize(&mut self, file: usize, size: u64) {
        self.files[file].resize(size as usize, 0);
    }

    pub(super) fn allocate(&mut self, file: usize, mode: Mode, at: u64, len: u64) {
        let (bytes, end) = (&mut self.files[file], at + len);
        if matches!(mode, Mode::Extend | Mode::Zero) && (bytes.len() as u64) < end {
            bytes.resize(end as usize, 0);
        }
        if !matches!(mode, Mode::Extend | Mode::KeepSize) {
            let end = (end as usize).min(bytes.len());
            let start = (at as usize).min(end);
            bytes[start..end].fill(0);
        }
    }

    /// Bytes that a read gives.
    pub(super) fn read(&self, file: usize, at: u64, len: u64) -> &[u8] {
        let bytes = &self.files[file];
        let start = (at as usize).min(bytes.len());
        let end = ((at + len) as usize).min(bytes.len());
        &bytes[start..end]
    }

    pub(super) fn copy(&mut self, (from, at): (usize, u64), (to, to_at): (usize, u64), len: u64) {
        let bytes = self.read(from, at, len).to_vec();
        let end = to_at as usize + bytes.len();
        let into = &mut self.files[to];
        if into.len() < end {
            into.resize(end, 0);
        }
        into[to_at as usize..end].copy_from_slice(&bytes);
    }

    pub(super) fn rename(&mut self, from: u64, to: u64) {
        if let Some(number) = self.names.remove(&from) {
            self.names.insert(to, number);
        }
    }
}

/// Whether a range stays within what the model plays.
pub(super) fn fits(at: u64, len: u64) -> bool {
    len > 0 && at + len <= MOST
}

/// Where two files differ, in words.
pub(super) fn difference(found: &[u8], wanted: &[u8]) -> Option<String> {
    if found == wanted {
        return None;
    }
    if found.len() != wanted.len() {
        return Some(format!("{} bytes, not {}", found.len(), wanted.len()));
    }
    let differs = |(a, b): (&u8, &u8)| a != b;
    let wrong = found.iter().zip(wanted).filter(|pair| differs(*pair)).count();
    let at = found.iter().zip(wanted).position(differs)?;
    let (a, b) = (found[at], wanted[at]);
    Some(format!("byte {at} is {a}, not {b}; so are {wrong} bytes in all"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_reads_as_zeros() {
        let mut model = Expected::default();
        let file = model.open(0, false);
        model.fill(file, Fill { at: 10, len: 10, value: 7 });
        model.resize(file, 15);
        model.resize(file, 30);
        model.allocate(file, Mode::Punch, 12, 100);
        model.allocate(file, Mode::Zero, 40, 2);
        assert_eq!(model.size(file), 42);
        assert_eq!(model.read(file, 9, 5), [0, 7, 7, 0, 0]);
        model.copy((file, 10), (file, 41), 2);
        assert_eq!(model.read(file, 40, 10), [0, 7, 7]);
        assert_eq!(
            difference(&[1, 2], &[1, 3]).unwrap(),
            "byte 1 is 2, not 3; so are 1 bytes in all"
        );
    }
}
