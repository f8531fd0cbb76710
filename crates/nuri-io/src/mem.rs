//! A disk in memory that knows what a crash may leave, and fails when told to. For tests and the
//! simulator.
//!
//! Every write and sync is an event. Between two syncs, writes may reach the medium in any order,
//! wholly, in part (512-byte sectors) or not at all. A crash image draws one such outcome from a
//! seed. Images share pages, so a logical disk of many gigabytes costs only what was written.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::disk::Disk;
use crate::rng::Rng;

const PAGE: usize = 4096;
/// What a disk writes whole or not at all, bytes.
pub const SECTOR: usize = 512;

#[derive(Clone, Default)]
struct Image {
    pages: BTreeMap<u64, Arc<[u8; PAGE]>>,
    len: u64,
}

#[derive(Clone)]
enum Event {
    Write { offset: u64, data: Arc<[u8]> },
    SetLen(u64),
    Punch { offset: u64, len: u64 },
    Sync,
}

/// What was asked of the disk so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    pub reads: u64,
    pub writes: u64,
    pub bytes_written: u64,
    pub syncs: u64,
}

#[derive(Clone, Copy, Default)]
struct Faults {
    fail_in: Option<u64>,
    space: Option<usize>,
    next_sync: bool,
}

#[derive(Default)]
struct State {
    now: Image,
    /// Content at the last sync, or at the first event when all events are kept.
    base: Image,
    events: Vec<Event>,
    keep_all: bool,
    count: Counters,
    faults: Faults,
}

/// See the module's text.
#[derive(Default)]
pub struct MemDisk {
    state: Mutex<State>,
}

impl Image {
    fn read(&self, offset: u64, buf: &mut [u8]) {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let skip = at as usize % PAGE;
            let take = (buf.len() - done).min(PAGE - skip);
            let into = &mut buf[done..done + take];
            match self.pages.get(&(at / PAGE as u64)) {
                Some(page) => into.copy_from_slice(&page[skip..skip + take]),
                None => into.fill(0),
            }
            done += take;
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let skip = at as usize % PAGE;
            let take = (data.len() - done).min(PAGE - skip);
            let page = self.pages.entry(at / PAGE as u64).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[skip..skip + take].copy_from_slice(&data[done..done + take]);
            done += take;
        }
        self.len = self.len.max(offset + data.len() as u64);
    }

    fn set_len(&mut self, len: u64) {
        if len < self.len {
            let keep = len.div_ceil(PAGE as u64);
            self.pages.split_off(&keep);
            let tail = len as usize % PAGE;
            if tail > 0
                && let Some(page) = self.pages.get_mut(&(len / PAGE as u64))
            {
                Arc::make_mut(page)[tail..].fill(0);
            }
        }
        self.len = len;
    }

    /// Whole pages go, parts of pages become zeros.
    fn punch(&mut self, offset: u64, len: u64) {
        let end = (offset + len).min(self.len);
        let (first, last) = (offset.div_ceil(PAGE as u64), end / PAGE as u64);
        let whole: Vec<u64> = self.pages.range(first..last.max(first)).map(|(p, _)| *p).collect();
        whole.iter().for_each(|page| drop(self.pages.remove(page)));
        for at in [offset, end.saturating_sub(1)].into_iter().filter(|at| *at < end) {
            let start = at / PAGE as u64 * PAGE as u64;
            if let Some(page) = self.pages.get_mut(&(at / PAGE as u64)) {
                let (from, to) = (offset.max(start) - start, (end - start).min(PAGE as u64));
                Arc::make_mut(page)[from as usize..to as usize].fill(0);
            }
        }
    }

    fn next_written(&self, from: u64) -> Option<Range<u64>> {
        let mut pages = self.pages.range(from / PAGE as u64..).map(|(page, _)| *page);
        let first = pages.next()?;
        let more = pages.zip(first + 1..).take_while(|(page, next)| page == next).count();
        let end = (first + 1 + more as u64) * PAGE as u64;
        Some(from.max(first * PAGE as u64)..end.min(self.len))
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Write { offset, data } => self.write(*offset, data),
            Event::SetLen(len) => self.set_len(*len),
            Event::Punch { offset, len } => self.punch(*offset, *len),
            Event::Sync => {}
        }
    }

    /// Keeps, drops or tears one unsynced write; keeps or drops an unsynced punch.
    fn apply_maybe(&mut self, event: &Event, rng: &mut Rng) {
        let Event::Write { offset, data } = event else {
            if matches!(event, Event::Punch { .. }) && rng.one_in(2) {
                return;
            }
            return self.apply(event);
        };
        match rng.below(3) {
            0 => {}
            1 => self.write(*offset, data),
            _ => {
                let mut at = 0;
                while at < data.len() {
                    let sector_end = SECTOR - (*offset as usize + at) % SECTOR;
                    let take = sector_end.min(data.len() - at);
                    if rng.one_in(2) {
                        self.write(offset + at as u64, &data[at..at + take]);
                    }
                    at += take;
                }
            }
        }
    }
}

