//! The content of files. Its bytes depend on the seed, on the rank that writes them, and on their
//! place. So the reader notices data that is old, misplaced, or another rank's.

use nuri_io::buf::AlignedBuf;
use nuri_io::rng::Rng;

/// Each so many bytes begin with a word of their own.
const STAMPED: usize = 4096;
const WORD: usize = 8;

/// The contents of one rank's transfers of one length.
pub(super) struct Pattern {
    /// Of the seed and the rank.
    key: u64,
    bytes: AlignedBuf,
}

impl Pattern {
    pub(super) fn new(seed: u64, owner: usize, len: usize) -> Pattern {
        let key = Rng::new(Rng::new(seed).next() ^ owner as u64).next();
        let mut bytes = AlignedBuf::zeroed(len);
        Rng::new(!key).fill(&mut bytes);
        Pattern { key, bytes }
    }

    /// The bytes at this place of the file. Only the stamps differ from place to place: filling
    /// whole transfers anew would measure the processor.
    pub(super) fn at(&mut self, offset: u64) -> &[u8] {
        let len = self.bytes.len();
        for at in (0..len.saturating_sub(WORD - 1)).step_by(STAMPED) {
            self.stamp(at, offset);
        }
        if len >= WORD {
            self.stamp(len - WORD, offset);
        }
        &self.bytes
    }

    fn stamp(&mut self, at: usize, offset: u64) {
        let word = self.word_at(offset + at as u64);
        self.bytes[at..at + WORD].copy_from_slice(&word);
    }

    fn word_at(&self, offset: u64) -> [u8; WORD] {
        Rng::new(self.key ^ offset).next().to_le_bytes()
    }

    /// Where the first and the last word of what was read at this place are wrong.
    pub(super) fn wrong_end(&self, data: &[u8], offset: u64) -> Option<u64> {
        let last = data.len().checked_sub(WORD)?;
        let wrong = |at: &usize| data[*at..at + WORD] != self.word_at(offset + *at as u64);
        [0, last].iter().find(|at| wrong(at)).map(|at| offset + *at as u64)
    }

    /// Where the first wrong byte is; `data` may be shorter than a transfer.
    pub(super) fn wrong_byte(&mut self, data: &[u8], offset: u64) -> Option<u64> {
        let expected = &self.at(offset)[..data.len()];
        if data == expected {
            return None;
        }
        let wrong = data.iter().zip(expected).position(|(read, written)| read != written);
        wrong.map(|at| offset + at as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_tell_seed_owner_and_place() {
        let first = Pattern::new(1, 2, 16 << 10).at(32768).to_vec();
        for (seed, owner, place) in [(2, 2, 32768), (1, 3, 32768), (1, 2, 36864)] {
            let mut other = Pattern::new(seed, owner, 16 << 10);
            assert_ne!(other.at(place), first);
            assert_eq!(other.wrong_end(&first, place), Some(place));
            assert_eq!(other.wrong_byte(&first, place), Some(place));
        }
        let mut same = Pattern::new(1, 2, 16 << 10);
        assert_eq!(same.wrong_end(&first, 32768), None);
        assert_eq!(same.wrong_byte(&first, 32768), None);
    }

    #[test]
    fn each_wrong_byte_is_found_and_the_ends_cheaply() {
        let mut pattern = Pattern::new(7, 0, 47_008);
        let good = pattern.at(47_008).to_vec();
        for at in [0, 7, 8, 4096, 20_000, 47_007] {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert_eq!(pattern.wrong_byte(&bad, 47_008), Some(47_008 + at as u64));
            let at_ends = !(8..47_000).contains(&at);
            assert_eq!(pattern.wrong_end(&bad, 47_008).is_some(), at_ends, "{at}");
        }
    }

    #[test]
    fn any_length_will_do() {
        for len in [0, 1, 7, 8, 9, 3901, 4096, 4099, 4104, 4106] {
            let mut pattern = Pattern::new(1, 1, len);
            let data = pattern.at(5).to_vec();
            assert_eq!((data.len(), pattern.wrong_byte(&data, 5)), (len, None));
        }
    }
}
