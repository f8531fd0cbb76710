//! Reads ahead for programs that bypass the kernel's cache (`O_DIRECT`), and so its read-ahead.
//!
//! The window of a file belongs to the file's lease, and ends with it. Blocks are fetched only
//! while nothing is buffered for writing. They count only while the file has not changed since.

pub(crate) mod window;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nuri_io::buf::BufPool;
use nuri_proto::clock::MEMBER_TIMEOUT;
use nuri_rpc::Deadline;
use nuri_volume::DataPlane;
use nuri_volume::transfer::THREADS;
use parking_lot::{Condvar, Mutex};
use window::{Ahead, Fetch, FetchState};

use crate::inode::{FileData, Inode};
use crate::session::MetaSession;
use crate::writeback::buffer::BLOCK;

/// Blocks fetched beyond the one that is read, per file, where nothing is forced.
const WINDOW: u64 = 4;
/// Blocks held for all files together.
const MAX_BLOCKS: usize = 24;
/// A window that nobody reads from for so long is dropped.
const IDLE: Duration = Duration::from_secs(1);
/// A block that cannot be had for so long is left to its reader, who waits longer.
const PATIENCE: Duration = MEMBER_TIMEOUT.saturating_mul(2);

/// Blocks to fetch, and threads that fetch one.
#[derive(Default)]
struct Queue {
    todo: VecDeque<Arc<Fetch>>,
    busy: usize,
}

/// The blocks that are fetched ahead, for all files.
pub(crate) struct Readahead {
    data: DataPlane,
    session: Arc<MetaSession>,
    queue: Mutex<Queue>,
    queued: Condvar,
    buffers: BufPool,
    /// Shared with every block that is alive, to count them.
    alive: Arc<()>,
    streams: Mutex<Vec<Arc<Inode>>>,
}

impl Readahead {
    pub(crate) fn new(data: &DataPlane, session: Arc<MetaSession>) -> Readahead {
        Readahead {
            data: data.clone(),
            session,
            queue: Mutex::default(),
            queued: Condvar::new(),
            buffers: BufPool::new(BLOCK as usize, MAX_BLOCKS / 2),
            alive: Arc::default(),
            streams: Mutex::default(),
        }
    }
}

impl FileData {
    /// Blocks to fetch so that `depth` of them are there beyond `block`.
    fn extend_window(&mut self, block: u64, depth: u64, alive: &Arc<()>) -> Vec<Arc<Fetch>> {
        let mut new = Vec::new();
        for block in block + 1..=block + depth {
            let start = block * BLOCK;
            if start >= self.own.size() || self.ahead.has(block) {
                continue;
            }
            let fetch = Arc::new(Fetch {
                block,
                version: self.own.version(),
                object: self.object,
                layout: self.layout.clone(),
                len: (self.own.size() - start).min(BLOCK) as usize,
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

impl Readahead {
    /// Serves the beginning of a read from what was fetched ahead, and fetches on. Returns how many
    /// bytes that were; the others must be read from the targets.
    pub(crate) fn read(&self, node: &Arc<Inode>, at: u64, out: &mut [u8]) -> usize {
        let (fetches, new, len) = {
            let mut state = node.state.lock();
            let Some(file) = state.file.as_mut() else { return 0 };
            let len = file.own.size().saturating_sub(at).min(out.len() as u64);
            if file.own.inline().is_some()
                || !file.own.buffer.is_empty()
                || !file.is_placed()
                || len == 0
            {
                file.ahead = Ahead::default();
                return 0;
            }
            let last = (at + len - 1) / BLOCK;
            let fetches = file.ahead.find(at / BLOCK..=last, file.own.version());
            let first = file.ahead.used.is_none();
            let depth = if file.ahead.note(at, len) { self.window() } else { 0 };
            let room = (MAX_BLOCKS + 1).saturating_sub(Arc::strong_count(&self.alive));
            let new = file.extend_window(last, depth.min(room as u64), &self.alive);
            drop(state);
            if first {
                self.streams.lock().push(node.clone());
            }
            (fetches, new, len as usize)
        };
        self.ask(new);
        copy(&fetches, at, &mut out[..len])
    }

    /// Blocks to have beyond the one that is read.
    fn window(&self) -> u64 {
        let forced = self.data.flow().forced().read_ahead;
        forced.map_or(WINDOW, |bytes| u64::from(bytes).div_ceil(BLOCK))
    }

    /// A worker: fetches blocks for as long as the client lives, with as many others as the mount
    /// has threads for it.
    pub(crate) fn run(&self) {
        while !self.session.stopping() {
            let threads = usize::from(self.data.flow().forced().threads.unwrap_or(THREADS));
            let Some(fetch) = self.next(threads) else { continue };
            let mut buf = self.buffers.take();
            buf.set_len(fetch.len);
            let at = fetch.block * BLOCK;
            let end = Deadline::after(PATIENCE);
            let read = self.data.read_until(&fetch.layout, fetch.object, at, &mut buf, end);
            fetch.end(read.map_or(FetchState::Failed, |()| FetchState::Ready(buf)));
            self.done();
        }
    }

    /// Drops windows that nobody reads from any more.
    pub(crate) fn drop_idle_windows(&self) {
        self.streams.lock().retain(|node| {
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

/// Copies from blocks in a row; returns how many bytes there were.
fn copy(fetches: &[Arc<Fetch>], at: u64, out: &mut [u8]) -> usize {
    let mut copied = 0;
    for fetch in fetches {
        let within = ((at + copied as u64) % BLOCK) as usize;
        let len = (BLOCK as usize - within).min(out.len() - copied);
        if !fetch.copy(within, &mut out[copied..copied + len]) {
            break;
        }
        copied += len;
    }
    copied
}

impl Readahead {
    fn ask(&self, fetches: Vec<Arc<Fetch>>) {
        if fetches.is_empty() {
            return;
        }
        self.queue.lock().todo.extend(fetches);
        self.queued.notify_all();
    }

    /// The next block that somebody still wants, if another thread may fetch; then
    /// [`Readahead::done`] is owed.
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
