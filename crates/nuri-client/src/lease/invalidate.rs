//! Empties the kernel's caches of an inode for a recall, without waiting for the client's own
//! operations.
//!
//! A buffered write may fill its last page only in part. If that page holds nothing valid yet, the
//! write keeps it locked until it is answered. A read keeps all its pages locked. While such an
//! operation waits for a lease, a write of another mount may wait for our recall, and neither would
//! end. So the pages of own waiting operations may stay locked. No old data can be read from these
//! pages: a reader waits for the operation, and the operation asks the server. All other pages are
//! emptied before the recall is answered.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nuri_proto::id::Ino;
use nuri_proto::range_map::Span;
use nuri_rules::broken;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::inode::Inode;
use crate::lease::drain::Drain;
use crate::thread_pool::ThreadPool;

const PAGE: u64 = 4096;
const LOOK: Duration = Duration::from_millis(1);
/// Much longer than the kernel takes from a reply to the inode.
const TAKEN_OVER: Duration = Duration::from_secs(1);
const TAKING_OVER: Duration = Duration::from_micros(100);
/// A call that waits for a page's lock in so many looks one after the other waits for the write.
const LOOKS: u32 = 5;

thread_local! {
    /// The thread as `/proc` names it.
    static THREAD: PathBuf = {
        let thread = std::fs::read_link("/proc/thread-self").unwrap_or_default();
        PathBuf::from("/proc").join(thread)
    };
}

/// Pages from there on, so many bytes; 0 for all that follow.
type Pages = (u64, u64);

/// The caches of the front end's kernel, and how to empty them. Calls may block on the kernel.
pub trait KernelCache: Send + Sync + 'static {
    /// The size of a file may change elsewhere from here on. Calls nobody.
    fn doubt(&self, ino: Ino);
    /// Attributes of an inode, which waits for no page. False: the kernel does not know the inode.
    fn invalidate_attributes(&self, ino: Ino) -> bool;
    /// Pages of an inode, from `offset` on, `len` bytes or (0) all; and its attributes. False: the
    /// kernel does not know the inode.
    fn invalidate_pages(&self, ino: Ino, offset: u64, len: u64) -> bool;
    /// Names in a directory.
    fn invalidate_entries(&self, dir: Ino);
    /// Drops those of the inodes that no program uses, with their names. False where the kernel
    /// cannot be told to.
    fn drop_unused(&self, inos: &[Ino]) -> bool;
}

/// Threads that empty the kernel's caches after a loss.
const INVALIDATORS: usize = 8;

/// An operation that waits for its lease; ends when dropped.
pub(crate) struct Awaiting {
    node: Arc<Inode>,
    pages: (u64, u64),
}

impl Awaiting {
    /// For a write of these bytes.
    pub(crate) fn write(node: Arc<Inode>, bytes: Span) -> Awaiting {
        Awaiting::new(node, bytes.end / PAGE * PAGE, bytes.end)
    }

    /// For a read of these bytes.
    pub(crate) fn read(node: Arc<Inode>, bytes: Span) -> Awaiting {
        Awaiting::new(node, bytes.start / PAGE * PAGE, bytes.end)
    }

    fn new(node: Arc<Inode>, from: u64, last: u64) -> Awaiting {
        let pages = (from, (last / PAGE + 1) * PAGE);
        node.state.lock().awaiting.push(pages);
        Awaiting { node, pages }
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        let awaiting = &mut self.node.state.lock().awaiting;
        if let Some(at) = awaiting.iter().position(|pages| *pages == self.pages) {
            awaiting.swap_remove(at);
        }
    }
}

/// The kernel's caches, and what is needed to empty them.
#[derive(Default)]
pub(crate) struct KernelCaches {
    kernel: RwLock<Option<Arc<dyn KernelCache>>>,
    /// Replies that carry cache times hold it shared until the kernel has them.
    gate: RwLock<()>,
    threads: ThreadPool,
}

