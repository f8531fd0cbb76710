//! The calls that a round is made of, and how they are drawn.

use nuri_io::rng::Rng;

/// Names and open files of a round. The other numbers are taken modulo these.
pub(super) const NAMES: u64 = 3;
pub(super) const SLOTS: u64 = 5;
/// No file grows beyond it.
pub(super) const MOST: u64 = 4 << 20;
/// Chunks of the round's files; a stripe of `parity:3+1` has three.
pub(super) const CHUNK: u64 = 64 << 10;

/// Where behaviour changes: nothing, blocks, the inline limit, chunks, stripes, buffer blocks.
const EDGES: [u64; 12] =
    [0, 512, 4096, 8192, 16384, CHUNK, 2 * CHUNK, 3 * CHUNK, 6 * CHUNK, 1 << 20, 2 << 20, 3 << 20];

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    Read,
    Both,
    Write,
    Append,
    /// `O_DIRECT`, for reading and writing.
    Direct,
}

impl How {
    pub(super) fn reads(self) -> bool {
        matches!(self, How::Read | How::Both | How::Direct)
    }

    pub(super) fn writes(self) -> bool {
        self != How::Read
    }
}

/// Modes of `fallocate`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Extend,
    KeepSize,
    Punch,
    Zero,
    ZeroKeepSize,
}

/// Bytes of a file and what they become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) value: u8,
}

/// One call. A call that makes no sense where it is played (its slot is closed) does nothing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Open {
        slot: u64,
        mount: u64,
        name: u64,
        how: How,
        truncate: bool,
    },
    Close {
        slot: u64,
    },
    Write {
        slot: u64,
        fill: Fill,
    },
    /// Through a mapping, with `msync`.
    Map {
        slot: u64,
        fill: Fill,
    },
    /// By `io_submit`, with `O_DIRECT`.
    Aio {
        slot: u64,
        fill: Fill,
    },
    /// By io_uring.
    Ring {
        slot: u64,
        fill: Fill,
    },
    Copy {
        from: u64,
        to: u64,
        at: u64,
        to_at: u64,
        len: u64,
    },
    Read {
        slot: u64,
        at: u64,
        len: u64,
    },
    Resize {
        slot: u64,
        size: u64,
    },
    ResizeName {
        mount: u64,
        name: u64,
        size: u64,
    },
    Allocate {
        slot: u64,
        mode: Mode,
        at: u64,
        len: u64,
    },
    Rename {
        mount: u64,
        from: u64,
        to: u64,
    },
    Unlink {
        mount: u64,
        name: u64,
    },
    Stat {
        mount: u64,
        name: u64,
    },
    ReadName {
        mount: u64,
        name: u64,
    },
    SeekEnd {
        slot: u64,
    },
    Seek {
        slot: u64,
        at: u64,
        data: bool,
    },
    Sync {
        slot: u64,
        data: bool,
    },
    /// Each mount's open files in turn extend the file, then all look at its end at once.
    Turns {
        name: u64,
        len: u64,
        count: u64,
        value: u8,
    },
}

/// What remains of a file's size, an offset or a length.
fn place(rng: &mut Rng) -> u64 {
    let edge = EDGES[rng.below(EDGES.len() as u64) as usize];
    let most = [1, 600, 5000, 100_000][rng.below(4) as usize];
    match rng.below(3) {
        0 => edge,
        1 => edge + rng.below(most),
        _ => edge.saturating_sub(rng.below(most)),
    }
}

fn length(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => 512,
        1 => 4096,
        2 => 5000,
        3 => 1 + rng.below(9000),
        4 => 1 + rng.below(100_000),
        _ => 1 + place(rng) / 3,
    }
}

fn how(rng: &mut Rng) -> How {
    match rng.below(8) {
        0 => How::Read,
        1 => How::Write,
        2 => How::Append,
        3 => How::Direct,
        _ => How::Both,
    }
}

fn mode(rng: &mut Rng) -> Mode {
    match rng.below(7) {
        0 => Mode::Extend,
        1 => Mode::KeepSize,
        2 | 3 => Mode::Punch,
        4 | 5 => Mode::Zero,
        _ => Mode::ZeroKeepSize,
    }
}

/// Calls of a round on so many mounts.
pub(super) fn draw(rng: &mut Rng, mounts: u64, count: usize) -> Vec<Call> {
    let mut calls = Vec::with_capacity(count + 3);
    for slot in 0..3 {
        let (mount, how) = (rng.below(mounts), How::Both);
        calls.push(Call::Open { slot, mount, name: 0, how, truncate: false });
    }
    calls.extend((0..count).map(|_| one(rng, mounts)));
    calls
}

fn one(rng: &mut Rng, mounts: u64) -> Call {
    let (slot, mount, name) = (rng.below(SLOTS), rng.below(mounts), rng.below(NAMES));
    let value = 1 + rng.below(255) as u8;
    let mut fill = || Fill { at: place(rng), len: length(rng), value };
    match fill_kind(slot, fill()) {
        Some(call) if value < 90 => return call,
        _ => {}
    }
    match rng.below(22) {
        0 | 1 => Call::Open { slot, mount, name, how: how(rng), truncate: rng.one_in(3) },
        2 => Call::Close { slot },
        3 | 4 => Call::Read { slot, at: place(rng), len: length(rng) },
        5..=8 => Call::Resize { slot, size: if rng.one_in(3) { 0 } else { place(rng) } },
        9 => Call::ResizeName { mount, name, size: place(rng) },
        10..=13 => Call::Allocate { slot, mode: mode(rng), at: place(rng), len: length(rng) },
        14 => Call::Copy {
            from: slot,
            to: rng.below(SLOTS),
            at: place(rng),
            to_at: place(rng),
            len: length(rng),
        },
        15 => match rng.below(3) {
            0 => Call::Rename { mount, from: name, to: rng.below(NAMES) },
            1 => Call::Unlink { mount, name },
            _ => Call::Turns { name, len: 256, count: 2 + rng.below(9), value },
        },
        16 => Call::Stat { mount, name },
        17 => Call::ReadName { mount, name },
        18 => Call::SeekEnd { slot },
        19 => Call::Seek { slot, at: place(rng), data: rng.one_in(2) },
        20 => Call::Sync { slot, data: rng.one_in(2) },
        _ => Call::Map { slot, fill: Fill { at: place(rng), len: length(rng), value } },
    }
}

/// Most writes are plain ones.
fn fill_kind(slot: u64, fill: Fill) -> Option<Call> {
    match fill.value % 12 {
        0 => Some(Call::Aio { slot, fill }),
        3 => Some(Call::Ring { slot, fill }),
        1 | 2 => Some(Call::Map { slot, fill }),
        _ => Some(Call::Write { slot, fill }),
    }
}
