//! Which data blocks are free: a bitmap with next-fit runs.
//!
//! The bitmap is in memory only, and rebuilt from the index at opening. A request is served by one
//! run where one is found nearby, else by several. So it fails only when there are too few free
//! blocks in all. A second bitmap tells which free blocks were written before and so have their
//! space on the device. These are taken first, because a file system is slower where it must find
//! space.

/// Neighbouring data blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub start: u64,
    pub len: u32,
}

/// Longest run handed out, blocks.
pub const MAX_RUN: u32 = 256;
/// How many blocks a search for one long run passes before it takes several short ones.
const WINDOW: u64 = 1 << 18;

/// How many blocks one search for written ones passes.
const LOOK: u64 = 1 << 14;

/// See the module's text.
pub struct FreeMap {
    /// A set bit is a used block.
    words: Vec<u64>,
    /// A set bit is a free block that was written.
    written: Vec<u64>,
    written_blocks: u64,
    blocks: u64,
    free: u64,
    cursor: u64,
    /// The same for written blocks.
    reuse_at: u64,
}

impl FreeMap {
    /// All `blocks` free.
    pub fn new(blocks: u64) -> FreeMap {
        let mut words = vec![0; blocks.div_ceil(64) as usize];
        if !blocks.is_multiple_of(64)
            && let Some(last) = words.last_mut()
        {
            *last = !0 << (blocks % 64);
        }
        let written = vec![0; words.len()];
        FreeMap { words, written, written_blocks: 0, blocks, free: blocks, cursor: 0, reuse_at: 0 }
    }

    /// Free blocks.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Free blocks that were written.
    pub fn written(&self) -> u64 {
        self.written_blocks
    }

    /// Takes `count` blocks in runs of at most [`MAX_RUN`], or none at all.
    pub fn take(&mut self, count: u64) -> Option<Vec<Run>> {
        if count > self.free {
            return None;
        }
        let mut runs = Vec::new();
        let mut left = count;
        while left > 0 {
            let want = left.min(u64::from(MAX_RUN)) as u32;
            let run = match self.reuse(want) {
                Some(run) => run,
                None => {
                    let run = self.long_run(want).or_else(|| self.any_run(want))?;
                    self.mark(run);
                    self.cursor = run.start + u64::from(run.len);
                    run
                }
            };
            left -= u64::from(run.len);
            runs.push(run);
        }
        Some(runs)
    }

    /// Marks a run as used; false where part of it was used already.
    pub fn claim(&mut self, run: Run) -> bool {
        let end = run.start.checked_add(u64::from(run.len));
        if end.is_none_or(|end| end > self.blocks) || self.used_in(run) {
            return false;
        }
        self.mark(run);
        true
    }

    /// Gives a run back that was written.
    pub fn give(&mut self, run: Run) {
        self.give_blank(run);
        self.set_written(run);
    }

    /// The free blocks of the run were written.
    pub fn set_written(&mut self, run: Run) {
        for (word, mask) in spans(run) {
            let new = mask & !self.words[word] & !self.written[word];
            self.written_blocks += u64::from(new.count_ones());
            self.written[word] |= new;
        }
    }

    /// Takes a run of free blocks that were written: the first one from block `from` on.
    pub fn take_written(&mut self, from: u64, most: u32) -> Option<Run> {
        let start = next_bit(&self.written, from, 0)?;
        let run = Run { start, len: bits(&self.written, start, most, 0) };
        self.mark(run);
        Some(run)
    }

    /// Looks through [`LOOK`] blocks for a run of at least `least` free blocks that were written
    /// and takes it, at most `most` of it. The second value tells where to look next.
    pub fn take_long_written(&mut self, from: u64, least: u32, most: u32) -> (Option<Run>, u64) {
        let stop = from.saturating_add(LOOK).min(self.blocks);
        let words = &self.written[..stop.div_ceil(64) as usize];
        let mut at = from;
        while at < stop
            && let Some(start) = next_bit(words, at, 0)
        {
            let run = Run { start, len: bits(&self.written, start, most, 0) };
            at = start + u64::from(run.len);
            if run.len >= least {
                self.mark(run);
                return (Some(run), at);
            }
        }
        (None, at.max(stop))
    }

