//! What was done in an order on one mount is seen in that order on the others.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::{Ground, said};

const MESSAGES: u64 = 25;
const ROUNDS: u64 = 40;
const PATIENCE: Duration = Duration::from_secs(60);
/// Who looks without a pause takes the processor from who writes.
const PAUSE: Duration = Duration::from_micros(500);

/// A way to leave a number behind, and to find it.
type Way = (&'static str, fn(&Path, u64) -> std::io::Result<()>, fn(&Path) -> std::io::Result<u64>);

fn put(path: &Path, number: u64) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.write_all_at(&number.to_le_bytes(), 0)
}

fn get(path: &Path) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    File::open(path)?.read_exact_at(&mut bytes, 0)?;
    Ok(u64::from_le_bytes(bytes))
}

const WAYS: &[Way] = &[
    ("bytes", put, get),
    (
        "a file renamed over another",
        |path, number| {
            let new = path.with_extension("new");
            put(&new, number)?;
            std::fs::rename(&new, path)
        },
        get,
    ),
    (
        "a size",
        |path, number| {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
            file.set_len(number)
        },
        |path| Ok(std::fs::metadata(path)?.len()),
    ),
    (
        "a mode",
        |path, number| {
            if !path.exists() {
                // A number that is not there yet is 0.
                OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o400)
                    .open(path)?;
            }
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o400 | number as u32 & 0o377))
        },
        |path| Ok(u64::from(std::fs::metadata(path)?.permissions().mode() & 0o377)),
    ),
    (
        "names",
        |path, number| {
            std::fs::create_dir_all(path)?;
            File::create(path.join(number.to_string())).map(drop)
        },
        |path| {
            // The highest of all that are there one after the other.
            let mut number = 0;
            while path.join((number + 1).to_string()).try_exists()? {
                number += 1;
            }
            Ok(number)
        },
    ),
    (
        "names that go",
        |path, number| {
            if number == 1 {
                std::fs::create_dir_all(path)?;
                (1..=MESSAGES)
                    .try_for_each(|n| File::create(path.join(n.to_string())).map(drop))?;
                File::create(path.join("all"))?;
            }
            std::fs::remove_file(path.join(number.to_string()))
        },
        |path| {
            path.join("all").metadata()?;
            let left = |n: &u64| path.join(n.to_string()).exists();
            Ok((1..=MESSAGES).find(left).unwrap_or(MESSAGES + 1) - 1)
        },
    ),
];

/// A number that is not there yet is 0.
fn found(way: &Way, path: &Path) -> Result<u64, String> {
    match (way.2)(path) {
        Ok(number) => Ok(number),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(0),
        Err(e) => Err(format!("{}: {e}", way.0)),
    }
}

/// One mount leaves data behind, then a flag. Who sees the flag sees the data.
pub(super) fn message_passing(ground: &Ground) -> Result<(), String> {
    let mut rng = ground.rng(0);
    let (data, flag) = (&WAYS[rng.below(6) as usize], &WAYS[rng.below(6) as usize]);
    ground.together(ground.dirs.len(), |mount, dir| {
        let (data_at, flag_at) = (dir.join("data"), dir.join("flag"));
        if mount == 0 {
            return (1..=MESSAGES).try_for_each(|number| {
                (data.1)(&data_at, number).map_err(said(data.0))?;
                (flag.1)(&flag_at, number).map_err(said(flag.0))
            });
        }
        let (start, mut seen) = (Instant::now(), 0);
        while seen < MESSAGES {
            let told = found(flag, &flag_at)?;
            let there = found(data, &data_at)?;
            if told > there || told < seen {
                return Err(format!(
                    "{} said {told} (before: {seen}), {} was {there} afterwards",
                    flag.0, data.0
                ));
            }
            seen = told;
            std::thread::sleep(PAUSE);
            if start.elapsed() > PATIENCE {
                return Err(format!("only {seen} of {MESSAGES} came, by {}", flag.0));
            }
        }
        Ok(())
    })?;
    Ok(())
}

/// Two mounts each leave something behind, then look for the other's: one of them finds it.
pub(super) fn store_buffering(ground: &Ground) -> Result<(), String> {
    let mut rng = ground.rng(0);
    let ways = [&WAYS[rng.below(5) as usize], &WAYS[rng.below(5) as usize]];
    let barrier = Barrier::new(2);
    let found = ground.together(2, |mount, dir| {
        let at = |side: usize, round: u64| dir.join(format!("{side}-{round}"));
        let mut all = Vec::new();
        for round in 0..ROUNDS {
            barrier.wait();
            let own = (ways[mount].1)(&at(mount, round), 1);
            let other = found(ways[1 - mount], &at(1 - mount, round));
            // Both get to the next round, whatever came of this one.
            all.push(own.map_err(said(ways[mount].0)).and(other));
        }
        all.into_iter().collect::<Result<Vec<_>, _>>()
    })?;
    match (0..ROUNDS as usize).find(|round| found[0][*round] == 0 && found[1][*round] == 0) {
        Some(round) => Err(format!("round {round}: neither saw the other's {}", ways[0].0)),
        None => Ok(()),
    }
}

/// Two mounts write one thing each; two others must not see them in different orders.
pub(super) fn independent_reads(ground: &Ground) -> Result<(), String> {
    let mut rng = ground.rng(0);
    let way = &WAYS[rng.below(5) as usize];
    let barrier = Barrier::new(4);
    let seen = ground.together(4, |mount, dir| {
        let at = |side: usize, round: u64| dir.join(format!("{side}-{round}"));
        let mut all = Vec::new();
        for round in 0..ROUNDS {
            barrier.wait();
            all.push(match mount {
                0 | 1 => (way.1)(&at(mount, round), 1).map_err(said(way.0)).map(|()| [0, 0]),
                // One looks at the first one first, the other at the second.
                _ => {
                    let first = found(way, &at(mount - 2, round));
                    let second = found(way, &at(3 - mount, round));
                    first.and_then(|first| Ok([first, second?]))
                }
            });
        }
        all.into_iter().collect::<Result<Vec<_>, _>>()
    })?;
    let mut both = seen[2].iter().zip(&seen[3]);
    match both.position(|orders| orders == (&[1, 0], &[1, 0])) {
        Some(round) => Err(format!("round {round}: two mounts saw {} in different orders", way.0)),
        None => Ok(()),
    }
}
