//! Reads wait for the commits that they show, and for no others: the log is held back while a
//! commit is under way, and those reads that need it stay unanswered until it goes on.

use std::io;
use std::sync::mpsc;

use parking_lot::{Condvar, Mutex};

use super::*;

const ROOT: Ino = Ino::ROOT;

/// Longer than an answer takes that waits for nothing.
const PAUSE: Duration = Duration::from_millis(300);

/// Answers that need not wait are there by then, on any machine.
const LONG: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Passage {
    Open,
    Closed,
    /// Closed, and a write stands before it.
    Reached,
}

/// A disk whose writes can be held back.
struct Gate {
    disk: Arc<MemDisk>,
    passage: Mutex<Passage>,
    moved: Condvar,
}

impl Gate {
    fn set(&self, passage: Passage) {
        *self.passage.lock() = passage;
        self.moved.notify_all();
    }

    /// Returns when a write is held back.
    fn wait_reached(&self) {
        let mut passage = self.passage.lock();
        let closed = |passage: &mut Passage| *passage == Passage::Closed;
        let waited = self.moved.wait_while_for(&mut passage, closed, LONG);
        assert!(!waited.timed_out(), "nothing was written");
    }
}

impl Disk for Gate {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.set_len(len)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.disk.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut passage = self.passage.lock();
        while *passage != Passage::Open {
            *passage = Passage::Reached;
            self.moved.notify_all();
            self.moved.wait(&mut passage);
        }
        drop(passage);
        self.disk.write_at(offset, data)
    }
    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }
}

/// A server whose log is behind a gate.
fn gated() -> (World, Arc<Gate>) {
    let (log, tables) = (Arc::new(MemDisk::new()), Arc::new(MemDisk::new()));
    let (passage, moved) = (Mutex::new(Passage::Open), Condvar::new());
    let gate = Arc::new(Gate { disk: log.clone(), passage, moved });
    let engine = Embedded::open(gate.clone(), tables.clone() as Arc<dyn Disk>, KV).unwrap();
    let clock = Arc::new(ManualClock::default());
    clock.advance(Duration::from_secs(1000));
    let server = MetaServer::open(Arc::new(engine), Arc::new(Pools), clock.clone()).unwrap();
    (World { log, tables, clock, server }, gate)
}

type Read<'a> = (&'static str, Box<dyn Fn() + Send + 'a>);

fn read<'a>(name: &'static str, run: impl Fn() + Send + 'a) -> Read<'a> {
    (name, Box::new(run))
}

/// Runs `change` with its commit held back, and meanwhile the reads. Only those of `shown` may
/// wait for it, and all of them must.
fn check(gate: &Gate, change: impl FnOnce() + Send, shown: Vec<Read<'_>>, others: Vec<Read<'_>>) {
    let (answered, answers) = mpsc::channel();
    let mut wanted: Vec<_> = others.iter().map(|(name, _)| *name).collect();
    let all = shown.len() + others.len();
    let mut early = Vec::new();
    gate.set(Passage::Closed);
    std::thread::scope(|scope| {
        scope.spawn(change);
        gate.wait_reached();
        for (name, run) in shown.into_iter().chain(others) {
            let answered = answered.clone();
            scope.spawn(move || {
                run();
                answered.send(name).unwrap();
            });
        }
        while let Ok(name) =
            answers.recv_timeout(if early.len() < wanted.len() { LONG } else { PAUSE })
        {
            early.push(name);
        }
        gate.set(Passage::Open);
    });
    let late = answers.try_iter().count();
    early.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(early, wanted, "answered while the commit was not durable");
    assert_eq!(early.len() + late, all, "everybody is answered when it is");
}

/// Catches `read_before_durable`.
#[test]
fn a_read_waits_for_the_commit_that_it_shows_and_for_no_other() {
    let (world, gate) = gated();
    let c = world.client();
    let dir = c.dir(ROOT, "dir");
    let [moved, other] = [c.file(dir, "old"), c.file(dir, "other")];
    let rename = || {
        let renamed = c.rename((dir, "old"), (dir, "new"), RenameMode::Replace);
        assert_eq!(renamed.unwrap().moved, moved);
    };
    let exists = || make(dir, "new", MakeKind::File);
    let gone = || Unlink { parent: dir, name: b"old".into(), kind: RemoveKind::File };
    let list = || ReadDir { ino: dir, cookie: 0, max: 9, attrs: WithAttrs::No };
    let missing = || XattrGet { ino: other, name: b"user.a".into() };
    let shown = vec![
        read("the new name", || assert!(c.find(dir, "new").is_some())),
        read("the old name", || assert!(c.find(dir, "old").is_none())),
        read("the inode", || assert_eq!(c.attr(moved).unwrap().nlink, 1)),
        read("the directory", || assert_eq!(c.attr(dir).unwrap().size, 2)),
        read("the list", || assert_eq!(c.get(list()).unwrap().entries.len(), 2)),
        read("the numbers", || assert_eq!(c.get(StatFs {}).unwrap().inodes, 4)),
        read("it exists", || assert_eq!(c.get(exists()), Err(Status::EXIST))),
        read("it is gone", || assert_eq!(c.get(gone()), Err(Status::NOENT))),
    ];
    let others = vec![
        read("another name", || assert!(c.find(dir, "other").is_some())),
        read("no name", || assert!(c.find(dir, "none").is_none())),
        read("another inode", || assert_eq!(c.attr(other).unwrap().nlink, 1)),
        read("another directory", || assert_eq!(c.attr(ROOT).unwrap().size, 1)),
        read("no attribute", || assert_eq!(c.get(missing()), Err(Status::NODATA))),
    ];
    check(&gate, rename, shown, others);
    world.fsck();
}

/// Catches `read_before_durable`.
#[test]
fn who_looks_names_up_waits_for_who_made_or_removed_the_directory() {
    let (world, gate) = gated();
    let c = world.client();
    let old = c.dir(ROOT, "old");
    let new = Ino(old.0 + 1);
    let lookup = |parent| c.get(Lookup { parent, name: b"f".into() });
    let made = || assert_eq!(c.dir(ROOT, "new"), new);
    let shown = vec![read("made", || assert!(lookup(new).is_ok()))];
    let others = vec![read("there before", || assert!(lookup(old).is_ok()))];
    check(&gate, made, shown, others);
    c.get(Release { leases: vec![(old, u64::MAX)] }).unwrap();
    let removed = || assert!(!c.rmdir(ROOT, "old").unwrap().orphan);
    let shown = vec![read("removed", || assert_eq!(lookup(old), Err(Status::STALE)))];
    let others = vec![read("still there", || assert!(lookup(new).is_ok()))];
    check(&gate, removed, shown, others);
    world.fsck();
}
