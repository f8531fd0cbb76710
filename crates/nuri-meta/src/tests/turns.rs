//! Directories that sessions take by turns.

use nuri_proto::clock::TURN;
use nuri_proto::op::log::{
    Apply, Change, Children, ChildrenReply, DirectoryTaken, Fate, NameChange, Reserve, Step,
    TakeDirectory,
};

use super::*;

const ROOT: Ino = Ino::ROOT;
const SOON: Duration = Duration::from_millis(150);

impl Client<'_> {
    fn take(&self, ino: Ino, known: Option<u64>) -> DirectoryTaken {
        self.get(TakeDirectory { ino, known }).unwrap()
    }

    fn apply(&self, changes: impl IntoIterator<Item = Change>) {
        let at = Time { sec: 2_000_000_000, nsec: 0 };
        let steps = changes.into_iter().map(|change| Step { at, change }).collect();
        self.put(Apply { steps }).unwrap();
    }

    /// Makes files by itself, with the lease of the directory.
    fn make_alone(&self, dir: Ino, names: &[&str]) -> Vec<Ino> {
        let first = self.put(Reserve { count: names.len() as u32 }).unwrap().first.0;
        let inos: Vec<_> = (first..).take(names.len()).map(Ino).collect();
        let made = inos.iter().zip(names);
        self.apply(made.map(|(ino, name)| Change::Make(*ino, make(dir, name, MakeKind::File))));
        inos
    }
}

fn said(taken: &DirectoryTaken) -> Option<Vec<(String, Option<Ino>)>> {
    let plain = |NameChange { name, to }: &NameChange| {
        (String::from_utf8(name.clone()).unwrap(), to.map(|(ino, _)| ino))
    };
    taken.changes.as_ref().map(|changes| changes.iter().map(plain).collect())
}

fn known(taken: &DirectoryTaken) -> Option<u64> {
    Some(taken.inode.attr.change)
}

/// Lets a session have the directory, whoever has it.
fn hand_over(from: (&Client<'_>, &mut u64), to: &Client<'_>, known: Option<u64>) -> DirectoryTaken {
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| to.take(ROOT, known));
        from.0.obey(from.0.recalled(from.1));
        taken.join().unwrap()
    })
}

/// Catches `broken!("turn_misses_names")`.
#[test]
fn who_takes_a_directory_again_is_told_what_changed() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let (mut at_a, mut at_b) = (0, 0);
    let first = a.take(ROOT, None);
    assert_eq!((first.inode.lease.unwrap().mode, first.is_bare), (LeaseMode::Write, true));
    assert_eq!(first.changes, None);
    a.make_alone(ROOT, &["own"]);
    world.pass(SOON);
    let other = hand_over((&a, &mut at_a), &b, None);
    b.make_alone(ROOT, &["before"]);
    world.pass(SOON);
    let again = hand_over((&b, &mut at_b), &a, known(&first));
    assert_eq!(said(&again), None, "it was not followed until now");
    a.make_alone(ROOT, &["gone", "kept"]);
    let unlink = Unlink { parent: ROOT, name: "gone".into(), kind: RemoveKind::File };
    a.apply([Change::Unlink(unlink, Fate::Dropped)]);
    world.pass(SOON);
    let other = hand_over((&a, &mut at_a), &b, known(&other));
    assert_eq!(said(&other), None);
    let [x, y] = b.make_alone(ROOT, &["x", "y"])[..] else { panic!() };
    world.pass(SOON);
    let third = hand_over((&b, &mut at_b), &a, known(&again));
    let told = [("x".into(), Some(x)), ("y".into(), Some(y))];
    assert_eq!(said(&third).unwrap(), told, "what a did itself it knows");
    world.pass(SOON);
    let other = hand_over((&a, &mut at_a), &b, known(&other));
    assert_eq!(said(&other).unwrap(), [], "nothing since");
}

#[test]
fn direct_changes_are_told_to_who_made_them_too() {
    let world = World::new();
    let a = world.client();
    let first = a.take(ROOT, Some(0));
    let f = a.file(ROOT, "f");
    a.rename((ROOT, "f"), (ROOT, "g"), RenameMode::Replace).unwrap();
    let h = a.file(ROOT, "h");
    a.rename((ROOT, "g"), (ROOT, "h"), RenameMode::Exchange).unwrap();
    let taken = a.take(ROOT, known(&first));
    let change = |name: &str, to| (name.to_string(), to);
    let told = [
        change("f", Some(f)),
        change("f", None),
        change("g", Some(f)),
        change("h", Some(h)),
        change("g", Some(h)),
        change("h", Some(f)),
    ];
    assert_eq!(said(&taken).unwrap(), told);
}