    /// Takes the last free blocks, at most `count`, away from where others are taken.
    pub fn take_last(&mut self, count: u64) -> Vec<Run> {
        let (mut runs, mut left) = (Vec::new(), count);
        while left > 0
            && let Some(last) = self.last_free()
        {
            let most = left.min(u64::from(MAX_RUN));
            let free = (0..most.min(last + 1)).take_while(|back| self.is_free(last - back));
            let len = free.count() as u64;
            let run = Run { start: last + 1 - len, len: len as u32 };
            self.mark(run);
            left -= len;
            runs.push(run);
        }
        runs
    }

    /// Gives a run back that has no room on the device.
    pub fn give_blank(&mut self, run: Run) {
        for (word, mask) in spans(run) {
            debug_assert_eq!(self.words[word] & mask, mask, "freed twice: {run:?}");
            self.free += u64::from((self.words[word] & mask).count_ones());
            self.words[word] &= !mask;
        }
    }

    fn reuse(&mut self, want: u32) -> Option<Run> {
        if self.written_blocks < u64::from(want) {
            return None;
        }
        let (run, next) = self.take_long_written(self.reuse_at, want, want);
        self.reuse_at = if next < self.blocks { next } else { 0 };
        run
    }

    fn mark(&mut self, run: Run) {
        for (word, mask) in spans(run) {
            self.words[word] |= mask;
            let gone = mask & self.written[word];
            self.written_blocks -= u64::from(gone.count_ones());
            self.written[word] &= !gone;
        }
        self.free -= u64::from(run.len);
    }

    fn used_in(&self, run: Run) -> bool {
        spans(run).any(|(word, mask)| self.words[word] & mask != 0)
    }

    /// A run of exactly `want` blocks near the cursor.
    fn long_run(&self, want: u32) -> Option<Run> {
        let mut at = self.cursor;
        let mut passed = 0;
        let mut wrapped = false;
        while passed < WINDOW {
            let Some(start) = self.next_free(at) else {
                if wrapped {
                    return None;
                }
                wrapped = true;
                passed += self.blocks - at.min(self.blocks);
                at = 0;
                continue;
            };
            let len = self.free_len(start, want);
            if len == want {
                return Some(Run { start, len });
            }
            let next = start + u64::from(len);
            passed += next - at;
            at = next;
        }
        None
    }

    /// The next free run of up to `want` blocks.
    fn any_run(&self, want: u32) -> Option<Run> {
        let start = self.next_free(self.cursor).or_else(|| self.next_free(0))?;
        Some(Run { start, len: self.free_len(start, want) })
    }

    fn next_free(&self, from: u64) -> Option<u64> {
        next_bit(&self.words, from, !0)
    }

    fn last_free(&self) -> Option<u64> {
        let word = self.words.iter().rposition(|word| *word != !0)?;
        Some(word as u64 * 64 + 63 - u64::from(self.words[word].leading_ones()))
    }

    fn is_free(&self, block: u64) -> bool {
        self.words[(block / 64) as usize] >> (block % 64) & 1 == 0
    }

    fn free_len(&self, start: u64, max: u32) -> u32 {
        bits(&self.words, start, max, !0)
    }
}

/// The first bit from `from` on that differs from those of `not`.
fn next_bit(words: &[u64], from: u64, not: u64) -> Option<u64> {
    let mut word = (from / 64) as usize;
    let mut found = (words.get(word)? ^ not) & (!0 << (from % 64));
    while found == 0 {
        word += 1;
        found = words.get(word)? ^ not;
    }
    Some(word as u64 * 64 + u64::from(found.trailing_zeros()))
}

/// How many bits from `start` on differ from those of `not`, at most `max`.
fn bits(words: &[u64], start: u64, max: u32, not: u64) -> u32 {
    let mut len = 0;
    while len < max {
        let at = start + u64::from(len);
        let Some(word) = words.get((at / 64) as usize) else { break };
        let run = (!(word ^ not) >> (at % 64)).trailing_zeros().min(64 - (at % 64) as u32);
        if run == 0 {
            break;
        }
        len += run;
    }
    len.min(max)
}

