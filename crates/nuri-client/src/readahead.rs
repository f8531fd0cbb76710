//! Reading ahead for programs that bypass the kernel's cache, and so its read-ahead (`O_DIRECT`).
//!
//! A file's window belongs to its lease: it goes with it. Blocks are fetched only while nothing is
//! buffered for writing, and count only while the file has not changed since.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nuri_io::buf::{BufPool, PooledBuf};
use nuri_proto::clock::MEMBER_PATIENCE;
use nuri_proto::id::ObjectId;
use nuri_proto::layout::Layout;
use nuri_rpc::Deadline;
use parking_lot::{Condvar, Mutex};

use crate::client::Shared;
use crate::inode::{FileData, Inode};
use crate::writeback::buffer::BLOCK;
use nuri_volume::transfer::THREADS;

/// Blocks fetched beyond the one that is read, per file, where nothing is forced.
const WINDOW: u64 = 4;
/// Blocks held for all files together.
const MAX_BLOCKS: usize = 24;
/// Reads in a row that make a stream.
const STREAK: u32 = 2;
/// Requests from this length on may come in another order, up to so many of them.
const LONG: u64 = 64 << 10;
const OVERTAKING: u64 = 4;
/// A window that nobody reads from for so long is dropped.
const IDLE: Duration = Duration::from_secs(1);
/// A block that cannot be had for so long is left to its reader, who waits longer.
const PATIENCE: Duration = MEMBER_PATIENCE.saturating_mul(2);

/// Blocks on their way to the readers of one file.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Where the next read of the stream begins, and how many came in a row.
    next: u64,
    streak: u32,
    blocks: VecDeque<Arc<Fetch>>,
    used: Option<Instant>,
}

/// One block.
pub(crate) struct Fetch {
    block: u64,
    /// The file's when it was asked for.
    version: u64,
    object: ObjectId,
    layout: Arc<Layout>,
    len: usize,
    state: Mutex<FetchState>,
    done: Condvar,
    _alive: Arc<()>,
}

enum FetchState {
    Pending,
    Ready(PooledBuf),
    Failed,
}

/// Blocks to fetch, and threads that fetch one.
#[derive(Default)]
struct Queue {
    todo: VecDeque<Arc<Fetch>>,
    busy: usize,
}

/// What is fetched for all files.
pub(crate) struct Fetcher {
    queue: Mutex<Queue>,
    queued: Condvar,
    buffers: BufPool,
    /// Shared with every block that is alive, to count them.
    alive: Arc<()>,
    streams: Mutex<Vec<Arc<Inode>>>,
}

impl Default for Fetcher {
    fn default() -> Self {
        Fetcher {
            queue: Mutex::default(),
            queued: Condvar::new(),
            buffers: BufPool::new(BLOCK as usize, MAX_BLOCKS / 2),
            alive: Arc::default(),
            streams: Mutex::default(),
        }
    }
}

impl Ahead {
    /// The block's fetch, if there is one that counts. What lies before it is dropped.
    fn find(&mut self, block: u64, version: u64) -> Option<Arc<Fetch>> {
        self.blocks.retain(|fetch| fetch.block >= block && fetch.version == version);
        self.blocks.front().filter(|fetch| fetch.block == block).cloned()
    }

    /// Notes a read; says whether blocks beyond its own are worth having.
    fn note(&mut self, offset: u64, len: u64) -> bool {
        // Requests of one stream may overtake each other.
        let near = offset.abs_diff(self.next) <= OVERTAKING * len && len >= LONG;
        let follows = offset == self.next || near;
        self.streak = if follows { self.streak.saturating_add(1) } else { 0 };
        self.next = if follows { self.next.max(offset + len) } else { offset + len };
        self.used = Some(Instant::now());
        if self.streak == 0 {
            self.blocks.clear();
        }
        self.streak >= STREAK
    }

    fn has(&self, block: u64) -> bool {
        self.blocks.iter().any(|fetch| fetch.block == block)
    }
}

impl FileData {
    /// Blocks to fetch so that `depth` of them are there beyond `block`.
    fn extend_window(&mut self, block: u64, depth: u64, alive: &Arc<()>) -> Vec<Arc<Fetch>> {
        let mut new = Vec::new();
        for block in block + 1..=block + depth {
            let start = block * BLOCK;
            if start >= self.size || self.ahead.has(block) {
                continue;
            }
            let fetch = Arc::new(Fetch {
                block,
                version: self.version,
                object: self.object,
                layout: self.layout.clone(),
                len: (self.size - start).min(BLOCK) as usize,
                state: Mutex::new(FetchState::Pending),
                done: Condvar::new(),
                _alive: alive.clone(),
            });
            self.ahead.blocks.push_back(fetch.clone());
            new.push(fetch);
        }
        new
    }
}

