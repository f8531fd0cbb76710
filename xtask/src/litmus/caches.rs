//! What the kernels of the mounts cache is right while others' questions are on their way.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::{Ground, said};

const FILES: u64 = 60;
const ROUNDS: u64 = 40;
/// A wrong answer is looked at for so long: whether it was one answer or something that is kept.
const LATER: Duration = Duration::from_secs(10);

/// Each makes files on one mount and changes them while they are looked up for the first time on
/// another one: after the change nobody finds them there as before.
pub(super) fn first_looks(ground: &Ground) -> Result<(), String> {
    let mounts = ground.dirs.len();
    (0..mounts).try_for_each(|player| {
        std::fs::create_dir(ground.path(0, &player.to_string())).map_err(said("a directory"))
    })?;
    ground.together(mounts, |player, _| {
        let (asked, to_look) = channel::<PathBuf>();
        let (looked, when_looked) = channel();
        std::thread::scope(move |scope| {
            scope.spawn(move || {
                for path in to_look {
                    let _ = std::fs::metadata(path);
                    let _ = looked.send(());
                }
            });
            let mut rng = ground.rng(player as u64);
            (0..FILES).try_for_each(|number| {
                let name = format!("{player}/{number}");
                let here = rng.below(mounts as u64) as usize;
                let there = ground.path((here + 1 + player % (mounts - 1)) % mounts, &name);
                let here = ground.path(here, &name);
                std::fs::write(&here, "x").map_err(said("a file"))?;
                let _ = asked.send(there.clone());
                std::thread::sleep(Duration::from_micros(rng.below(2000)));
                let file = OpenOptions::new().write(true).open(&here);
                file.and_then(|file| file.set_len(5)).map_err(said("set_len"))?;
                let size = std::fs::metadata(&there).map_err(said("stat"))?.len();
                let _ = when_looked.recv();
                if size == 5 { Ok(()) } else { Err(format!("{name}: a size of {size}, not 5")) }
            })
        })
    })?;
    Ok(())
}

/// Each makes, renames and removes a name of its own through all mounts in turn, beside the others'
/// listings of the same directory: what was done is seen at once through all.
pub(super) fn beside_listings(ground: &Ground) -> Result<(), String> {
    ground.together(ground.dirs.len(), |player, _| {
        let mut rng = ground.rng(player as u64);
        let mut any = || &ground.dirs[rng.below(ground.dirs.len() as u64) as usize];
        let (old, new) = (format!("old{player}"), format!("new{player}"));
        for round in 0..ROUNDS {
            let here = any();
            File::create(here.join(&old)).map_err(said("a file"))?;
            seen(ground, round, &[(&old, true)])?;
            std::fs::read_dir(any()).map_err(said("a listing"))?.for_each(drop);
            let here = any();
            std::fs::rename(here.join(&old), here.join(&new)).map_err(said("rename"))?;
            seen(ground, round, &[(&old, false), (&new, true)])?;
            std::fs::read_dir(any()).map_err(said("a listing"))?.for_each(drop);
            std::fs::remove_file(any().join(&new)).map_err(said("remove"))?;
            seen(ground, round, &[(&new, false)])?;
        }
        Ok(())
    })?;
    Ok(())
}

/// Whether the names are there, through all mounts.
fn seen(ground: &Ground, round: u64, names: &[(&str, bool)]) -> Result<(), String> {
    for (mount, dir) in ground.dirs.iter().enumerate() {
        for (name, is_there) in names {
            let path = dir.join(name);
            if path.try_exists().map_err(said(name))? != *is_there {
                let words = if *is_there { "not there" } else { "still there" };
                let since = Instant::now();
                while since.elapsed() < LATER && path.try_exists().is_ok_and(|is| is != *is_there) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return Err(format!(
                    "round {round}: {name} is {words} on mount {mount}, and for {:?} more",
                    since.elapsed()
                ));
            }
        }
    }
    Ok(())
}
