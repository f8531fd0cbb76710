//! Plays calls on mounts and compares what each shows with the model.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Barrier;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

use super::call::{Call, Fill, How, Mode, SLOTS};
use super::expected::{Expected, difference, fits};
use super::hand::Hand;

/// An open file.
struct Slot {
    file: File,
    /// In the model.
    number: usize,
    how: How,
    mount: u64,
}

/// Where calls are played: a directory, as each mount shows it.
pub(super) struct Player<'a> {
    dirs: &'a [PathBuf],
    hand: &'a mut Hand,
    expected: Expected,
    slots: Vec<Option<Slot>>,
}

/// The call that failed, and how.
pub(super) struct Failure {
    pub(super) at: usize,
    pub(super) words: String,
}

/// Files by their names' numbers.
pub(super) type Files = Vec<(u64, Vec<u8>)>;

pub(super) fn path(dir: &std::path::Path, name: u64) -> PathBuf {
    dir.join(format!("f{name}"))
}

/// Plays all calls in a fresh directory, then looks at all of it on every mount. Returns what the
/// files hold.
pub(super) fn play(calls: &[Call], dirs: &[PathBuf], hand: &mut Hand) -> Result<Files, Failure> {
    let slots = (0..SLOTS).map(|_| None).collect();
    let mut player = Player { dirs, hand, expected: Expected::default(), slots };
    for (at, call) in calls.iter().enumerate() {
        player.one(*call).map_err(|words| Failure { at, words })?;
    }
    let end = |words| Failure { at: calls.len(), words };
    player.slots.clear();
    let expected = player.expected;
    let of = |(name, number): (&u64, &usize)| (*name, expected.files[*number].clone());
    let files: Files = expected.names.iter().map(of).collect();
    dirs.iter().try_for_each(|dir| compare(dir, &files)).map_err(end)?;
    Ok(files)
}

/// Compares files with what they must hold.
pub(super) fn compare(dir: &std::path::Path, files: &Files) -> Result<(), String> {
    files.iter().try_for_each(|(name, wanted)| {
        let path = path(dir, *name);
        let found = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        difference(&found, wanted)
            .map_or(Ok(()), |words| Err(format!("at the end f{name}: {words}")))
    })
}