impl Fetch {
    fn end(&self, outcome: FetchState) {
        *self.state.lock() = outcome;
        self.done.notify_all();
    }

    /// Waits for the block and copies from `within` it; false where it could not be had.
    fn copy(&self, within: usize, out: &mut [u8]) -> bool {
        let mut state = self.state.lock();
        while matches!(*state, FetchState::Pending) {
            self.done.wait(&mut state);
        }
        match &*state {
            FetchState::Ready(buf) if within + out.len() <= buf.len() => {
                out.copy_from_slice(&buf[within..within + out.len()]);
                true
            }
            _ => false,
        }
    }
}

impl Shared {
    /// Serves a read from what was fetched ahead, and fetches on. `None` where it must be read
    /// from the targets.
    pub(crate) fn read_ahead(&self, node: &Arc<Inode>, at: u64, out: &mut [u8]) -> Option<usize> {
        let within = at % BLOCK;
        let (fetch, new, len) = {
            let mut state = node.state.lock();
            let file = state.file.as_mut()?;
            let len = file.size.saturating_sub(at).min(out.len() as u64);
            let whole = file.inline.is_none() && file.buffer.is_empty();
            if !whole || len == 0 || within + len > BLOCK {
                file.ahead = Ahead::default();
                return None;
            }
            let fetch = file.ahead.find(at / BLOCK, file.version);
            let first = file.ahead.used.is_none();
            let depth = if file.ahead.note(at, len) { self.window() } else { 0 };
            let room = (MAX_BLOCKS + 1).saturating_sub(Arc::strong_count(&self.fetcher.alive));
            let new = file.extend_window(at / BLOCK, depth.min(room as u64), &self.fetcher.alive);
            drop(state);
            if first {
                self.fetcher.streams.lock().push(node.clone());
            }
            (fetch, new, len as usize)
        };
        self.fetcher.ask(new);
        fetch?.copy(within as usize, &mut out[..len]).then_some(len)
    }

    /// Blocks to have beyond the one that is read.
    fn window(&self) -> u64 {
        let forced = self.data.flow().forced().read_ahead;
        forced.map_or(WINDOW, |bytes| u64::from(bytes).div_ceil(BLOCK))
    }

    /// A worker: fetches blocks for as long as the client lives, with as many others as the mount
    /// has threads for it.
    pub(crate) fn fetch_worker(&self) {
        while !self.session.stopping() {
            let threads = usize::from(self.data.flow().forced().threads.unwrap_or(THREADS));
            let Some(fetch) = self.fetcher.next(threads) else { continue };
            let mut buf = self.fetcher.buffers.take();
            buf.set_len(fetch.len);
            let at = fetch.block * BLOCK;
            let end = Deadline::after(PATIENCE);
            let read = self.data.read_until(&fetch.layout, fetch.object, at, &mut buf, end);
            fetch.end(read.map_or(FetchState::Failed, |()| FetchState::Ready(buf)));
            self.fetcher.done();
        }
    }

    /// Drops windows that nobody reads from any more.
    pub(crate) fn drop_idle_windows(&self) {
        self.fetcher.streams.lock().retain(|node| {
            let mut state = node.state.lock();
            let Some(file) = &mut state.file else { return false };
            let live = file.ahead.used.is_some_and(|at| at.elapsed() < IDLE);
            if !live {
                file.ahead = Ahead::default();
            }
            live
        });
    }
}

impl Fetcher {
    fn ask(&self, fetches: Vec<Arc<Fetch>>) {
        if fetches.is_empty() {
            return;
        }
        self.queue.lock().todo.extend(fetches);
        self.queued.notify_all();
    }

    /// The next block that somebody still wants, if another thread may fetch; then
    /// [`Fetcher::done`] is owed.
    fn next(&self, threads: usize) -> Option<Arc<Fetch>> {
        let mut queue = self.queue.lock();
        if queue.todo.is_empty() || queue.busy >= threads {
            self.queued.wait_for(&mut queue, Duration::from_millis(200));
        }
        queue.todo.retain(|fetch| Arc::strong_count(fetch) > 1);
        let may = queue.busy < threads;
        let next = queue.todo.pop_front_if(|_| may);
        queue.busy += usize::from(next.is_some());
        next
    }

    fn done(&self) {
        let mut queue = self.queue.lock();
        queue.busy -= 1;
        if !queue.todo.is_empty() {
            self.queued.notify_one();
        }
    }
}
