//! Locks between mounts: what is counted under one is counted exactly.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::fs::{FlockOperation, fcntl_lock, flock};

use super::{Ground, said};

const ROUNDS: u64 = 40;

/// All mounts add to one number under a lock of the whole file, of either kind, opened anew or not.
pub(super) fn hand_over(ground: &Ground) -> Result<(), String> {
    let kind = ground.rng(0).below(2);
    std::fs::write(ground.path(0, "count"), 0u64.to_le_bytes()).map_err(said("the number"))?;
    ground.together(ground.dirs.len(), |mount, dir| {
        let mut rng = ground.rng(1 + mount as u64);
        let open = || OpenOptions::new().read(true).write(true).open(dir.join("count"));
        let mut file = open().map_err(said("open"))?;
        for _ in 0..ROUNDS {
            if rng.one_in(4) {
                file = open().map_err(said("open"))?;
            }
            lock(kind, &file, FlockOperation::LockExclusive).map_err(said("lock"))?;
            add_one(&file).map_err(said("the number"))?;
            lock(kind, &file, FlockOperation::Unlock).map_err(said("unlock"))?;
        }
        Ok(())
    })?;
    let wanted = ROUNDS * ground.dirs.len() as u64;
    for mount in 0..ground.dirs.len() {
        let file = File::open(ground.path(mount, "count")).map_err(said("open"))?;
        let found = read(&file).map_err(said("the number"))?;
        if found != wanted {
            return Err(format!("mount {mount} reads {found}, not {wanted}"));
        }
    }
    Ok(())
}

fn lock(kind: u64, file: &File, operation: FlockOperation) -> std::io::Result<()> {
    let done = if kind == 0 { flock(file, operation) } else { fcntl_lock(file, operation) };
    Ok(done?)
}

fn read(file: &File) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(u64::from_le_bytes(bytes))
}

fn add_one(file: &File) -> std::io::Result<()> {
    file.write_all_at(&(read(file)? + 1).to_le_bytes(), 0)
}
