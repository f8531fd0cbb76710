//! Programs that check their data, on mirrors and parity, while nodes are killed and stopped: one
//! fault at a time, with healing in between.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use crate::apps::Mounted;
use crate::shell::{root, script};

#[path = "../../crates/nuri/tests/it/stopwatch.rs"]
mod stopwatch;
#[allow(dead_code)]
#[path = "../../crates/nuri/tests/it/tagged.rs"]
mod tagged;

use tagged::{MIX, Tagged, mix};

const SHAPES: &[&str] = &["parity:3+1", "mirror:2"];
const NODES: u64 = 4;
/// Bytes of the writer's file.
const FILE: u64 = 24 << 20;
/// A space that is not whole again by then stays so.
const HEALING: Duration = Duration::from_secs(90);
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

/// Runs all shapes; prints what failed with the seed that plays the same faults again.
pub(crate) fn run(minutes: u64, seed: Option<u64>) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = seed.unwrap_or(now.as_secs());
    println!("seed {seed}");
    let share = Duration::from_secs(60 * minutes) / SHAPES.len() as u32;
    for shape in SHAPES {
        println!("{shape}");
        one_shape(shape, seed, share).map_err(|e| format!("{shape}, seed {seed}: {e}"))?;
    }
    Ok(())
}

fn one_shape(shape: &str, seed: u64, time: Duration) -> Result<(), String> {
    let more = format!("--nodes {NODES} --targets {NODES} --target-size 2G --shape {shape}");
    let mounted = Mounted::up(Path::new("/var/tmp"), &more)?;
    let mut file = Tagged::create(&mounted.mnt.join("tagged"), FILE, seed);
    let load = Load { stop: AtomicBool::new(false), failure: Mutex::new(None) };
    let faults = std::thread::scope(|scope| {
        scope.spawn(|| {
            while load.goes_on() {
                let _ = file.step(MIX).map_err(|words| load.fail(words));
            }
            let _ = file.sync().map_err(|words| load.fail(words));
        });
        let fsx = scope.spawn(|| programs(&mounted, &load, seed, ("fsx.sh", "OPS=8000")));
        let fio = scope.spawn(|| programs(&mounted, &load, seed, ("fio.sh", "SIZE=12m")));
        let done = faults(&mounted, &load, seed, time);
        load.stop.store(true, Ordering::Relaxed);
        let rounds = [fsx, fio].map(|program| program.join().unwrap_or(0));
        done.map(|faults| (faults, rounds))
    });
    let (worst, steps) = (file.worst, file.steps);
    load.end()?;
    let (faults, [fsx, fio]) = faults?;
    let path = file.path.clone();
    file.check_all(&path)?;
    drop(file);
    mounted.down_clean()?;
    let (n, s, _) = mounted.names();
    for i in 0..NODES {
        script(&format!("{n} target check {s}/target{i}"), Duration::from_secs(120))?;
    }
    let pause = worst.0.as_secs_f64();
    println!("  {faults} faults; {steps} steps, {fsx} rounds of fsx, {fio} of fio; all data right");
    println!("  longest pause of the writer: {pause:.1} s, a {}", worst.1);
    Ok(())
}

/// A program, again and again, each time with another seed. Returns how often.
fn programs(mounted: &Mounted, load: &Load, seed: u64, (file, size): (&str, &str)) -> u64 {
    let (n, s, m) = mounted.names();
    let root = root().display().to_string();
    let mut round = 0;
    while load.goes_on() {
        let seed = mix(seed ^ round) % 1_000_000;
        let text = format!(
            "export N={n} S={s} M={m} ROOT={root} SEED={seed} {size}\nexec bash -euo pipefail \
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
fn faults(mounted: &Mounted, load: &Load, seed: u64, time: Duration) -> Result<u64, String> {
    let end = Instant::now() + time;
    let mut drawn = seed;
    let mut draw = |below: u64| {
        drawn = drawn.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(drawn) % below
    };
    let mut done = 0;
    while Instant::now() < end && load.goes_on() {
        std::thread::sleep(Duration::from_millis(300 + draw(1500)));
        // The first node has the metadata too: it is killed, but without it nothing goes on.
        let node = draw(NODES);
        if node == 0 || draw(2) == 0 {
            println!("  kill -9 of node {node}");
            signal(mounted, node, Signal::KILL)?;
        } else {
            let millis = 1000 + draw(7000);
            println!("  node {node} stopped for {millis} ms");
            signal(mounted, node, Signal::STOP)?;
            std::thread::sleep(Duration::from_millis(millis));
            signal(mounted, node, Signal::CONT)?;
        }
        done += 1;
        std::thread::sleep(Duration::from_millis(500));
        heal(mounted)?;
    }
    Ok(done)
}

fn signal(mounted: &Mounted, node: u64, signal: Signal) -> Result<(), String> {
    let path = mounted.space.join(format!("run/node{node}.lock"));
    let start = Instant::now();
    loop {
        // A process that is just starting has taken the lock and not yet written its pid.
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        if let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) {
            return kill_process(pid, signal).map_err(|e| format!("{signal:?} to {pid:?}: {e}"));
        }
        if start.elapsed() > HEALING {
            return Err(format!("{} names no process", path.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the status says that all is well.
fn heal(mounted: &Mounted) -> Result<(), String> {
    let (n, s, _) = mounted.names();
    let start = Instant::now();
    loop {
        let text = script(&format!("{n} status --json --dir {s} || true"), PROGRAM)?;
        let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let up = |t: &serde_json::Value| t["state"] == "up" && t["behind"] == 0;
        let all_up = status["targets"].as_array().is_some_and(|t| t.iter().all(up));
        if all_up && status["health"]["state"] == "ok" {
            return Ok(());
        }
        if start.elapsed() > HEALING {
            return Err(format!("not whole after {} s: {}", HEALING.as_secs(), status["health"]));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