impl Drain for KernelCaches {
    fn drain(&self, inode: &Arc<Inode>) -> bool {
        self.empty_kernel_for_recall(inode);
        true
    }
}

impl KernelCaches {
    pub(crate) fn new(threads: ThreadPool) -> KernelCaches {
        KernelCaches { threads, ..KernelCaches::default() }
    }

    /// Sets the kernel cache to empty.
    pub(crate) fn set(&self, kernel: Arc<dyn KernelCache>) {
        *self.kernel.write() = Some(kernel);
    }

    /// Held while a reply with cache times is built and sent.
    pub(crate) fn gate(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read()
    }

    /// Drops those of the inodes that no program uses. `false` where the kernel cannot be told to
    /// do so.
    pub(crate) fn drop_unused(&self, inos: &[Ino]) -> bool {
        let kernel = self.kernel.read().clone();
        kernel.is_some_and(|kernel| kernel.drop_unused(inos))
    }

    /// Lets replies in flight reach the kernel, then empties its caches of the inode but for pages
    /// that hold nothing.
    pub(crate) fn empty_kernel_for_recall(&self, node: &Inode) {
        drop(self.gate.write());
        let names = node.state.lock().names;
        let Some(kernel) = self.kernel.read().clone() else { return };
        if names {
            kernel.invalidate_entries(node.ino);
        }
        while !empty_around(&self.threads, &kernel, node, (0, 0)) {}
    }

    /// As `empty_kernel_for_recall`, for the pages of some bytes.
    pub(crate) fn empty_pages_for_recall(&self, node: &Inode, bytes: Span) {
        drop(self.gate.write());
        let Some(kernel) = self.kernel.read().clone() else { return };
        let from = bytes.start / PAGE * PAGE;
        let len = if bytes.end == Span::LAST { 0 } else { (bytes.end / PAGE + 1) * PAGE - from };
        while !empty_around(&self.threads, &kernel, node, (from, len)) {}
    }

    /// Notes that leases of these inodes are about to be lost. Until the kernel's caches are
    /// emptied, the kernel may know older sizes.
    pub(crate) fn doubt(&self, nodes: &[Arc<Inode>]) {
        if let Some(kernel) = self.kernel.read().clone() {
            nodes.iter().for_each(|node| kernel.doubt(node.ino));
        }
    }

    /// Lets replies in flight reach the kernel, then empties its caches of the inode.
    fn empty_kernel(&self, node: &Inode) {
        drop(self.gate.write());
        let names = node.state.lock().names;
        let kernel = self.kernel.read().clone();
        if let Some(kernel) = kernel {
            if names {
                kernel.invalidate_entries(node.ino);
            }
            if !kernel.invalidate_pages(node.ino, 0, 0) {
                await_inode(&*kernel, node);
            }
        }
    }

    /// As `empty_kernel`, for many inodes, on threads of their own. The kernel blocks on pages that
    /// are being read, and such a read may wait for what the caller does next. The receiver gets a
    /// message when all are done.
    pub(crate) fn empty_kernel_apart(
        self: &Arc<KernelCaches>,
        nodes: Vec<Arc<Inode>>,
    ) -> Receiver<()> {
        let (done, when_done) = channel();
        let queue = Arc::new(Mutex::new(nodes));
        for _ in 0..INVALIDATORS {
            let (shared, queue, done) = (self.clone(), queue.clone(), done.clone());
            let work = move || {
                loop {
                    let next = queue.lock().pop();
                    let Some(node) = next else { break };
                    shared.empty_kernel(&node);
                }
                drop(done);
            };
            // With fewer threads it takes longer.
            let _ = std::thread::Builder::new().name("invalidate".into()).spawn(work);
        }
        when_done
    }
}