impl Player<'_> {
    fn slot(&self, slot: u64, may: impl Fn(How) -> bool) -> Option<&Slot> {
        self.slots[slot as usize].as_ref().filter(|open| may(open.how))
    }

    fn one(&mut self, call: Call) -> Result<(), String> {
        match call {
            Call::Open { slot, mount, name, how, truncate } => {
                self.open((slot, mount, name), how, truncate)
            }
            Call::Close { slot } => {
                self.slots[slot as usize] = None;
                Ok(())
            }
            Call::Write { .. } | Call::Map { .. } | Call::Aio { .. } | Call::Ring { .. } => {
                self.fill(call)
            }
            Call::Copy { from, to, at, to_at, len } => self.copy((from, at), (to, to_at), len),
            Call::Read { slot, at, len } => self.read(slot, at, len),
            Call::Resize { .. } | Call::ResizeName { .. } => self.resize(call),
            Call::Allocate { slot, mode, at, len } => self.allocate(slot, mode, at, len),
            Call::Rename { mount, from, to } => self.rename(mount, from, to),
            Call::Unlink { mount, name } => {
                let gone = self.expected.names.remove(&name);
                let path = self.path(mount, name);
                gone.map_or(Ok(()), |_| fs::remove_file(path).map_err(said("unlink")))
            }
            Call::Stat { mount, name } => self.stat(mount, name),
            Call::ReadName { mount, name } => {
                let Some(number) = self.expected.names.get(&name) else { return Ok(()) };
                let found = fs::read(self.path(mount, name)).map_err(said("read"))?;
                same(&found, &self.expected.files[*number])
            }
            Call::SeekEnd { slot } => {
                let Some(open) = self.slot(slot, |_| true) else { return Ok(()) };
                let end = rustix::fs::seek(&open.file, SeekFrom::End(0)).map_err(refused)?;
                equal("the end", end, self.expected.size(open.number))
            }
            Call::Seek { slot, at, data } => self.seek(slot, at, data),
            Call::Sync { slot, data } => {
                let Some(open) = self.slot(slot, |_| true) else { return Ok(()) };
                let sync = if data { open.file.sync_data() } else { open.file.sync_all() };
                sync.map_err(said("sync"))
            }
            Call::Turns { name, len, count, value } => self.turns(name, len, count, value),
        }
    }

    fn path(&self, mount: u64, name: u64) -> PathBuf {
        path(&self.dirs[mount as usize], name)
    }

    fn open(
        &mut self,
        (slot, mount, name): (u64, u64, u64),
        how: How,
        truncate: bool,
    ) -> Result<(), String> {
        self.slots[slot as usize] = None;
        let is_new = !self.expected.names.contains_key(&name);
        if how == How::Read && is_new {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        options.read(how.reads()).write(how.writes() && how != How::Append);
        options.append(how == How::Append).create(how.writes());
        // Appending files are not truncated by the library.
        let truncate = truncate && how.writes();
        let flags = if how == How::Direct { OFlags::DIRECT } else { OFlags::empty() };
        let flags = if truncate { flags | OFlags::TRUNC } else { flags };
        let file = options.custom_flags(flags.bits() as i32).open(self.path(mount, name));
        let file = file.map_err(said("open"))?;
        let number = self.expected.open(name, truncate);
        self.slots[slot as usize] = Some(Slot { file, number, how, mount });
        Ok(())
    }

    fn fill(&mut self, call: Call) -> Result<(), String> {
        let (slot, fill) = match call {
            Call::Write { slot, fill } | Call::Map { slot, fill } => (slot, fill),
            Call::Aio { slot, fill } | Call::Ring { slot, fill } => (slot, fill),
            _ => return Ok(()),
        };
        let Some(open) = self.slots[slot as usize].as_ref() else { return Ok(()) };
        let number = open.number;
        let appends = matches!(call, Call::Write { .. }) && open.how == How::Append;
        let size = self.expected.size(number);
        let fill = if appends { Fill { at: size, ..fill } } else { fill };
        let inside = !matches!(call, Call::Map { .. }) || fill.at + fill.len <= size;
        if !fits(fill.at, fill.len) || !inside {
            return Ok(());
        }
        match call {
            Call::Map { .. } => self.hand.store(&open.file, fill)?,
            Call::Aio { .. } => self.hand.submit(&open.file, fill)?,
            Call::Ring { .. } => self.hand.ring(&open.file, fill)?,
            _ if !open.how.writes() => return Ok(()),
            _ => write(open, fill)?,
        }
        self.expected.fill(number, fill);
        Ok(())
    }

    fn copy(&mut self, from: (u64, u64), to: (u64, u64), len: u64) -> Result<(), String> {
        let may = |how: How| how.writes() && how != How::Append;
        let (Some(source), Some(sink)) = (self.slot(from.0, How::reads), self.slot(to.0, may))
        else {
            return Ok(());
        };
        let is_apart = source.number != sink.number && source.mount == sink.mount;
        if !is_apart || !fits(to.1, len) {
            return Ok(());
        }
        // The kernel goes by the size that it knows, and does not ask here.
        source.file.metadata().map_err(said("fstat"))?;
        let (mut at, mut to_at, mut left) = (from.1, to.1, len);
        while left > 0 {
            let (a, b) = (&source.file, &sink.file);
            let copied =
                rustix::fs::copy_file_range(a, Some(&mut at), b, Some(&mut to_at), left as usize);
            match copied.map_err(refused)? as u64 {
                0 => break,
                some => left -= some,
            }
        }
        let (source, sink) = (source.number, sink.number);
        if len > left {
            self.expected.copy((source, from.1), (sink, to.1), len);
        }
        Ok(())
    }

    fn read(&self, slot: u64, at: u64, len: u64) -> Result<(), String> {
        let Some(open) = self.slot(slot, How::reads) else { return Ok(()) };
        same(&read(&open.file, at, len)?, self.expected.read(open.number, at, len))
    }

    fn resize(&mut self, call: Call) -> Result<(), String> {
        let (number, size) = match call {
            Call::Resize { slot, size } => {
                let Some(open) = self.slot(slot, How::writes) else { return Ok(()) };
                open.file.set_len(size).map_err(said("ftruncate"))?;
                (open.number, size)
            }
            Call::ResizeName { mount, name, size } => {
                let Some(number) = self.expected.names.get(&name) else { return Ok(()) };
                let file = OpenOptions::new().write(true).open(self.path(mount, name));
                file.and_then(|file| file.set_len(size)).map_err(said("truncate"))?;
                (*number, size)
            }
            _ => return Ok(()),
        };
        self.expected.resize(number, size);
        Ok(())
    }

    fn allocate(&mut self, slot: u64, mode: Mode, at: u64, len: u64) -> Result<(), String> {
        let Some(open) = self.slot(slot, How::writes).filter(|_| fits(at, len)) else {
            return Ok(());
        };
        let keep = FallocateFlags::KEEP_SIZE;
        let flags = match mode {
            Mode::Extend => FallocateFlags::empty(),
            Mode::KeepSize => keep,
            Mode::Punch => keep | FallocateFlags::PUNCH_HOLE,
            Mode::Zero => FallocateFlags::ZERO_RANGE,
            Mode::ZeroKeepSize => keep | FallocateFlags::ZERO_RANGE,
        };
        rustix::fs::fallocate(&open.file, flags, at, len).map_err(refused)?;
        let number = open.number;
        self.expected.allocate(number, mode, at, len);
        Ok(())
    }

    fn rename(&mut self, mount: u64, from: u64, to: u64) -> Result<(), String> {
        if from == to || !self.expected.names.contains_key(&from) {
            return Ok(());
        }
        let names = (self.path(mount, from), self.path(mount, to));
        fs::rename(names.0, names.1).map_err(said("rename"))?;
        self.expected.rename(from, to);
        Ok(())
    }

    fn stat(&self, mount: u64, name: u64) -> Result<(), String> {
        let found = fs::metadata(self.path(mount, name));
        match self.expected.names.get(&name) {
            None if found.is_err() => Ok(()),
            None => Err("a name that was removed is there".into()),
            Some(number) => {
                let found = found.map_err(said("stat"))?;
                let bytes = &self.expected.files[*number];
                if found.blocks() == 0 && bytes.iter().any(|byte| *byte != 0) {
                    return Err("a file with bytes has no blocks".into());
                }
                equal("the size", found.len(), bytes.len() as u64)
            }
        }
    }

    /// Nothing but zeros is a hole.
    fn seek(&self, slot: u64, at: u64, data: bool) -> Result<(), String> {
        let Some(open) = self.slot(slot, |_| true) else { return Ok(()) };
        let bytes = &self.expected.files[open.number];
        let to = if data { SeekFrom::Data(at) } else { SeekFrom::Hole(at) };
        let (size, found) = (bytes.len() as u64, rustix::fs::seek(&open.file, to));
        if at >= size {
            return if found == Err(Errno::NXIO) { Ok(()) } else { Err(format!("{found:?}")) };
        }
        let hole = match (found, data) {
            (Ok(end), true) => at..end,
            (Err(Errno::NXIO), true) => at..size,
            (Ok(start), false) => start..size.min(start + 1),
            (Err(error), _) => return Err(format!("lseek: {error}")),
        };
        if hole.end > size || hole.start < at {
            return Err(format!("lseek found {hole:?} of {size}"));
        }
        match (hole.start..hole.end).find(|i| bytes[*i as usize] != 0) {
            Some(wrong) => Err(format!("lseek says that {wrong} lies in a hole")),
            None => Ok(()),
        }
    }

    fn turns(&mut self, name: u64, len: u64, count: u64, value: u8) -> Result<(), String> {
        let Some(number) = self.expected.names.get(&name).copied() else { return Ok(()) };
        let is_of = |open: &&Slot| open.number == number && open.how == How::Both;
        let open: Vec<_> = self.slots.iter().flatten().filter(is_of).collect();
        let mut size = self.expected.size(number);
        if open.is_empty() || !fits(size, len * count) {
            return Ok(());
        }
        for turn in 0..count as usize {
            let at = size + turn as u64 * len;
            write(open[turn % open.len()], Fill { at, len, value })?;
        }
        size += len * count;
        let barrier = Barrier::new(open.len());
        let look = |open: &Slot| {
            barrier.wait();
            let end = rustix::fs::seek(&open.file, SeekFrom::End(0)).map_err(refused)?;
            equal("the end, after all writes", end, size)?;
            let tail = read(&open.file, size - len, 2 * len)?;
            same(&tail, &vec![value; len as usize])
        };
        let look = &look;
        std::thread::scope(|scope| {
            let looks: Vec<_> = open.iter().map(|open| scope.spawn(move || look(open))).collect();
            let join = |look: std::thread::ScopedJoinHandle<'_, _>| {
                look.join().unwrap_or_else(|_| Err("a thread panicked".into()))
            };
            looks.into_iter().map(join).fold(Ok(()), Result::and)
        })?;
        let at = size - len * count;
        self.expected.fill(number, Fill { at, len: len * count, value });
        Ok(())
    }
}

fn write(open: &Slot, fill: Fill) -> Result<(), String> {
    let bytes = vec![fill.value; fill.len as usize];
    let wrote = match open.how {
        How::Append => (&open.file).write_all(&bytes),
        _ => open.file.write_all_at(&bytes, fill.at),
    };
    wrote.map_err(said("write"))
}

fn read(file: &File, at: u64, len: u64) -> Result<Vec<u8>, String> {
    let mut found = vec![0; len as usize];
    let mut done = 0;
    while done < found.len() {
        match file.read_at(&mut found[done..], at + done as u64).map_err(said("read"))? {
            0 => break,
            some => done += some,
        }
    }
    found.truncate(done);
    Ok(found)
}

fn same(found: &[u8], wanted: &[u8]) -> Result<(), String> {
    difference(found, wanted).map_or(Ok(()), Err)
}

fn equal(what: &str, found: u64, wanted: u64) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{what} is {found}, not {wanted}")) }
}

fn said(what: &str) -> impl Fn(Error) -> String {
    move |error| format!("{what}: {error}")
}

fn refused(error: Errno) -> String {
    error.to_string()
}
