//! Opcodes of locks. A lock that must wait is parked: its reply is sent when the wait has ended.
//!
//! What the kernel sends (Linux 6.18, `fs/fuse/file.c`):
//!
//! - GETLK, SETLK and SETLKW with an owner that is a scrambled address. It is that of the process's
//!   file table (POSIX), or of the open file (OFD, and `flock` with `FUSE_LK_FLOCK` set). OFD locks
//!   are not marked.
//! - FLUSH with the process's owner at each close of a descriptor, and RELEASE at the last close.
//! - Signals as INTERRUPT, on `/dev/fuse` also where requests come over io_uring, in no order with
//!   the request that they name.
//!
//! The kernel restarts a SETLKW that was answered with `EINTR`, where the signal's handler allows
//! it.

use nuri_client::LockPlace;
use nuri_proto::Status;
use nuri_proto::op::lock::{Deadlock, LockClass, LockMode};
use nuri_proto::range_map::Span;

use crate::op::Dispatcher;
use crate::protocol::abi::{self, FileLock, FlushIn, InterruptIn, LkIn, LkOut, ReleaseIn};
use crate::protocol::reply::Replier;
use crate::protocol::request::Request;

impl Dispatcher {
    pub(crate) fn getlk(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let (place, mode) = self.place(request)?;
        let holder = self.client.locks().lock_test(&place, mode.ok_or(Status::INVAL)?)?;
        let none = FileLock { kind: libc::F_UNLCK as u32, ..FileLock::default() };
        let lk = holder.map_or(none, |held| FileLock {
            start: held.span.start,
            end: held.span.end,
            kind: match held.mode {
                LockMode::Shared => libc::F_RDLCK as u32,
                LockMode::Exclusive => libc::F_WRLCK as u32,
            },
            pid: held.pid,
        });
        reply.value(&LkOut { lk });
        Ok(())
    }

    pub(crate) fn setlk(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let (place, mode) = self.place(request)?;
        self.client.locks().lock(&place, mode)?;
        reply.ok();
        Ok(())
    }

    pub(crate) fn setlkw(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let (place, mode) = self.place(request)?;
        let (Some(mode), Some(later)) = (mode, reply.later()) else {
            // No room to park another one: what is free can be had, what is not cannot.
            let full = |status| if status == Status::AGAIN { Status::NOLCK } else { status };
            self.client.locks().lock(&place, mode).map_err(full)?;
            reply.ok();
            return Ok(());
        };
        let deadlock = match place.class {
            LockClass::Range => circles_of(request.header.pid),
            LockClass::Flock => Deadlock::Ignore,
        };
        let done = move |outcome: Result<(), Status>| {
            later.send(outcome.map_or_else(|status| -status.errno(), |()| 0));
        };
        self.client.locks().lock_wait(&place, mode, deadlock, request.header.unique, done);
        reply.parked();
        Ok(())
    }

    pub(crate) fn interrupt(&self, request: &mut Request<'_>) -> Result<(), Status> {
        if let Ok(call) = request.take::<InterruptIn>() {
            self.client.locks().interrupt(call.unique);
        }
        Ok(())
    }

    pub(crate) fn flush(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let ino = Self::ino(request);
        let call: FlushIn = request.take()?;
        self.client.locks().note_closing(ino, call.fh);
        let flushed = self.client.flush(call.fh);
        let unlocked = self.client.locks().close_locks(ino, call.lock_owner);
        flushed.and(unlocked)?;
        reply.ok();
        Ok(())
    }

    pub(crate) fn release(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let call: ReleaseIn = request.take()?;
        // Of `flock` and OFD: the client knows what was taken through this handle.
        self.client.locks().release_locks(call.fh);
        if let Some(bypass) = &self.bypass {
            bypass.revoke(call.fh);
        }
        self.cached.closed(Self::ino(request), call.fh);
        self.client.release(call.fh);
        reply.ok();
        Ok(())
    }
}

impl Dispatcher {
    fn place(&self, request: &mut Request<'_>) -> Result<(LockPlace, Option<LockMode>), Status> {
        let thread = request.header.pid;
        let (place, mode) = place(request)?;
        Ok((self.client.locks().owned_place(place, || is_of_open_file(thread)), mode))
    }
}

fn place(request: &mut Request<'_>) -> Result<(LockPlace, Option<LockMode>), Status> {
    let ino = Dispatcher::ino(request);
    let LkIn { fh, owner, lk, lk_flags, .. } = request.take()?;
    let mode = match lk.kind as i32 {
        libc::F_RDLCK => Some(LockMode::Shared),
        libc::F_WRLCK => Some(LockMode::Exclusive),
        libc::F_UNLCK => None,
        _ => return Err(Status::INVAL),
    };
    let flock = lk_flags & abi::LK_FLOCK != 0;
    let class = if flock { LockClass::Flock } else { LockClass::Range };
    let span = if flock { Span::ALL } else { Span { start: lk.start, end: lk.end } };
    Ok((LockPlace { ino, fh, class, owner, span, pid: lk.pid }, mode))
}

/// Whether a circle of waits is an error for the thread's request. Not for OFD locks, as on
/// Linux; only the thread's system call tells them apart. Where that cannot be read it is.
fn circles_of(thread: u32) -> Deadlock {
    if is_of_open_file(thread) { Deadlock::Ignore } else { Deadlock::Detect }
}

/// Whether the thread asks for an OFD lock.
fn is_of_open_file(thread: u32) -> bool {
    system_call(thread).is_some_and(is_ofd_call)
}

/// The system call in which the thread waits, and its second argument, where that can be known.
pub(crate) fn system_call(thread: u32) -> Option<(i64, i64)> {
    read_call(&std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?)
}

/// Reads `NUMBER 0xFIRST 0xSECOND ...`.
fn read_call(text: &str) -> Option<(i64, i64)> {
    let mut words = text.split(' ');
    let number = words.next()?.parse().ok()?;
    let second = i64::from_str_radix(words.nth(1)?.strip_prefix("0x")?, 16).unwrap_or(-1);
    Some((number, second))
}

/// Is it `fcntl(_, F_OFD_..., _)`?
fn is_ofd_call((number, command): (i64, i64)) -> bool {
    let commands = [libc::F_OFD_GETLK, libc::F_OFD_SETLK, libc::F_OFD_SETLKW];
    number == libc::SYS_fcntl && commands.iter().any(|ofd| i64::from(*ofd) == command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_call_tells_ofd_locks_apart() {
        let is_ofd = |text: &str| read_call(text).is_some_and(is_ofd_call);
        let call = |command: i32| format!("{} 0x3 {command:#x} 0x7ffd 0x0\n", libc::SYS_fcntl);
        assert!(is_ofd(&call(libc::F_OFD_SETLKW)) && is_ofd(&call(libc::F_OFD_SETLK)));
        assert!(!is_ofd(&call(libc::F_SETLKW)));
        assert!(!is_ofd("running\n") && !is_ofd("") && !is_ofd("-1 0x7f 0x7f"));
        let chown = read_call(&format!("{} 0x3 0xffffffffffffffff 0x0\n", libc::SYS_fchown));
        assert_eq!(chown, Some((libc::SYS_fchown, -1)), "its argument is no matter");
    }
}
