//! Litmus tests: what programs on several mounts of one space may see of each other's doing.
//!
//! Each mount is a process of its own in a network namespace of its own. Every write has a value of
//! its own, so that a stale or lost one can be named. A test runs one round on a fresh directory,
//! drawn from a seed; rounds of all tests follow each other until the time is over.

mod baton;
mod caches;
mod locks;
mod names;
mod order;
mod records;
mod register;
mod sizes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nuri_io::rng::Rng;

use crate::testbed::Testbed;

const MOUNTS: u64 = 4;
/// Longest time of one round: whatever takes longer waits for itself.
const ROUND: Duration = Duration::from_secs(90);

type Test = fn(&Ground) -> Result<(), String>;

const TESTS: &[(&str, Test)] = &[
    ("one register", register::cells),
    ("message passing", order::message_passing),
    ("store buffering", order::store_buffering),
    ("independent reads", order::independent_reads),
    ("appends", sizes::appends),
    ("growth", sizes::growth),
    ("records in turn", records::in_turn),
    ("records over records", records::overlapping),
    ("one name, one maker", names::makers),
    ("one name, one remover", names::removers),
    ("renames onto one name", names::onto_one_name),
    ("crossed renames", names::crossed_renames),
    ("listing under change", names::listing),
    ("first looks at new files", caches::first_looks),
    ("names beside listings", caches::beside_listings),
    ("locks", locks::hand_over),
    ("one after the other: data", baton::data),
    ("one after the other: names", baton::names),
];

/// Where one round runs.
pub(crate) struct Ground {
    /// The round's directory on each mount.
    dirs: Vec<PathBuf>,
    seed: u64,
}

impl Ground {
    fn rng(&self, stream: u64) -> Rng {
        Rng::new(self.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn path(&self, mount: usize, name: &str) -> PathBuf {
        self.dirs[mount].join(name)
    }

    /// Runs `act` for the first `count` mounts at once, each in a thread; they begin together.
    fn together<R: Send>(
        &self,
        count: usize,
        act: impl Fn(usize, &Path) -> Result<R, String> + Sync,
    ) -> Result<Vec<R>, String> {
        let barrier = Barrier::new(count);
        std::thread::scope(|scope| {
            let one = |mount: usize| {
                let (act, barrier, dir) = (&act, &barrier, &self.dirs[mount]);
                scope.spawn(move || {
                    barrier.wait();
                    act(mount, dir).map_err(|words| format!("mount {mount}: {words}"))
                })
            };
            let threads: Vec<_> = (0..count).map(one).collect();
            let join = |t: std::thread::ScopedJoinHandle<'_, _>| {
                t.join().unwrap_or_else(|_| Err("a thread panicked".to_string()))
            };
            // All are waited for, also after a failure.
            let ends: Vec<_> = threads.into_iter().map(join).collect();
            ends.into_iter().collect()
        })
    }
}

/// How long the rounds of a test took.
#[derive(Default)]
struct Took {
    rounds: u32,
    sum: Duration,
    /// With its seed.
    longest: (Duration, u64),
}

impl Took {
    fn add(&mut self, seed: u64, time: Duration) {
        self.rounds += 1;
        self.sum += time;
        self.longest = self.longest.max((time, seed));
    }
}

/// The words of a failed call.
fn said(what: impl std::fmt::Display) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{what}: {error}")
}

/// Plays rounds of all tests, or of those whose names hold `only`, for so long.
pub(crate) fn run(time: Duration, seed: Option<u64>, only: &str) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = seed.unwrap_or(now.as_secs());
    let tests: Vec<_> = TESTS.iter().filter(|(name, _)| name.contains(only)).collect();
    if tests.is_empty() {
        let names: Vec<_> = TESTS.iter().map(|(name, _)| *name).collect();
        return Err(format!("no test is called so; there are: {}", names.join(", ")));
    }
    println!("seed {seed}");
    let mut testbed = Testbed::up(Path::new("/var/tmp"), MOUNTS)?;
    let mut mounts = vec![testbed.mounted.mnt.clone()];
    for machine in 1..MOUNTS {
        mounts.push(testbed.mount(machine)?);
    }
    let (start, mut rounds) = (Instant::now(), 0);
    let mut took: BTreeMap<&str, Took> = BTreeMap::new();
    while start.elapsed() < time || rounds < tests.len() as u64 {
        let (name, test) = tests[rounds as usize % tests.len()];
        let began = Instant::now();
        let seed = seed + rounds;
        if let Err(words) = round(&mounts, seed, *test) {
            return Err(format!("{name}, seed {seed}: {words}\n{}", testbed.words()));
        }
        took.entry(name).or_default().add(seed, began.elapsed());
        rounds += 1;
    }
    for (name, Took { rounds, sum, longest: (longest, seed) }) in took {
        let [mean, longest] = [sum / rounds, longest].map(|time| time.as_secs_f64());
        println!("  {name:<28} {rounds:4} rounds of {mean:5.2} s, longest {longest:5.2} s: {seed}");
    }
    testbed.down_clean()
}

fn round(mounts: &[PathBuf], seed: u64, test: Test) -> Result<(), String> {
    let name = format!("round{seed}");
    std::fs::create_dir(mounts[0].join(&name)).map_err(said("the round's directory"))?;
    let dirs = mounts.iter().map(|mount| mount.join(&name)).collect();
    let ground = Arc::new(Ground { dirs, seed });
    let (tell, told) = channel();
    let theirs = ground.clone();
    // Not waited for where it hangs: the mounts go from under it.
    std::thread::spawn(move || tell.send(test(&theirs)));
    match told.recv_timeout(ROUND) {
        Ok(outcome) => outcome?,
        Err(RecvTimeoutError::Timeout) => return Err(format!("no end after {ROUND:?}")),
        Err(RecvTimeoutError::Disconnected) => return Err("it panicked".into()),
    }
    std::fs::remove_dir_all(&ground.dirs[seed as usize % mounts.len()])
        .map_err(said("removal of the round's directory"))
}