#[test]
fn a_restarted_server_knows_no_changes() {
    let world = World::new();
    let id = {
        let a = world.client();
        assert!(a.take(ROOT, Some(0)).changes.is_none());
        assert!(a.take(ROOT, Some(1)).changes.is_some());
        a.id
    };
    let world = world.crash(3);
    let a = Client::known(&world, id);
    a.reclaim(Reclaim::default()).unwrap();
    assert!(a.take(ROOT, Some(1)).changes.is_some(), "as nothing changed since");
    let world = world.crash(4);
    let a = Client::known(&world, id);
    a.sequence.store(100, Ordering::SeqCst);
    a.reclaim(Reclaim::default()).unwrap();
    a.file(ROOT, "f");
    assert!(a.take(ROOT, Some(1)).changes.is_none());
}

/// Catches `broken!("turns_unordered")`.
#[test]
fn a_turn_is_over_after_its_time_and_for_who_asks_otherwise_at_once() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let mut at = 0;
    a.file(ROOT, "f");
    a.take(ROOT, Some(0));
    let seen = known(&a.take(ROOT, Some(0)));
    world.pass(SOON);
    a.take(ROOT, seen);
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| b.take(ROOT, None));
        std::thread::sleep(SOON);
        let is_waiting = !taken.is_finished() && world.server.core.lock().recalls.is_empty();
        world.pass(TURN);
        world.server.wake();
        a.obey(a.recalled(&mut at));
        taken.join().unwrap();
        assert!(is_waiting, "nothing is recalled in the turn");
    });
    std::thread::scope(|scope| {
        let looked = scope.spawn(|| a.find(ROOT, "f"));
        let mut at = 0;
        b.obey(b.recalled(&mut at));
        assert!(looked.join().unwrap().is_some(), "it does not wait for the turn to end");
    });
}

#[test]
fn who_waited_first_is_next() {
    let world = World::new();
    let (a, b, c) = (world.client(), world.client(), world.client());
    let (mut at_a, mut at_b) = (0, 0);
    a.take(ROOT, Some(0));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| b.take(ROOT, None));
        std::thread::sleep(SOON);
        let second = scope.spawn(|| c.take(ROOT, None));
        std::thread::sleep(SOON);
        world.pass(SOON);
        world.server.wake();
        a.obey(a.recalled(&mut at_a));
        first.join().unwrap();
        std::thread::sleep(SOON);
        assert!(!second.is_finished());
        world.pass(SOON);
        world.server.wake();
        b.obey(b.recalled(&mut at_b));
        second.join().unwrap();
    });
}

/// Catches `broken!("children_of_others")`.
#[test]
fn files_of_a_directory_that_is_ones_own_come_alone() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let [one, two, three] = ["one", "two", "three"].map(|name| b.file(ROOT, name));
    let number = |ino| b.acquire(ino, LeaseMode::Write).unwrap().inode.lease.unwrap().number;
    b.put(Release { leases: vec![(one, number(one))] }).unwrap();
    b.get(Downgrade { leases: vec![(two, number(two), true)] }).unwrap();
    hand_over((&b, &mut 0), &a, None);
    let ask = |c: &Client<'_>| {
        let inos = vec![one, two, three, Ino(999)];
        let ChildrenReply { inodes } = c.get(Children { dir: ROOT, inos }).unwrap();
        inodes.iter().map(|i| (i.attr.ino, i.lease.map(|l| l.mode))).collect::<Vec<_>>()
    };
    let alone = [(one, Some(LeaseMode::Write)), (two, Some(LeaseMode::Read))];
    assert_eq!(ask(&a), alone, "what is written elsewhere is left out");
    assert_eq!(ask(&b), [], "it has the directory not alone");
    let many = Children { dir: ROOT, inos: vec![one; 257] };
    assert_eq!(a.get(many).unwrap_err(), Status::INVAL);
}
