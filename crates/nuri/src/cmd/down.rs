//! `nuri down`: unmounts and ends the processes of a space. Data stays.

use std::path::Path;
use std::time::{Duration, Instant};

use nuri_fuse::mount::{MountError, detach, is_mounted, unmount};

use super::repair::connect;
use crate::cli::Down;
use crate::space::{Role, Settings, Space};
use crate::{Failure, at, supervisor, users};

/// How long a mount may take to write everything out.
const MOUNT_WAIT: Duration = Duration::from_secs(60);
/// How long a mount may take that is to stop by force; it is killed then.
const FORCED_WAIT: Duration = Duration::from_secs(5);
/// Mounts of other machines that are named.
const MOST_NAMED: usize = 8;
/// How long the space may take to say who has mounted it.
const ASK_WAIT: Duration = Duration::from_secs(3);

pub(crate) fn run(args: &Down) -> Result<(), Failure> {
    let dir = std::path::absolute(&args.dir.dir).map_err(at(args.dir.dir.display()))?;
    let space = Space::at(&dir);
    let settings = space.existing()?;
    if !args.yes && !args.force {
        refuse_foreign(&space)?;
    }
    let stop = space.stop_path();
    std::fs::write(&stop, "").map_err(at(format!("cannot write {}", stop.display())))?;
    if let Some(point) = &settings.mount
        && let Err(failure) = release_all(&space, point, args)
    {
        // Nothing was stopped: the supervisor goes on as before.
        let _ = std::fs::remove_file(&stop);
        return Err(failure);
    }
    supervisor::end_all(&space, &settings, args.force)?;
    if let Some(point) = settings.mount.as_ref().filter(|_| settings.made_mount) {
        // Whatever came into it meanwhile stays.
        let _ = std::fs::remove_dir(point);
        space.save(&Settings { made_mount: false, ..settings })?;
    }
    println!("stopped  {}; start it again: nuri up --dir {0}", dir.display());
    Ok(())
}

/// Mounts of other machines would lose their space under running programs.
fn refuse_foreign(space: &Space) -> Result<(), Failure> {
    let (tell, told) = std::sync::mpsc::channel();
    let (asked, is_running) = (space.clone(), space.running(Role::Node(0)).is_some());
    std::thread::spawn(move || {
        let state = connect(&asked).and_then(|space| space.state().map_err(Failure::new));
        let _ = tell.send(state.ok().filter(|_| is_running));
    });
    // A space that does not answer is stopped all the same.
    let Ok(Some(state)) = told.recv_timeout(ASK_WAIT) else { return Ok(()) };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let others = state.mounts.iter().filter(|m| m.host != host);
    let mut others: Vec<_> = others.map(|m| format!("{}:{}", m.host, m.mountpoint)).collect();
    if others.is_empty() {
        return Ok(());
    }
    if others.len() > MOST_NAMED {
        let more = others.split_off(MOST_NAMED - 1).len();
        others.push(format!("and {more} more"));
    }
    let others = others.join(", ");
    Err(Failure(format!(
        "other machines have the space mounted ({others}): unmount there first, or stop it all the \
         same: nuri down --yes"
    )))
}

/// Releases the mount, also one that is just being made and appears only later.
fn release_all(space: &Space, point: &Path, args: &Down) -> Result<(), Failure> {
    let start = Instant::now();
    release(point, args)?;
    let at_most = if args.force { FORCED_WAIT } else { MOUNT_WAIT };
    while space.running(Role::Mount).is_some() && start.elapsed() < at_most {
        std::thread::sleep(Duration::from_millis(10));
        release(point, args)?;
    }
    Ok(())
}

fn release(point: &Path, args: &Down) -> Result<(), Failure> {
    while is_mounted(point) {
        // A forced stop must not wait for a mount that hangs.
        if !args.force {
            crate::cmd::fs::sync_mount(point)?;
        }
        let outcome = if args.force { unmount(point) } else { users::unmount_unused(point) };
        match outcome {
            Ok(()) | Err(MountError::NotMounted(_)) => {}
            Err(MountError::Busy(_)) if args.force => detach(point).map_err(Failure::new)?,
            Err(MountError::Busy(_)) => {
                let (point, users) = (point.display(), users::of(point));
                let words =
                    format!("{point} is in use by {users}: end them, or: nuri down --force");
                return Err(Failure(words));
            }
            Err(error) => return Err(Failure(format!("{error}; or: nuri down --force"))),
        }
    }
    Ok(())
}
