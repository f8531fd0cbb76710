//! Opcodes of open files.

use nuri_client::{Allocate, Position, Privileges, Seek, Sync, WritePayload, WriteResult};
use nuri_proto::Status;
use nuri_proto::id::Ino;
use nuri_rules::{broken, pause};
use zerocopy::IntoBytes;

use crate::bypass::TICKET;
use crate::op::{Dispatcher, access, not_implemented, privileges};
use crate::protocol::abi;
use crate::protocol::abi::{
    CopyFileRangeIn, FallocateIn, FsyncIn, IoctlIn, IoctlOut, LseekIn, LseekOut, OpenIn, OpenOut,
    ReadIn, WriteIn, WriteOut,
};
use crate::protocol::limits::MAX_WRITE;
use crate::protocol::reply::Replier;
use crate::protocol::request::Request;

/// `FUSE_FSYNC_FDATASYNC`
const FDATASYNC: u32 = 1;

impl Dispatcher {
    pub(crate) fn run_file(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        match request.header.opcode {
            abi::OPEN => self.open(request, reply),
            abi::READ => self.read(request, reply),
            abi::WRITE => self.write(request, reply),
            abi::FLUSH => self.flush(request, reply),
            abi::RELEASE => self.release(request, reply),
            abi::FSYNC => {
                let call: FsyncIn = request.take()?;
                self.client.locks().check_locks(call.fh)?;
                let data_only = call.fsync_flags & FDATASYNC != 0;
                self.client.fsync(call.fh, if data_only { Sync::Data } else { Sync::All })?;
                reply.ok();
                Ok(())
            }
            abi::FALLOCATE => self.fallocate(request, reply),
            abi::LSEEK => self.lseek(request, reply),
            abi::IOCTL => self.ioctl(request, reply),
            abi::COPY_FILE_RANGE => self.copy_file_range(request, reply),
            _ => {
                not_implemented(reply);
                Ok(())
            }
        }
    }

    /// Which opens bypass the page cache: those that say so, those that cannot read, for which
    /// pages would only be copied once more, and those that append, whose pages the kernel would
    /// put where it believes that the file ends.
    pub(crate) fn open_flags(&self, flags: i32) -> u32 {
        let write_only = flags & libc::O_ACCMODE == libc::O_WRONLY;
        let appends = flags & libc::O_APPEND != 0 && !broken!("append_in_pages");
        if flags & libc::O_DIRECT != 0 || write_only || appends {
            abi::FOPEN_DIRECT_IO | abi::FOPEN_PARALLEL_DIRECT_WRITES
        } else {
            abi::FOPEN_KEEP_CACHE
        }
    }

    /// Says how a file that was opened is read, and remembers it until its last close.
    pub(crate) fn note_open(&self, ino: Ino, fh: u64, flags: i32) -> u32 {
        let how = self.open_flags(flags);
        if how & abi::FOPEN_DIRECT_IO == 0 {
            self.cached.opened(ino, fh);
        }
        how
    }

    fn open(&self, request: &mut Request<'_>, reply: &mut Replier<'_, '_>) -> Result<(), Status> {
        let call: OpenIn = request.take()?;
        let flags = call.flags as i32;
        let fh = self.client.open(Self::ino(request), access(flags))?;
        let open_flags = self.note_open(Self::ino(request), fh, flags);
        reply.value(&OpenOut { fh, open_flags, backing_id: 0 });
        Ok(())
    }

    fn read(&self, request: &mut Request<'_>, reply: &mut Replier<'_, '_>) -> Result<(), Status> {
        let call: ReadIn = request.take()?;
        let ino = Self::ino(request);
        let read = self.reads.enter(ino, call.offset);
        let size = call.size.min(MAX_WRITE) as usize;
        let room = reply.room(size);
        let len = if call.flags as i32 & libc::O_DIRECT != 0 {
            self.client.read_direct(ino, call.offset, room)?
        } else {
            self.client.read(ino, call.offset, room)?
        };
        // After the bytes were had: they may have been waited for.
        self.client.locks().check_locks(call.fh)?;
        if len == 0 && !broken!("last_end_counts") {
            read.wait_for_those_before();
        }
        reply.filled(len);
        if len < size {
            reply.keep(read);
        }
        self.note_access(ino, call.flags);
        Ok(())
    }

    fn write(&self, request: &mut Request<'_>, reply: &mut Replier<'_, '_>) -> Result<(), Status> {
        let ino = Self::ino(request);
        let call: WriteIn = request.take()?;
        let data = request.bytes(call.size as usize)?;
        let flags = call.flags as i32;
        let wrote = match call.write_flags & abi::WRITE_CACHE {
            0 => self.write_called(request, &call, data)?,
            _ => self.client.write_mapped(ino, call.offset, data)?,
        };
        if flags & libc::O_DSYNC != 0 {
            let all = flags & libc::O_SYNC == libc::O_SYNC;
            self.client.fsync(call.fh, if all { Sync::All } else { Sync::Data })?;
        }
        reply.value(&WriteOut { size: wrote.len as u32, padding: 0 });
        Ok(())
    }

