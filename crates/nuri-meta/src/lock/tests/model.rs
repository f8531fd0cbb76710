//! A model that knows nothing of ranges: each owner has one cell per byte, and every decision is
//! made by looking at all cells. The table must decide the same.

use nuri_io::rng::Rng;

use super::*;

const BYTES: usize = 10;
const OWNERS: u64 = 5;
type Cells = [Option<LockMode>; BYTES];
type Who = (SessionId, u64);

#[derive(Clone)]
struct Waiting {
    who: Who,
    request: u64,
    file: FileKey,
    bytes: (usize, usize),
    mode: LockMode,
    detect: bool,
    passed: u32,
}

#[derive(Default)]
struct Model {
    cells: BTreeMap<(FileKey, Who), Cells>,
    queue: Vec<Waiting>,
}

fn clash(one: LockMode, other: LockMode) -> bool {
    (one, other) != (LockMode::Shared, LockMode::Shared)
}

impl Model {
    fn holders(&self, wait: &Waiting) -> Vec<Who> {
        let (from, to) = wait.bytes;
        let against = |((file, who), cells): (&(FileKey, Who), &Cells)| {
            let any = cells[from..=to].iter().flatten().any(|have| clash(*have, wait.mode));
            (*file == wait.file && *who != wait.who && any).then_some(*who)
        };
        self.cells.iter().filter_map(against).collect()
    }

    fn overlap(one: &Waiting, other: &Waiting) -> bool {
        one.file == other.file
            && one.who != other.who
            && one.bytes.0 <= other.bytes.1
            && other.bytes.0 <= one.bytes.1
            && clash(one.mode, other.mode)
    }

    fn may_go(&self, wait: &Waiting, before: usize) -> bool {
        let first = |w: &Waiting| {
            w.passed >= PASSES && Self::overlap(w, wait) && !self.holders(w).contains(&wait.who)
        };
        self.holders(wait).is_empty() && !self.queue[..before].iter().any(first)
    }

    fn give(&mut self, wait: &Waiting, mode: Option<LockMode>, before: usize) {
        if mode.is_some() {
            for other in &mut self.queue[..before] {
                other.passed += u32::from(Self::overlap(other, wait));
            }
        }
        let cells = self.cells.entry((wait.file, wait.who)).or_default();
        cells[wait.bytes.0..=wait.bytes.1].fill(mode);
    }

    /// Grants the first wait that may go, again and again.
    fn sweep(&mut self) -> Vec<Who> {
        let mut granted = Vec::new();
        while let Some(at) = (0..self.queue.len()).find(|at| self.may_go(&self.queue[*at], *at)) {
            let wait = self.queue.remove(at);
            self.give(&wait, Some(wait.mode), at);
            granted.push((wait.who.0, wait.request));
        }
        granted
    }

    /// Whether the owner of a wait is reached from those whom it waits for.
    fn in_circle(&self, wait: &Waiting) -> bool {
        let mut reached = self.holders(wait);
        let mut at = 0;
        while at < reached.len() {
            let of_it =
                |w: &&Waiting| w.who == reached[at] && w.detect && w.file.1 == LockClass::Range;
            let next: Vec<_> =
                self.queue.iter().filter(of_it).flat_map(|w| self.holders(w)).collect();
            for who in next {
                if !reached.contains(&who) {
                    reached.push(who);
                }
            }
            at += 1;
        }
        wait.detect && wait.file.1 == LockClass::Range && reached.contains(&wait.who)
    }

    /// What the call must answer.
    fn set(&mut self, session: SessionId, call: &LockSet) -> Result<LockOutcome, Status> {
        let request = match call.wait {
            LockWait::Queue { request, .. } => request,
            LockWait::No => 0,
        };
        let wait = Waiting {
            who: (session, call.owner),
            request,
            file: (call.ino, call.class),
            bytes: (call.span.start as usize, call.span.end.min(BYTES as u64 - 1) as usize),
            mode: call.mode.unwrap_or(LockMode::Shared),
            detect: matches!(call.wait, LockWait::Queue { deadlock: Deadlock::Detect, .. }),
            passed: 0,
        };
        let all = self.queue.len();
        let Some(mode) = call.mode else {
            self.give(&wait, None, all);
            return Ok(LockOutcome::Done);
        };
        if call.class == LockClass::Flock {
            let had = self.cells.get(&(wait.file, wait.who)).and_then(|cells| cells[0]);
            if had == Some(mode) {
                return Ok(LockOutcome::Done);
            }
            self.give(&wait, None, all);
        }
        let free = self.holders(&wait).is_empty();
        if free && (request == 0 || self.may_go(&wait, all)) {
            self.give(&wait, Some(mode), all);
            return Ok(LockOutcome::Done);
        }
        if request == 0 {
            return Ok(LockOutcome::Refused);
        }
        if self.in_circle(&wait) {
            return Err(Status::DEADLK);
        }
        self.queue.push(wait);
        Ok(LockOutcome::Waits)
    }

