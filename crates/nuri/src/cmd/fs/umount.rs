//! `nuri fs umount`: writes everything out, or says what cannot be written.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nuri_fuse::MountError;
use nuri_fuse::mount::{detach, unmount};
use nuri_proto::Status;
use nuri_rpc::Peer;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::{attribute, resolve};
use crate::cli::{Mount, Umount};
use crate::logs::plain;
use crate::show::human;
use crate::{Failure, at, users};

const SYNC_ATTRIBUTE: &str = "nuri.sync";
const UNWRITTEN_ATTRIBUTE: &str = "system.nuri.unwritten";
const FIRST_NODE_WAIT: Duration = Duration::from_secs(3);
const SESSION_WAIT: Duration = Duration::from_secs(5);
/// Of one that cannot end it.
const FORCED_WAIT: Duration = Duration::from_millis(500);
/// A mount that stands still itself does not answer.
const UNWRITTEN_WAIT: Duration = Duration::from_secs(1);
/// Files that are named.
const MOST_NAMED: usize = 20;

/// Asks a mount to write everything out, so that unmounting leaves nothing behind.
///
/// # Errors
/// Where bytes of files could not be kept. It is said once.
pub(crate) fn sync_mount(point: &Path) -> Result<(), Failure> {
    match rustix::fs::setxattr(point, SYNC_ATTRIBUTE, b"", XattrFlags::empty()) {
        Err(Errno::IO) => {
            let point = point.display();
            Err(Failure(format!(
                "{point}: bytes of files that are closed could not be kept and are lost; the \
                 mount's log names the inodes; it stays mounted: unmount it again to leave it so"
            )))
        }
        // A dead mount has nothing left to write.
        _ => Ok(()),
    }
}

pub(super) fn run(args: &Umount) -> Result<(), Failure> {
    let point = std::path::absolute(&args.mountpoint).map_err(at(args.mountpoint.display()))?;
    let mount = users::mount_of(&point);
    let cut_off = mount.as_ref().and_then(|(_, told)| look_for_first_node(told, &point).err());
    let is_cut_off = cut_off.is_some();
    let left = is_cut_off.then(|| unwritten(&point));
    match (cut_off, &left) {
        (Some(why), Some(left)) if !args.force => {
            left.iter().for_each(|line| eprintln!("nuri: {}", plain(line)));
            return Err(why);
        }
        (Some(_), Some(left)) => {
            left.iter().for_each(|line| eprintln!("nuri: left behind, {}", plain(line)));
        }
        _ if args.force => {}
        _ => sync_mount(&point)?,
    }
    let outcome = if args.force { unmount(&point) } else { users::unmount_unused(&point) };
    match outcome {
        Err(MountError::Busy(_)) if args.force => detach(&point).map_err(Failure::new),
        Err(MountError::Busy(_)) => {
            let (point, users) = (point.display(), users::of(&point));
            Err(Failure(format!(
                "{point} is in use by {users}: end them, or: nuri fs umount --force"
            )))
        }
        outcome => outcome.map_err(Failure::new),
    }?;
    // The session ends with the process: only then others get its leases and locks at once.
    let Some((pid, _)) = mount.filter(|_| !args.force || is_cut_off) else { return Ok(()) };
    let stays = !users::wait_ended(pid, if is_cut_off { FORCED_WAIT } else { SESSION_WAIT });
    if stays && args.force {
        // It tries to write what nobody can take, and was told to leave that behind.
        let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, Signal::KILL));
        eprintln!("nuri: the first node does not answer: process {pid} of the mount was ended");
    } else if stays {
        eprintln!("nuri: the mount's process {pid} is still ending its session: its log says why");
    }
    Ok(())
}

/// What a mount has not written yet it cannot write while the first node is gone; it would wait for
/// that a long time.
fn look_for_first_node(told: &Mount, point: &Path) -> Result<(), Failure> {
    let Ok((address, secret)) = resolve(told) else { return Ok(()) };
    match Peer::new(&address, &secret).reach(FIRST_NODE_WAIT) {
        Err(Status::UNREACHABLE) => Err(Failure(format!(
            "{}: the first node, {address}, does not answer, so what this mount has not written \
             yet cannot be written: start that node, or leave those bytes behind: \
             nuri fs umount --force",
            point.display()
        ))),
        _ => Ok(()),
    }
}

/// The files that the mount at `point` has not written, in lines.
fn unwritten(point: &Path) -> Vec<String> {
    let (tell, told) = mpsc::channel();
    let asked = point.to_owned();
    // The call cannot be given a time.
    let ask = move || tell.send(attribute(&asked, UNWRITTEN_ATTRIBUTE));
    let started = std::thread::Builder::new().spawn(ask);
    let answer = started.ok().and_then(|_| told.recv_timeout(UNWRITTEN_WAIT).ok());
    match answer {
        Some(Ok(text)) => listed(&text),
        _ => vec!["not written: the mount does not say which files".into()],
    }
}

/// Of the mount's own list: how many there are, then inode, bytes and path of each on a line.
fn listed(text: &str) -> Vec<String> {
    let mut lines = text.lines();
    let count: usize = lines.next().and_then(|line| line.parse().ok()).unwrap_or(0);
    let line = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (ino, bytes) = (words.next()?, words.next()?.parse::<u64>().ok()?);
        let path = words.next().filter(|path| !path.is_empty());
        let name = path.map_or_else(|| format!("inode {ino}"), str::to_owned);
        Some(match bytes {
            0 => format!("not written: times of {name}"),
            bytes => format!("not written: {} of {name}", human(bytes)),
        })
    };
    let mut named: Vec<_> = lines.take(count.min(MOST_NAMED)).filter_map(line).collect();
    match count - named.len() {
        0 if count == 0 => named.push("not written: nothing".into()),
        0 => {}
        more => named.push(format!("not written: {more} more files")),
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_written_are_named() {
        assert_eq!(listed("0"), ["not written: nothing"]);
        let text = "3\n17 4096 dir/a b\n18 0 c\n19 1 ";
        let expected = ["4.0 KiB of dir/a b", "times of c", "1 B of inode 19"];
        assert_eq!(listed(text), expected.map(|words| format!("not written: {words}")));
        let many: String = (0..30).map(|n| format!("\n{n} 1 f{n}")).collect();
        let said = listed(&format!("200{many}"));
        assert_eq!((said.len(), &*said[20]), (21, "not written: 180 more files"));
        assert_eq!(listed("garbage\n1"), ["not written: nothing"]);
    }
}