/// Waits until the kernel, which did not know the inode, knows it, so that it can be told to forget
/// its attributes. A look-up may still be on its way from the reply to the inode. The wait is
/// bounded: the look-up may not be answered yet, and wait for what the caller does next. Then it is
/// answered without a time.
pub(crate) fn await_inode(kernel: &dyn KernelCache, node: &Inode) {
    let start = Instant::now();
    let is_any = broken!("recall_of_unknown");
    let is_known = || kernel.invalidate_attributes(node.ino) || is_any;
    while !is_known() && node.state.lock().lookups > 0 && start.elapsed() < TAKEN_OVER {
        std::thread::sleep(TAKING_OVER);
    }
}

/// Pages that own operations keep locked while they wait: from, to; ascending, none twice.
fn locked(node: &Inode) -> Vec<(u64, u64)> {
    let mut pages = node.state.lock().awaiting.clone();
    pages.sort_unstable();
    let mut apart: Vec<(u64, u64)> = Vec::with_capacity(pages.len());
    for (from, to) in pages {
        match apart.last_mut() {
            Some(last) if from < last.1 => last.1 = last.1.max(to),
            _ => apart.push((from, to)),
        }
    }
    apart
}

/// Empties all of them but those that own waiting operations keep. False: others came meanwhile.
fn empty_around(
    crew: &ThreadPool,
    kernel: &Arc<dyn KernelCache>,
    node: &Inode,
    within: Pages,
) -> bool {
    let pages = locked(node);
    let (done, when_done) = channel();
    let mut rest = Call::start(crew, kernel, node.ino, gaps(&pages, within), 0, &done);
    let single = |(i, (from, to)): (usize, &(u64, u64))| {
        Call::start(crew, kernel, node.ino, vec![(*from, to - from)], i + 1, &done)
    };
    let mut single: Vec<_> = pages.iter().enumerate().map(single).collect();
    drop(done);
    loop {
        let is_heard = hear(&when_done, &mut rest, &mut single);
        if !is_heard || rest.has_ended && single.iter_mut().all(Call::is_over) {
            if rest.is_unknown.load(Ordering::Relaxed) {
                await_inode(&**kernel, node);
            }
            return true;
        }
        if !rest.has_ended && locked(node) != pages && rest.waits_for_lock() {
            return false;
        }
    }
}

/// Waits a little for a call to end. False: all have.
fn hear(when_done: &Receiver<Event>, rest: &mut Call, single: &mut [Call]) -> bool {
    match when_done.recv_timeout(LOOK) {
        Ok(Event { call, what }) => {
            let call = if call == 0 { rest } else { &mut single[call - 1] };
            match what {
                Some(thread) => call.thread = Some(thread),
                None => call.has_ended = true,
            }
            true
        }
        Err(RecvTimeoutError::Timeout) => true,
        Err(RecvTimeoutError::Disconnected) => false,
    }
}

/// What lies between the pages.
fn gaps(pages: &[(u64, u64)], (start, len): Pages) -> Vec<Pages> {
    let mut from = start;
    let end = if len == 0 { u64::MAX } else { start + len };
    let mut gaps = Vec::new();
    for (first, after) in pages {
        if *first >= end || *after <= from {
            continue;
        }
        if *first > from {
            gaps.push((from, first - from));
        }
        from = *after;
    }
    match len {
        0 => gaps.push((from, 0)),
        _ if from < end => gaps.push((from, end - from)),
        _ => {}
    }
    gaps
}

/// A call's thread begins, as `/proc` names it, or ends.
struct Event {
    call: usize,
    what: Option<PathBuf>,
}

/// Calls of the kernel, in a thread that may wait there.
struct Call {
    thread: Option<PathBuf>,
    has_ended: bool,
    /// The kernel did not know the inode.
    is_unknown: Arc<AtomicBool>,
    /// Looks that found it waiting for a page's lock, one after the other.
    waited: u32,
}