impl MemDisk {
    /// An empty disk.
    pub fn new() -> MemDisk {
        MemDisk::default()
    }

    /// An empty disk that keeps every event, so that images of any moment can be made.
    pub fn recording() -> MemDisk {
        let disk = MemDisk::default();
        disk.state.lock().keep_all = true;
        disk
    }

    fn from_image(image: Image) -> MemDisk {
        let state = State { now: image.clone(), base: image, ..State::default() };
        MemDisk { state: Mutex::new(state) }
    }

    /// The disk as it is now, all writes kept.
    pub fn fork(&self) -> MemDisk {
        MemDisk::from_image(self.state.lock().now.clone())
    }

    /// The disk after a crash now: what was synced, and of the rest what the seed decides, in an
    /// order that the seed decides.
    pub fn crash_image(&self, rng: &mut Rng) -> MemDisk {
        let events = self.events();
        self.image_at_event(events, rng)
    }

    /// Events so far. Of use only for a recording disk, where none is forgotten.
    pub fn events(&self) -> usize {
        self.state.lock().events.len()
    }

    /// The disk after a crash when `count` events had happened.
    pub fn image_at_event(&self, count: usize, rng: &mut Rng) -> MemDisk {
        let state = self.state.lock();
        let events = &state.events[..count.min(state.events.len())];
        let synced = events.iter().rposition(|e| matches!(e, Event::Sync)).map_or(0, |i| i + 1);
        let mut image = state.base.clone();
        events[..synced].iter().for_each(|e| image.apply(e));
        let mut loose: Vec<_> = events[synced..].iter().collect();
        for i in (1..loose.len()).rev() {
            loose.swap(i, rng.below(i as u64 + 1) as usize);
        }
        loose.iter().for_each(|e| image.apply_maybe(e, rng));
        MemDisk::from_image(image)
    }

    /// Exactly what was durable after sync number `n` (from 1) of a recording disk.
    pub fn image_at_sync(&self, n: u64) -> MemDisk {
        let state = self.state.lock();
        let mut image = state.base.clone();
        let mut pending = Vec::new();
        let mut left = n;
        for event in &state.events {
            if left == 0 {
                break;
            }
            pending.push(event);
            if matches!(event, Event::Sync) {
                pending.drain(..).for_each(|e| image.apply(e));
                left -= 1;
            }
        }
        MemDisk::from_image(image)
    }

    pub fn counters(&self) -> Counters {
        self.state.lock().count
    }

    /// Lets `ops` more transfers and syncs succeed; all later ones fail.
    pub fn fail_after(&self, ops: u64) {
        self.state.lock().faults.fail_in = Some(ops);
    }

    /// Answers ENOSPC to a write that would need more than `bytes` of pages altogether.
    pub fn limit_space(&self, bytes: u64) {
        self.state.lock().faults.space = Some(bytes as usize / PAGE);
    }

    /// Fails the next sync, once; what it should have made durable stays loose.
    pub fn fail_next_sync(&self) {
        self.state.lock().faults.next_sync = true;
    }

    /// Forgets all injected faults.
    pub fn heal(&self) {
        self.state.lock().faults = Faults::default();
    }

    /// Turns one bit over behind everybody's back.
    pub fn flip_bit(&self, offset: u64, bit: u32) {
        let mut state = self.state.lock();
        let mut byte = [0];
        state.now.read(offset, &mut byte);
        byte[0] ^= 1 << (bit % 8);
        state.now.write(offset, &byte);
        state.base.write(offset, &byte);
    }

