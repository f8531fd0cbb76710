//! Parts of a file that several sessions write.

use super::*;
use nuri_proto::op::part::{AcquirePart, AcquirePartReply, Ahead};

const ROOT: Ino = Ino::ROOT;

fn span(start: u64, end: u64) -> Span {
    Span { start, end }
}

impl Client<'_> {
    fn part(&self, ino: Ino, need: Span) -> AcquirePartReply {
        self.part_and(ino, need, Ahead::default())
    }

    fn part_and(&self, ino: Ino, need: Span, ahead: Ahead) -> AcquirePartReply {
        self.get(AcquirePart { ino, need, ahead, known: false }).unwrap()
    }

    fn publish_part(&self, ino: Ino, size: u64, added: u64) -> Result<InodeReply, Status> {
        let data = PublishData::Part;
        self.put(Publish { ino, size, allocated: added, mtime: None, data })
    }
}

/// The first session writes the file, the others take it from each other, until parts are granted.
fn rivals(world: &World, count: usize) -> (Vec<Client<'_>>, Ino, Vec<u64>) {
    let callers: Vec<_> = (0..count).map(|_| world.client()).collect();
    let f = callers[0].file(ROOT, "f");
    callers[0].publish(f, 8192).unwrap();
    let mut at = vec![0; count];
    for turn in 0..2 {
        let [from, to] = [turn % 2, (turn + 1) % 2];
        let reply = taken(&callers[to], &callers[from], f, span(0, 99), &mut at[from]);
        assert_eq!(reply.part.is_some(), turn == 1, "the first time the whole goes over");
    }
    (callers, f, at)
}

/// One asks for bytes and gets them; what is recalled from the other one for it is given.
fn taken(to: &Client<'_>, from: &Client<'_>, f: Ino, need: Span, at: &mut u64) -> AcquirePartReply {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| to.part(f, need));
        from.obey(from.recalled(at));
        asked.join().unwrap()
    })
}

#[test]
fn writers_that_take_a_file_from_each_other_get_parts_of_it() {
    let world = World::new();
    let (callers, f, _) = rivals(&world, 3);
    let [a, b, c] = [&callers[0], &callers[1], &callers[2]];
    // The first has bytes 0 to 99.
    let ahead = Ahead { start: 200, len: 100, step: 200, count: 3 };
    assert_eq!(b.part_and(f, span(100, 199), ahead).part.unwrap().count, 3);
    let ahead = Ahead { start: 300, len: 100, step: 100, count: 9 };
    assert_eq!(a.part_and(f, span(300, 399), ahead).part.unwrap().count, 1, "up to what is held");
    assert!(c.part(f, span(1000, 1000)).part.is_some());
    assert_eq!(a.publish_part(f, 400, 4096).unwrap().attr.size, 8192);
    assert_eq!(b.publish_part(f, 9000, 4096).unwrap().attr.size, 9000);
    let attr = a.publish_part(f, 400, 4096).unwrap().attr;
    assert_eq!((attr.size, attr.allocated), (9000, 8192 + 3 * 4096), "each adds its own");
}

/// Catches `parts_overlap`.
#[test]
fn a_part_goes_from_one_writer_to_another() {
    let world = World::new();
    let (callers, f, mut at) = rivals(&world, 2);
    let (a, b) = (&callers[0], &callers[1]);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| b.part(f, span(50, 59)));
        let recall = a.recalled(&mut at[0]);
        assert_eq!(recall.part, Some(span(50, 99)), "and what lies beyond");
        assert!(!asked.is_finished());
        assert!(a.part(f, span(70, 79)).part.is_none(), "while it is taken back");
        assert!(a.part(f, span(10, 19)).part.is_some(), "the rest stays");
        a.obey(recall);
        assert!(asked.join().unwrap().part.is_some());
    });
    assert!(a.part(f, span(60, 69)).part.is_some());
}

#[test]
fn who_looks_at_the_file_recalls_all_parts() {
    let world = World::new();
    let (callers, f, mut at) = rivals(&world, 3);
    let [a, b, c] = [&callers[0], &callers[1], &callers[2]];
    assert!(b.part(f, span(500, 599)).part.is_some());
    std::thread::scope(|scope| {
        let stat = scope.spawn(|| c.attr(f).unwrap());
        for (caller, at) in [a, b].into_iter().zip(&mut at) {
            let recall = caller.recalled(at);
            assert_eq!((recall.keep, recall.part), (None, None));
            caller.publish_part(f, 10_000, 0).unwrap();
            caller.obey(recall);
        }
        assert_eq!(stat.join().unwrap().size, 10_000);
    });
    assert_eq!(a.publish_part(f, 20_000, 0), Err(Status::STALE));
}

#[test]
fn a_reader_asks_for_the_whole_and_has_no_parts_then() {
    let world = World::new();
    let (callers, f, _) = rivals(&world, 2);
    let a = &callers[0];
    assert_eq!(a.attr(f).map(|attr| attr.size), Ok(8192));
    assert!(a.get(GetAttr { ino: f }).unwrap().lease.is_none(), "nothing in passing beside parts");
    assert!(a.acquire(f, LeaseMode::Read).unwrap().inode.lease.is_some());
    assert_eq!(a.publish_part(f, 9000, 0), Err(Status::STALE));
}

#[test]
fn parts_are_reclaimed_after_a_restart() {
    let world = World::new();
    let (callers, f, _) = rivals(&world, 2);
    assert!(callers[1].part(f, span(500, 599)).part.is_some());
    let ids = [callers[0].id, callers[1].id];
    drop(callers);
    let world = world.crash(1);
    let again = |id| Client { server: &world.server, id, sequence: AtomicU64::new(100) };
    let [a, b] = ids.map(again);
    let reclaim = |spans: Vec<Span>| Reclaim { parts: vec![(f, spans)], ..Reclaim::default() };
    assert_eq!(a.reclaim(reclaim(vec![span(0, 99)])).unwrap().parts, [true]);
    assert_eq!(b.reclaim(reclaim(vec![span(90, 95)])).unwrap().parts, [false], "another's by now");
    assert_eq!(b.reclaim(reclaim(vec![span(500, 599)])).unwrap().parts, [true]);
    b.publish_part(f, 9000, 0).unwrap();
}

#[test]
fn a_writer_that_left_nothing_beyond_the_size_says_so() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let f = a.file(ROOT, "f");
    a.publish(f, 8192).unwrap();
    a.put(Extend { ino: f, is_cut_done: false }).unwrap();
    a.publish(f, 16_384).unwrap();
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| b.acquire(f, LeaseMode::Write).unwrap());
        a.obey(a.recalled(&mut 0));
        assert_eq!(asked.join().unwrap().file.unwrap().punch_from, None);
    });
}
