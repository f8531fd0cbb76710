//! One connection of a program that bypasses the kernel's cache: serves its requests, one after the
//! other.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nuri_client::{Access, OwnBlock, Privileges, WritePayload};
use nuri_ipc::lent_pages::LentPages;
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_proto::limit::MAX_FILE;
use nuri_rules::broken;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use zerocopy::{FromBytes, IntoBytes};

use super::Bypass;
use super::wire::{Answer, Ask, LARGEST, READ, WRITE};

/// A program that says nothing for so long makes room for others.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Guest<'b> {
    bypass: &'b Bypass,
    socket: OwnedFd,
    /// Pipe to the program: references to `pages`.
    to: OwnedFd,
    /// Pipe from the program: references to its pages.
    from: OwnedFd,
    pages: LentPages,
    scratch: Vec<u8>,
}

impl<'b> Guest<'b> {
    /// Makes the pipes and gives the program its ends.
    pub(super) fn welcome(bypass: &'b Bypass, socket: OwnedFd) -> io::Result<Guest<'b>> {
        let (theirs_out, to) = pipe_with(PipeFlags::CLOEXEC)?;
        let (from, theirs_in) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setpipe_size(&to, LARGEST as usize)?;
        fcntl_setpipe_size(&from, LARGEST as usize)?;
        let ends = [theirs_out.as_fd(), theirs_in.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&ends));
        let hello = Answer::default();
        let bytes = [IoSlice::new(hello.as_bytes())];
        rustix::net::sendmsg(&socket, &bytes, &mut control, SendFlags::NOSIGNAL)?;
        let pages = LentPages::new(LARGEST as usize).map_err(io::Error::other)?;
        Ok(Guest { bypass, socket, to, from, pages, scratch: Vec::new() })
    }

    /// Answers requests until the program is gone.
    ///
    /// # Errors
    /// The program does not keep to the protocol, or says nothing any more.
    pub(super) fn serve(mut self) -> io::Result<()> {
        loop {
            let mut bytes = [0; size_of::<Ask>()];
            let (got, full) = rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty())?;
            if got == 0 {
                return Ok(());
            }
            let ask =
                Ask::read_from_bytes(&bytes).ok().filter(|_| got == full && got == bytes.len());
            let ask = ask.filter(|ask| ask.len <= LARGEST).ok_or(io::ErrorKind::InvalidData)?;
            let result = match ask.what {
                READ => self.read(&ask)?,
                WRITE => self.write(&ask)?,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            };
            let result = result.map_err(|status| self.error(&ask, status));
            let result = result.map_or_else(|s| -i64::from(s.errno()), |len| len as i64);
            rustix::net::send(&self.socket, Answer { result }.as_bytes(), SendFlags::NOSIGNAL)?;
        }
    }

    /// The file that a ticket stands for, if it was opened for that.
    fn file(&self, ask: &Ask) -> Result<(Ino, u64), Status> {
        let fh = self.bypass.tickets.lock().file(&ask.ticket).ok_or(Status::STALE)?;
        let (ino, access) = self.bypass.client.opened(fh).map_err(|_| Status::STALE)?;
        let refused = if ask.what == READ { Access::Write } else { Access::Read };
        let refused = access == refused && !broken!("ticket_for_all");
        if refused { Err(Status::BADF) } else { Ok((ino, fh)) }
    }

    /// What a request failed with, or that its file was closed meanwhile: the program has another
    /// one under that number by now, and is to ask for its ticket.
    fn error(&self, ask: &Ask, status: Status) -> Status {
        let is_open = self.file(ask) != Err(Status::STALE) || broken!("closed_is_bad");
        if is_open { status } else { Status::STALE }
    }

    /// The outer error ends the connection.
    fn read(&mut self, ask: &Ask) -> io::Result<Result<usize, Status>> {
        if ioctl_fionread(&self.to)? > 0 {
            // What was lent is not taken: the pages are not free.
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (client, file) = (&self.bypass.client, self.file(ask));
        let into = &mut self.pages[..ask.len as usize];
        let read = file.and_then(|(ino, fh)| {
            let len = client.read_direct(ino, ask.offset, into)?;
            client.locks().check_locks(fh)?;
            if !self.bypass.read_only {
                client.note_access(ino);
            }
            Ok(len)
        });
        if let Ok(len) = read {
            self.pages.lend(&self.to, len).map_err(io::Error::other)?;
            // The program's own, out of the pipe.
            self.bypass.passed.count(len, 1);
        }
        Ok(read)
    }

    /// As [`Guest::read`]. The bytes are taken out of the pipe whatever becomes of them.
    fn write(&mut self, ask: &Ask) -> io::Result<Result<usize, Status>> {
        let (client, len) = (&self.bypass.client, ask.len as usize);
        let fits = ask.offset.checked_add(ask.len).is_some_and(|end| end <= MAX_FILE);
        let file = if fits { self.file(ask) } else { Err(Status::FBIG) };
        let is_block = ask.len == OwnBlock::LEN && ask.offset.is_multiple_of(OwnBlock::LEN);
        let until = Instant::now() + PATIENCE;
        let growth = file.ok().map(|(ino, _)| self.bypass.growing.watch(ino));
        let grows = |end| growth.iter().for_each(|growth| growth.begin(end));
        let written = if is_block {
            let block = OwnBlock::fill(|bytes| take(&self.from, bytes, until))?;
            let block = WritePayload::from(block).telling(&grows);
            file.and_then(|file| client.write_past(file, ask.offset, block, Privileges::All))
        } else {
            fill(&self.from, &mut self.scratch, len, until)?;
            let data = WritePayload::from(&self.scratch[..]).telling(&grows);
            file.and_then(|file| client.write_past(file, ask.offset, data, Privileges::All))
        };
        // Also of what was refused in part.
        if let Ok((ino, _)) = file
            && !broken!("stale_pages_stay")
        {
            self.bypass.kernel.invalidate_pages(ino, ask.offset, ask.len);
        }
        drop(growth);
        Ok(written.map(|wrote| {
            // Out of the pipe, and what is no block from there into the write buffer.
            self.bypass.passed.count(wrote.len as usize, if is_block { 1 } else { 2 });
            wrote.len as usize
        }))
    }
}

/// Takes so many bytes out of a pipe.
fn fill(pipe: &OwnedFd, into: &mut Vec<u8>, len: usize, until: Instant) -> io::Result<()> {
    into.clear();
    into.reserve_exact(len);
    while into.len() < len {
        if take(pipe, into, until)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    if into.len() == len { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

/// Appends what a program has put into its pipe, as far as there is room.
fn take(pipe: &OwnedFd, into: &mut Vec<u8>, until: Instant) -> io::Result<usize> {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    if poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&left))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(rustix::io::read(pipe, spare_capacity(into))?)
}