    /// What a program wrote by a call.
    fn write_called(
        &self,
        request: &Request<'_>,
        call: &WriteIn,
        data: &[u8],
    ) -> Result<WriteResult, Status> {
        let (ino, flags) = (Self::ino(request), call.flags as i32);
        let is_paged = flags & libc::O_DIRECT == 0 && self.cached.is_paged(ino, call.fh);
        let position = match flags & libc::O_APPEND != 0 {
            true if is_paged && !broken!("append_in_pages") => Position::EndInPages(call.offset),
            true => Position::End,
            false => Position::At(call.offset),
        };
        let kill = call.write_flags & abi::WRITE_KILL_SUIDGID != 0;
        let taken = privileges(kill, Self::caller(request));
        let asked = WriteResult { at: call.offset, len: data.len() as u64 };
        if is_paged {
            let wrote = self.client.write((ino, call.fh), position, data, taken);
            if matches!(position, Position::EndInPages(_)) {
                self.dropper.drop_appended(ino, asked, *wrote.as_ref().unwrap_or(&asked));
            }
            return wrote;
        }
        let wrote = self.write_past_pages((ino, call.fh), position, data, taken)?;
        // The kernel takes the size from the answer.
        self.growing.wait(ino, wrote.at + wrote.len);
        Ok(wrote)
    }

    /// A write that the kernel has no pages of. Those that somebody read meanwhile are dropped (see
    /// `kernel_cached.rs`), also of what was refused in part, before anybody is told a new size.
    fn write_past_pages(
        &self,
        (ino, fh): (Ino, u64),
        position: Position,
        data: &[u8],
        taken: Privileges,
    ) -> Result<WriteResult, Status> {
        let growth = self.growing.watch(ino);
        let grows = |end| growth.begin(end);
        let payload = WritePayload::from(data).telling(&grows);
        let wrote = self.client.write((ino, fh), position, payload, taken);
        pause!("written");
        let dropped = match (&wrote, position) {
            (Ok(wrote), _) => *wrote,
            (Err(_), Position::At(at)) => WriteResult { at, len: data.len() as u64 },
            (Err(_), _) => return wrote,
        };
        let is_any = self.cached.has(ino) && !broken!("direct_beside_pages");
        if is_any && dropped.len > 0 {
            self.dropper.drop_written(ino, dropped);
        }
        wrote
    }

    fn fallocate(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let ino = Self::ino(request);
        let call: FallocateIn = request.take()?;
        let keep = call.mode as i32 & libc::FALLOC_FL_KEEP_SIZE != 0;
        let how = match (call.mode as i32 & !libc::FALLOC_FL_KEEP_SIZE, keep) {
            (0, false) => Allocate::Extend,
            (0, true) => Allocate::KeepSize,
            (libc::FALLOC_FL_PUNCH_HOLE, true) => Allocate::Punch,
            (libc::FALLOC_FL_ZERO_RANGE, false) => Allocate::Zero,
            (libc::FALLOC_FL_ZERO_RANGE, true) => Allocate::ZeroKeepSize,
            _ => return Err(Status::NOTSUP),
        };
        let taken = privileges(request.header.uid != 0, Self::caller(request));
        self.client.drop_privileges(ino, taken)?;
        self.client.allocate(ino, how, call.offset, call.length)?;
        reply.ok();
        Ok(())
    }

    fn lseek(&self, request: &mut Request<'_>, reply: &mut Replier<'_, '_>) -> Result<(), Status> {
        let ino = Self::ino(request);
        let call: LseekIn = request.take()?;
        let what = match call.whence as i32 {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Status::INVAL),
        };
        let offset = self.client.seek(ino, call.offset, what)?;
        reply.value(&LseekOut { offset });
        Ok(())
    }

    /// The one that there is: a ticket by which the program moves its bytes past the kernel.
    fn ioctl(&self, request: &mut Request<'_>, reply: &mut Replier<'_, '_>) -> Result<(), Status> {
        let call: IoctlIn = request.take()?;
        let ticket = match (call.cmd, &self.bypass) {
            (TICKET, Some(bypass)) if call.flags & abi::IOCTL_DIR == 0 => bypass.ticket(call.fh)?,
            _ => {
                reply.error(libc::ENOTTY);
                return Ok(());
            }
        };
        let mut body = IoctlOut::default().as_bytes().to_vec();
        body.extend_from_slice(ticket.as_bytes());
        reply.owned(body);
        Ok(())
    }

    fn copy_file_range(
        &self,
        request: &mut Request<'_>,
        reply: &mut Replier<'_, '_>,
    ) -> Result<(), Status> {
        let from = Self::ino(request);
        let call: CopyFileRangeIn = request.take()?;
        // The kernel calls again for what is left.
        let mut buf = self.buffers.take();
        let want = call.len.min(u64::from(MAX_WRITE)) as usize;
        buf.set_len(want);
        let mut len = self.client.read(from, call.off_in, &mut buf)?;
        if len > 0 {
            let kill = privileges(request.header.uid != 0, Self::caller(request));
            let (position, to) = (Position::At(call.off_out), Ino(call.nodeid_out));
            let wrote = self.write_past_pages((to, call.fh_out), position, &buf[..len], kill)?;
            len = wrote.len as usize;
        }
        reply.value(&WriteOut { size: len as u32, padding: 0 });
        Ok(())
    }
}
