//! Programs that check their data, on mirrors and parity, while nodes are killed and stopped,
//! cables pulled and disks lost: one fault at a time, with healing in between.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::shell::{root, script};
use crate::testbed::Testbed;

#[path = "../../crates/nuri/tests/it/stopwatch.rs"]
mod stopwatch;
#[allow(dead_code)]
#[path = "../../crates/nuri/tests/it/tagged.rs"]
mod tagged;

use tagged::{MIX, Tagged, mix};

pub(crate) const SHAPES: &[&str] = &["parity:3+1", "mirror:2"];
const MACHINES: u64 = 4;
/// Bytes of the writer's file.
const FILE: u64 = 24 << 20;
/// Of a program, where the first node dies, which has the metadata; without the machine's stalls.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Longest run of one program.
const PROGRAM: Duration = Duration::from_secs(300);

/// What runs beside the faults; the first failure ends all.
struct Load {
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn fail(&self, words: String) {
        eprintln!("faults: {words}");
        self.stop.store(true, Ordering::Relaxed);
        if let Ok(mut failure) = self.failure.lock() {
            failure.get_or_insert(words);
        }
    }

    fn end(self) -> Result<(), String> {
        let failure = self.failure.into_inner().map_err(|e| e.to_string())?;
        failure.map_or(Ok(()), Err)
    }
}

/// Runs the shapes whose names contain `only`, each for so long; prints what failed with the seed
/// that plays the same faults again.
pub(crate) fn run(time: Duration, seed: Option<u64>, only: &str) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = seed.unwrap_or(now.as_secs());
    println!("seed {seed}");
    for shape in SHAPES.iter().filter(|shape| shape.contains(only)) {
        println!("{shape}");
        one_shape(shape, seed, time).map_err(|e| format!("{shape}, seed {seed}: {e}"))?;
    }
    Ok(())
}

fn one_shape(shape: &str, seed: u64, time: Duration) -> Result<(), String> {
    let mut testbed = Testbed::up(Path::new("/var/tmp"), MACHINES)?;
    let (n, _, m) = testbed.mounted.names();
    let dir = format!("{m}/{}", shape.replace([':', '+'], "-"));
    script(&format!("mkdir {dir} && {n} fs layout set {dir} --shape {shape}"), PROGRAM)?;
    let mut file = Tagged::create(&Path::new(&dir).join("tagged"), FILE, seed);
    let load = Load { stop: AtomicBool::new(false), failure: Mutex::new(None) };
    let names = (n, dir.clone());
    let faults = std::thread::scope(|scope| {
        scope.spawn(|| {
            while load.goes_on() {
                let _ = file.step(MIX).map_err(|words| load.fail(words));
            }
            let _ = file.sync().map_err(|words| load.fail(words));
        });
        let fsx = scope.spawn(|| programs(&names, &load, seed, ("fsx.sh", "OPS=8000")));
        let fio = scope.spawn(|| programs(&names, &load, seed, ("fio.sh", "SIZE=12m")));
        let done = faults(&mut testbed, &load, seed, time);
        load.stop.store(true, Ordering::Relaxed);
        let rounds = [fsx, fio].map(|program| program.join().unwrap_or(0));
        done.map(|faults| (faults, rounds))
    });
    let (worst, steps) = (file.worst, file.steps);
    let path = file.path.clone();
    let whole = load.end().and(faults).and_then(|done| file.check_all(&path).map(|()| done));
    let (faults, [fsx, fio]) =
        whole.map_err(|words| format!("{words}; {}", testbed.keep_logs("faults")))?;
    drop(file);
    testbed.down_clean()?;
    let pause = worst.0.as_secs_f64();
    println!("  {faults} faults; {steps} steps, {fsx} rounds of fsx, {fio} of fio; all data right");
    println!("  longest pause of the writer: {pause:.1} s, a {}", worst.1);
    match worst.0 > LONGEST_PAUSE {
        true => Err(format!("a pause of {pause:.1} s, longer than {LONGEST_PAUSE:?}")),
        false => Ok(()),
    }
}

/// A program, again and again, each time with another seed. Returns how often.
fn programs((n, m): &(String, String), load: &Load, seed: u64, (file, size): (&str, &str)) -> u64 {
    let root = root().display().to_string();
    let mut round = 0;
    while load.goes_on() {
        let seed = mix(seed ^ round) % 1_000_000;
        let text = format!(
            "export N={n} M={m} ROOT={root} SEED={seed} {size}\nexec bash -euo pipefail \
             {root}/scripts/apps/{file}"
        );
        if let Err(words) = script(&text, PROGRAM) {
            load.fail(format!("{file}, round {round}, seed {seed}: {words}"));
        }
        round += 1;
    }
    round
}

/// Faults until the time is over; returns how many.
fn faults(testbed: &mut Testbed, load: &Load, seed: u64, time: Duration) -> Result<u64, String> {
    let end = Instant::now() + time;
    let mut drawn = seed;
    let mut draw = |below: u64| {
        drawn = drawn.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(drawn) % below
    };
    let mut done = 0;
    while Instant::now() < end && load.goes_on() {
        std::thread::sleep(Duration::from_millis(300 + draw(1500)));
        // The first one has the metadata too: without it nothing goes on.
        let machine = draw(MACHINES);
        let time = Duration::from_millis(1000 + draw(7000));
        match draw(4) {
            1 if machine > 0 => {
                println!("  node {machine} stopped for {time:?}");
                testbed.signal(machine, Signal::STOP)?;
                std::thread::sleep(time);
                testbed.signal(machine, Signal::CONT)?;
            }
            2 if machine > 0 => {
                println!("  cable of machine {machine} out for {time:?}");
                testbed.cable(machine, "down")?;
                std::thread::sleep(time);
                testbed.cable(machine, "up")?;
            }
            3 if machine > 0 => {
                println!("  disk of machine {machine} lost");
                testbed.wipe(machine)?;
            }
            _ => {
                println!("  kill -9 of node {machine}");
                testbed.restart(machine, |_| Ok(()))?;
            }
        }
        done += 1;
        std::thread::sleep(Duration::from_millis(500));
        testbed.wait("not whole again", is_whole)?;
    }
    Ok(done)
}

/// Whether all is well.
fn is_whole(status: &serde_json::Value) -> bool {
    let up = |t: &serde_json::Value| t["state"] == "up" && t["behind"] == 0;
    let all_up = status["targets"].as_array().is_some_and(|t| t.iter().all(up));
    all_up && status["health"]["state"] == "ok"
}