impl Call {
    fn start(
        crew: &ThreadPool,
        kernel: &Arc<dyn KernelCache>,
        ino: Ino,
        spans: Vec<Pages>,
        call: usize,
        done: &Sender<Event>,
    ) -> Call {
        let is_unknown = Arc::new(AtomicBool::new(false));
        let empty = {
            let (kernel, is_unknown) = (kernel.clone(), is_unknown.clone());
            move || {
                for (at, len) in &spans {
                    if !kernel.invalidate_pages(ino, *at, *len) {
                        is_unknown.store(true, Ordering::Relaxed);
                    }
                }
            }
        };
        let (in_thread, done) = (empty.clone(), done.clone());
        let body = move || {
            let thread = THREAD.with(PathBuf::clone);
            let _ = done.send(Event { call, what: Some(thread) });
            in_thread();
            let _ = done.send(Event { call, what: None });
        };
        let started = crew.start(body);
        if started.is_err() {
            // Without a thread it is waited for here, in the worst case until the recall's end.
            empty();
        }
        Call { thread: None, has_ended: started.is_err(), is_unknown, waited: 0 }
    }

    fn is_over(&mut self) -> bool {
        self.has_ended || self.waits_for_lock()
    }

    fn waits_for_lock(&mut self) -> bool {
        let is_waiting = self.thread.as_ref().is_some_and(|thread| {
            let read = |name| std::fs::read_to_string(thread.join(name)).unwrap_or_default();
            let stat = read("stat");
            let state = stat.rsplit(") ").next().unwrap_or_default();
            let place = read("wchan");
            // Unnamed where the kernel does not say. Its other waits have other names.
            state.starts_with('D') && (place.contains("lock") || matches!(&*place, "" | "0"))
        });
        self.waited = if is_waiting { self.waited + 1 } else { 0 };
        self.waited >= LOOKS
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Takes an inode over after so many calls.
    struct Slow(AtomicU32);

    impl KernelCache for Slow {
        fn doubt(&self, _: Ino) {}
        fn invalidate_attributes(&self, _: Ino) -> bool {
            self.0.fetch_sub(1, Ordering::SeqCst) == 1
        }
        fn invalidate_pages(&self, _: Ino, _: u64, _: u64) -> bool {
            true
        }
        fn invalidate_entries(&self, _: Ino) {}
        fn drop_unused(&self, _: &[Ino]) -> bool {
            false
        }
    }

    /// Catches `broken!("recall_of_unknown")`.
    #[test]
    fn an_inode_on_its_way_to_the_kernel_is_waited_for() {
        let calls_left = |lookups| {
            let (node, kernel) = (Inode::new(Ino(7), 0), Slow(AtomicU32::new(9)));
            node.state.lock().lookups = lookups;
            await_inode(&kernel, &node);
            kernel.0.into_inner()
        };
        assert_eq!(calls_left(1), 0, "until it is known");
        assert_eq!(calls_left(0), 8, "not where nobody looked it up");
    }

    #[test]
    fn gaps_lie_around_the_pages() {
        let (all, page) = ((0, 0), |n: u64| (n * PAGE, (n + 1) * PAGE));
        assert_eq!(gaps(&[], all), [(0, 0)]);
        assert_eq!(gaps(&[page(0)], all), [(PAGE, 0)]);
        assert_eq!(gaps(&[page(1), page(2)], all), [(0, PAGE), (3 * PAGE, 0)]);
        let two = [page(1), page(9)];
        assert_eq!(gaps(&two, all), [(0, PAGE), (2 * PAGE, 7 * PAGE), (10 * PAGE, 0)]);
        assert_eq!(gaps(&two, (2 * PAGE, PAGE)), [(2 * PAGE, PAGE)]);
        assert_eq!(gaps(&two, (PAGE, 9 * PAGE)), [(2 * PAGE, 7 * PAGE)]);
        assert_eq!(gaps(&two, (PAGE, PAGE)), []);
        let long = [(0, 4 * PAGE)];
        assert_eq!(gaps(&long, (PAGE, 5 * PAGE)), [(4 * PAGE, 2 * PAGE)]);
    }
}