/// The words that a run touches, with the bits of it.
fn spans(run: Run) -> impl Iterator<Item = (usize, u64)> {
    let end = run.start + u64::from(run.len);
    let mut at = run.start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (word, bit) = ((at / 64) as usize, at % 64);
        let bits = (end - at).min(64 - bit);
        at += bits;
        Some((word, (!0 >> (64 - bits)) << bit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nuri_io::rng::Rng;

    #[test]
    fn splits_when_fragmented_and_fails_only_when_full() {
        let mut map = FreeMap::new(1000);
        let all = map.take(1000).unwrap();
        assert_eq!(all.iter().map(|r| u64::from(r.len)).sum::<u64>(), 1000);
        assert!(map.take(1).is_none());
        (0..1000).step_by(2).for_each(|start| map.give(Run { start, len: 1 }));
        assert_eq!(map.take(500).unwrap().len(), 500);
        assert_eq!(map.free(), 0);
    }

    #[test]
    fn prefers_one_run() {
        let mut map = FreeMap::new(4096);
        let first = map.take(300).unwrap();
        assert_eq!(first, [Run { start: 0, len: 256 }, Run { start: 256, len: 44 }]);
        map.give(Run { start: 10, len: 5 });
        assert_eq!(map.take(256).unwrap(), [Run { start: 300, len: 256 }]);
        assert!(!map.claim(Run { start: 299, len: 2 }));
        assert!(map.claim(Run { start: 10, len: 5 }));
        assert!(!map.claim(Run { start: 4095, len: 2 }));
    }

    #[test]
    fn written_and_last_blocks_are_found() {
        let mut map = FreeMap::new(1000);
        assert_eq!(map.take_written(0, 9), None);
        let all = map.take(1000).unwrap();
        map.give(Run { start: 60, len: 70 });
        map.give_blank(Run { start: 200, len: 10 });
        map.set_written(Run { start: 205, len: 50 });
        assert_eq!(map.take_written(0, 64), Some(Run { start: 60, len: 64 }));
        assert_eq!(map.take_written(124, 64), Some(Run { start: 124, len: 6 }));
        assert_eq!(map.take_last(7), [Run { start: 203, len: 7 }]);
        assert_eq!((map.take_written(0, 64), map.free()), (None, 3));
        assert_eq!(map.take_last(7), [Run { start: 200, len: 3 }]);
        assert_eq!((map.take_last(7), map.free()), (vec![], 0));
        all.iter().for_each(|run| map.give(*run));
        let runs = map.take_last(300);
        assert_eq!(runs, [Run { start: 744, len: 256 }, Run { start: 700, len: 44 }]);
    }

    #[test]
    fn long_written_runs_are_found_piece_by_piece() {
        let mut map = FreeMap::new(2 * LOOK);
        let run = |start, len| Run { start, len };
        for free in [run(100, 63), run(1000, 600), run(LOOK - 10, 64), run(LOOK + 500, 64)] {
            map.set_written(free);
        }
        let (mut at, mut found) = (0, Vec::new());
        while at < 2 * LOOK {
            let (run, next) = map.take_long_written(at, 64, 256);
            found.extend(run);
            at = next;
        }
        let long = [run(1000, 256), run(1256, 256), run(1512, 88)];
        assert_eq!(found[..3], long);
        assert_eq!(found[3..], [run(LOOK - 10, 64), run(LOOK + 500, 64)]);
        assert_eq!(map.free(), 2 * LOOK - 600 - 128);
        assert_eq!((map.written(), map.take_long_written(0, 63, 63).0), (63, Some(run(100, 63))));
        assert_eq!(map.written(), 0);
    }

    #[test]
    fn written_blocks_are_taken_first() {
        let mut map = FreeMap::new(4 * LOOK);
        map.set_written(Run { start: 500, len: 40 });
        map.set_written(Run { start: 2 * LOOK + 9, len: 40 });
        assert_eq!(map.take(30).unwrap(), [Run { start: 500, len: 30 }]);
        // The next search begins behind and stops before it goes round.
        assert_eq!(map.take(30).unwrap(), [Run { start: 0, len: 30 }]);
        assert_eq!(map.take(30).unwrap(), [Run { start: 2 * LOOK + 9, len: 30 }]);
        assert_eq!(map.take(30).unwrap(), [Run { start: 30, len: 30 }]);
        assert_eq!(map.written(), 20);
    }

    #[test]
    fn random_against_set() {
        let mut rng = Rng::new(5);
        let mut map = FreeMap::new(777);
        let mut used: Vec<Run> = Vec::new();
        for _ in 0..2000 {
            if rng.one_in(2) {
                used.extend(map.take(rng.below(90) + 1).unwrap_or_default());
            } else if !used.is_empty() {
                map.give(used.swap_remove(rng.below(used.len() as u64) as usize));
            }
            let mut seen = vec![false; 777];
            for run in &used {
                for block in run.start..run.start + u64::from(run.len) {
                    assert!(!std::mem::replace(&mut seen[block as usize], true));
                }
            }
            let count = seen.iter().filter(|&&s| s).count() as u64;
            assert_eq!(map.free(), 777 - count);
        }
    }
}