    /// Bytes of pages that were written and not punched.
    pub fn resident(&self) -> u64 {
        (self.state.lock().now.pages.len() * PAGE) as u64
    }
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        if let Some(left) = &mut self.faults.fail_in {
            *left = left.checked_sub(1).ok_or(io::Error::from(Errno::IO))?;
        }
        Ok(())
    }

    fn record(&mut self, event: Event) {
        self.now.apply(&event);
        self.events.push(event);
    }

    fn room_for(&self, offset: u64, len: usize) -> bool {
        let Some(space) = self.faults.space else {
            return true;
        };
        if len == 0 {
            return true;
        }
        let pages = offset / PAGE as u64..(offset + len as u64).div_ceil(PAGE as u64);
        let fresh = pages.filter(|page| !self.now.pages.contains_key(page)).count();
        self.now.pages.len() + fresh <= space
    }
}

impl Disk for MemDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().now.len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.step()?;
        state.record(Event::SetLen(len));
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        state.step()?;
        state.count.reads += 1;
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > state.now.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.now.read(offset, buf);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        state.step()?;
        if !state.room_for(offset, data.len()) {
            return Err(Errno::NOSPC.into());
        }
        state.count.writes += 1;
        state.count.bytes_written += data.len() as u64;
        state.record(Event::Write { offset, data: data.into() });
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.step()?;
        state.record(Event::Punch { offset, len });
        Ok(())
    }

    fn is_sparse(&self) -> bool {
        true
    }

    /// Writes zeros, which takes room as nothing else does here.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        (0..len).step_by(PAGE).try_for_each(|at| {
            let take = (len - at).min(PAGE as u64) as usize;
            self.write_at(offset + at, &[0; PAGE][..take])
        })
    }

    fn next_written(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        Ok(self.state.lock().now.next_written(from))
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.step()?;
        if std::mem::take(&mut state.faults.next_sync) {
            return Err(Errno::IO.into());
        }
        state.count.syncs += 1;
        if state.keep_all {
            state.events.push(Event::Sync);
        } else {
            let events = std::mem::take(&mut state.events);
            events.iter().for_each(|e| state.base.apply(e));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conforms() {
        crate::disk_suite::suite(MemDisk::new);
    }

    #[test]
    fn crash_keeps_synced_and_may_lose_the_rest() {
        let disk = MemDisk::new();
        disk.write_at(0, &[1; 8192]).unwrap();
        disk.sync().unwrap();
        disk.write_at(0, &[2; 4096]).unwrap();
        let mut seen = [false; 3];
        for seed in 0..64 {
            let image = disk.crash_image(&mut Rng::new(seed));
            let mut buf = [0; 8192];
            image.read_at(0, &mut buf).unwrap();
            assert!(buf[4096..].iter().all(|&b| b == 1));
            let new = buf[..4096].iter().filter(|&&b| b == 2).count();
            assert_eq!(new % SECTOR, 0);
            seen[if new == 0 {
                0
            } else if new == 4096 {
                1
            } else {
                2
            }] = true;
        }
        assert_eq!(seen, [true; 3], "dropped, kept and torn all happen");
    }

    #[test]
    fn recorded_syncs_can_be_visited() {
        let disk = MemDisk::recording();
        for i in 1..=3u8 {
            disk.write_at(0, &[i]).unwrap();
            disk.sync().unwrap();
        }
        for n in 1..=3 {
            let mut byte = [0];
            disk.image_at_sync(n).read_at(0, &mut byte).unwrap();
            assert_eq!(u64::from(byte[0]), n);
        }
        assert_eq!((disk.events(), disk.counters().syncs), (6, 3));
    }

    #[test]
    fn faults_fire_as_told() {
        let disk = MemDisk::new();
        disk.limit_space(8192);
        disk.write_at(0, &[1; 8192]).unwrap();
        let full = disk.write_at(8192, &[1]).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(28));
        disk.fail_next_sync();
        assert!(disk.sync().is_err());
        disk.sync().unwrap();
        disk.fail_after(1);
        disk.sync().unwrap();
        assert!(disk.sync().is_err() && disk.read_at(0, &mut [0]).is_err());
        disk.heal();
        disk.flip_bit(3, 0);
        let mut byte = [0];
        disk.read_at(3, &mut byte).unwrap();
        assert_eq!((byte[0], disk.resident()), (0, 8192));
    }
}
