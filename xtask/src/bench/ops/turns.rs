//! What the calls cost in a directory that another mount changes all the time: each mount does them
//! in turns. Two mounts do the same there, with names of their own.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use super::call::Call;
use super::{TIMES, WARM, chosen};
use crate::apps::Mounted;
use crate::bench::measure::{Outcome, told};
use crate::bench::median;
use crate::shell::Build;

/// Measures the calls whose name contains `only` and prints the table.
pub(crate) fn run(rounds: usize, dir: &Path, only: &str) -> Result<(), String> {
    let calls = chosen(only)?;
    let mounted = Mounted::up(Build::Release, dir, "--nodes 4")?;
    let other = mounted.another()?;
    let mounts = [mounted.mnt.as_path(), other.mnt.as_path()];
    let mut found: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut units = Vec::new();
    for round in 0..rounds {
        units.push(measure(mounts, Call::UNIT, &format!("unit{round}"))?);
        for (i, call) in calls.iter().enumerate() {
            let each = measure(mounts, *call, &format!("dir{round}-{i}"));
            let each = each.map_err(|e| format!("{}: {e}", call.name()))?;
            found.entry(i).or_default().push(each);
        }
        eprintln!("round {} of {rounds} done", round + 1);
    }
    let unit = median(units);
    println!("\n{:<41} {:>8} {:>12}", "ms for one, by turns", "nuri", "/ a new name");
    for (i, call) in calls.iter().enumerate() {
        let each = median(found.remove(&i).unwrap_or_default());
        println!("{:<41} {each:>8.3} {:>12.2}", call.name(), each / unit);
    }
    println!("a new name: '{}', {unit:.3} ms", Call::UNIT.name());
    Ok(())
}

/// Milliseconds for one, where two mounts do it at once.
fn measure(mounts: [&Path; 2], call: Call, name: &str) -> Outcome<f64> {
    told(std::fs::create_dir(mounts[0].join(name)))?;
    let repeat = |times: usize| -> Outcome<()> {
        std::thread::scope(|scope| {
            let threads = mounts.map(|mount| {
                let (dir, who) = (mount.join(name), mount.file_name().unwrap_or_default());
                scope.spawn(move || told(call.repeat(&dir, &who.to_string_lossy(), times)))
            });
            let ends = threads.map(|thread| thread.join().map_err(|_| "a thread".to_string()));
            ends.into_iter().try_for_each(|end| end?)
        })
    };
    repeat(WARM)?;
    let start = Instant::now();
    repeat(TIMES)?;
    Ok(start.elapsed().as_secs_f64() * 1e3 / TIMES as f64)
}