    /// Follows what the table told; it must be what the model grants, and circles alone end so.
    fn follow(&mut self, told: &[Told]) {
        let mut rest = told;
        loop {
            for granted in self.sweep() {
                let (first, more) = rest.split_first().expect("the table grants it too");
                assert_eq!((first.session, first.end.request), granted);
                assert_eq!(first.end.granted, GRANTED);
                rest = more;
            }
            let Some((first, more)) = rest.split_first() else { break };
            assert_eq!(first.end.granted, Granted::Deadlock, "{first:?}");
            let ended = (first.session, first.end.request);
            let at = self.queue.iter().position(|w| (w.who.0, w.request) == ended).unwrap();
            assert!(self.in_circle(&self.queue[at].clone()));
            self.queue.remove(at);
            rest = more;
        }
        assert!(self.queue.iter().all(|w| !self.in_circle(w)), "a circle was left");
    }

    /// As `follow`, where several files are looked at one after the other, in any order.
    fn follow_any_order(&mut self, told: Vec<Told>) {
        let mut granted = self.sweep();
        let circles = told.iter().filter(|t| t.end.granted == Granted::Deadlock);
        for ended in circles.map(|t| (t.session, t.end.request)) {
            let at = self.queue.iter().position(|w| (w.who.0, w.request) == ended).unwrap();
            assert!(self.in_circle(&self.queue[at]));
            self.queue.remove(at);
            granted.push(ended);
            granted.extend(self.sweep());
        }
        let mut ended: Vec<_> = told.iter().map(|t| (t.session, t.end.request)).collect();
        ended.sort_unstable();
        granted.sort_unstable();
        assert_eq!(ended, granted);
    }

    fn compare(&self, table: &LockTable) {
        let mut seen: BTreeMap<(FileKey, Who), Cells> = BTreeMap::new();
        for (file, of_file) in &table.files {
            for (owner, held) in &of_file.held {
                let cells = seen.entry((*file, (owner.session, owner.id))).or_default();
                for (span, mode) in held.ranges.iter() {
                    let end = span.end.min(BYTES as u64 - 1) as usize;
                    cells[span.start as usize..=end].fill(Some(mode));
                }
            }
        }
        let cells = self.cells.iter().filter(|(_, cells)| cells.iter().any(Option::is_some));
        assert_eq!(seen, cells.map(|(k, v)| (*k, *v)).collect());
        let parts = |f: &LockFile| f.held.values().map(|h| h.ranges.len()).sum::<usize>();
        let locks = table.files.values().map(parts).sum();
        assert_eq!(table.counts(), (locks, self.queue.len()));
    }
}

fn draw(rng: &mut Rng, request: u64) -> (SessionId, LockSet) {
    let session = SessionId(1 + rng.below(2));
    let flock = rng.one_in(5);
    let (a, b) = (rng.below(BYTES as u64), rng.below(BYTES as u64));
    // The last cell stands for all bytes from there on.
    let to_end = flock || a.max(b) == BYTES as u64 - 1;
    let span = Span {
        start: if flock { 0 } else { a.min(b) },
        end: if to_end { Span::LAST } else { a.max(b) },
    };
    let mode = match rng.below(5) {
        0 | 1 => None,
        2 | 3 => SHARED,
        _ => EXCLUSIVE,
    };
    let deadlock = if rng.one_in(6) { Deadlock::Ignore } else { Deadlock::Detect };
    let wait = if rng.one_in(3) { LockWait::No } else { LockWait::Queue { request, deadlock } };
    let class = if flock { LockClass::Flock } else { LockClass::Range };
    let (ino, owner) = (Ino(1 + rng.below(2)), 1 + rng.below(OWNERS));
    (session, LockSet { ino, class, owner, span, mode, pid: 0, wait })
}

/// Catches `broken!("lock_unchecked")`.
#[test]
fn the_table_decides_as_the_model_does() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (mut table, mut model) = (table(), Model::default());
        for request in 1..700 {
            match rng.below(40) {
                0 => {
                    let session = SessionId(1 + rng.below(2));
                    model.queue.retain(|w| w.who.0 != session);
                    model.follow_any_order(table.drop_waits(session));
                    model.cells.retain(|(_, who), _| who.0 != session);
                    model.follow_any_order(table.drop_session(session));
                }
                1..6 if !model.queue.is_empty() => {
                    let at = rng.below(model.queue.len() as u64) as usize;
                    let Waiting { who, request, .. } = model.queue.remove(at);
                    let (was, told) = table.cancel(who.0, request);
                    assert!(was);
                    model.follow(&told);
                }
                _ => {
                    let (session, call) = draw(&mut rng, request);
                    let expected = model.set(session, &call);
                    match table.set(session, &call) {
                        Ok((_, outcome, told)) => {
                            assert_eq!(Ok(outcome), expected, "seed {seed}: {call:?}");
                            model.follow(&told);
                        }
                        Err(status) => assert_eq!(Err(status), expected, "seed {seed}: {call:?}"),
                    }
                }
            }
            model.compare(&table);
        }
    }
}
