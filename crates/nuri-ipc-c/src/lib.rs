//! `nuri_ipc.h` over the Rust library: pointers and numbers in, numbers out.
//!
//! The header and `nuri_ipc(7)` say what each call does. A pointer that must not be null is
//! checked. That it points to what the header says is the caller's contract, here as in all of C. A
//! panic ends the process: it never unwinds into C.

#![allow(unsafe_code)]
// The contract of every function here is the header's.
#![allow(clippy::missing_safety_doc)]

/// Refuses pointers that must not be null.
macro_rules! not_null {
    ($($pointer:ident),+) => { $(if $pointer.is_null() { return EINVAL; })+ };
}

mod code;
mod window;

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use libc::iovec;
use nuri_ipc::{Completion, Config, Endpoint, Error, Lent, Loan, Request, Selector, Status};

use code::EINVAL;

/// `NURI_IPC_ANY_SOURCE`.
const ANY_SOURCE: u32 = u32::MAX;

/// An endpoint.
pub struct CEndpoint(Endpoint);

/// Bounds of an endpoint; zero for the usual ones.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct COptions {
    records: usize,
    bulk: usize,
    heap: usize,
    spill: usize,
}

impl COptions {
    fn apply(self, mut config: Config) -> Config {
        for (bytes, set) in [
            (self.records, Config::records as fn(Config, usize) -> Config),
            (self.bulk, Config::bulk),
            (self.heap, Config::heap),
            (self.spill, Config::spill),
        ] {
            if bytes > 0 {
                config = set(config, bytes);
            }
        }
        config
    }
}

/// What a finished transfer was.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CStatus {
    source: u32,
    reserved: u32,
    tag: u64,
    length: u64,
}

/// What a receive accepts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CSelector {
    source: u32,
    reserved: u32,
    tag: u64,
    mask: u64,
}

impl CSelector {
    fn selector(self) -> Selector {
        let one = Selector::exact(self.source, self.tag).masked(self.mask);
        if self.source == ANY_SOURCE { one.any_source() } else { one }
    }
}

/// A received message of any length.
pub enum CMessage {
    /// In a buffer made for it.
    Own(Vec<u8>),
    /// Where its sender lent it.
    Lent(Lent),
}

fn set_errno(errno: i32) {
    // SAFETY: the address is this thread's own.
    unsafe { *libc::__errno_location() = errno };
}

fn timeout(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
}

fn number<T>(result: Result<T, Error>) -> c_int {
    result.map_or_else(|e| code::of(&e), |_| 0)
}

/// Writes a result where the caller wants it.
///
/// # Safety
/// `to` is null or writable.
unsafe fn give<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's contract.
        unsafe { to.write(value) };
    }
}

fn c_status(status: Status) -> CStatus {
    CStatus { source: status.source, reserved: 0, tag: status.tag, length: status.len }
}

/// # Safety
/// `to` is null or writable.
unsafe fn finish(result: Result<Status, Error>, to: *mut CStatus) -> c_int {
    match result {
        Ok(status) => {
            // SAFETY: the caller's contract.
            unsafe { give(to, c_status(status)) };
            0
        }
        Err(e) => code::of(&e),
    }
}

/// # Safety
/// `bytes` is null or readable for `length` bytes, which nobody changes meanwhile.
unsafe fn slice<'a>(bytes: *const c_void, length: usize) -> Option<&'a [u8]> {
    match length {
        0 => Some(&[]),
        _ if bytes.is_null() => None,
        // SAFETY: the caller's contract.
        _ => Some(unsafe { std::slice::from_raw_parts(bytes.cast(), length) }),
    }
}

/// # Safety
/// `parts` points to `count` of them; what they point to is the caller's contract with the header.
unsafe fn parts(
    parts: *const iovec,
    count: c_int,
) -> Option<impl Iterator<Item = (*mut u8, usize)> + Clone> {
    let count = usize::try_from(count).ok()?;
    if count > 0 && parts.is_null() {
        return None;
    }
    let at = move |i| {
        // SAFETY: the caller's contract.
        let part = unsafe { &*parts.add(i) };
        (part.iov_base.cast::<u8>(), part.iov_len)
    };
    let parts = (0..count).map(at);
    parts.clone().all(|(at, len)| !at.is_null() || len == 0).then_some(parts)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_open(
    session: *const c_char,
    dir: *const c_char,
    rank: u32,
    size: u32,
    out: *mut *mut CEndpoint,
) -> c_int {
    let usual = COptions { records: 0, bulk: 0, heap: 0, spill: 0 };
    // SAFETY: the header's contract.
    unsafe { nuri_ipc_open_with(session, dir, rank, size, &raw const usual, out) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_open_with(
    session: *const c_char,
    dir: *const c_char,
    rank: u32,
    size: u32,
    options: *const COptions,
    out: *mut *mut CEndpoint,
) -> c_int {
    not_null!(session, options, out);
    // SAFETY: the header asks for strings.
    let name = unsafe { CStr::from_ptr(session) };
    let Ok(name) = name.to_str() else { return EINVAL };
    // SAFETY: checked, and options by contract.
    let mut config = unsafe { (*options).apply(Config::new(name, rank, size)) };
    if !dir.is_null() {
        // SAFETY: as above.
        let dir = unsafe { CStr::from_ptr(dir) };
        config = config.dir(OsStr::from_bytes(dir.to_bytes()));
    }
    match Endpoint::open(config) {
        Ok(endpoint) => {
            // SAFETY: the header asks for a place for the pointer.
            unsafe { give(out, Box::into_raw(Box::new(CEndpoint(endpoint)))) };
            0
        }
        Err(e) => code::of(&e),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_close(end: *mut CEndpoint) {
    if !end.is_null() {
        // SAFETY: it came from `nuri_ipc_open` and is not used again.
        drop(unsafe { Box::from_raw(end) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_send(
    end: *const CEndpoint,
    to: u32,
    tag: u64,
    bytes: *const c_void,
    length: usize,
) -> c_int {
    not_null!(end);
    // SAFETY: the header's contract.
    let Some(bytes) = (unsafe { slice(bytes, length) }) else { return EINVAL };
    // SAFETY: checked, and an endpoint by contract.
    number(unsafe { (*end).0.send(to, tag, bytes) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_try_send(
    end: *const CEndpoint,
    to: u32,
    tag: u64,
    bytes: *const c_void,
    length: usize,
    sent: *mut c_int,
) -> c_int {
    not_null!(end, sent);
    // SAFETY: the header's contract.
    let Some(bytes) = (unsafe { slice(bytes, length) }) else { return EINVAL };
    // SAFETY: checked, and an endpoint by contract.
    let went = unsafe { (*end).0.try_send(to, tag, bytes) };
    // SAFETY: checked, and writable by contract.
    number(went.map(|went| unsafe { give(sent, c_int::from(went)) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_sendv(
    end: *const CEndpoint,
    to: u32,
    tag: u64,
    from: *const iovec,
    count: c_int,
) -> c_int {
    let mut request = 0;
    // SAFETY: the header's contract.
    match unsafe { nuri_ipc_isendv(end, to, tag, from, count, &raw mut request) } {
        0 => (),
        error => return error,
    }
    // SAFETY: as above.
    unsafe { nuri_ipc_wait(end, request, -1, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_isendv(
    end: *const CEndpoint,
    to: u32,
    tag: u64,
    from: *const iovec,
    count: c_int,
    request: *mut u64,
) -> c_int {
    not_null!(end, request);
    // SAFETY: the header's contract.
    let Some(parts) = (unsafe { parts(from, count) }) else { return EINVAL };
    let parts = parts.map(|(at, len)| (at.cast_const(), len));
    // SAFETY: as above: the buffers stay until the request has ended.
    let started = unsafe { (*end).0.isend_raw(to, tag, parts) };
    // SAFETY: checked, and writable by contract.
    number(started.map(|r| unsafe { give(request, r.to_bits()) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_recv(
    end: *const CEndpoint,
    from: CSelector,
    bytes: *mut c_void,
    length: usize,
    micros: i64,
    status: *mut CStatus,
) -> c_int {
    not_null!(end);
    if bytes.is_null() && length > 0 {
        return EINVAL;
    }
    let into = std::iter::once((bytes.cast(), length));
    // SAFETY: the buffer is the caller's for the time of the call, and not used after it.
    let result = unsafe { (*end).0.recv_raw(from.selector(), into, timeout(micros)) };
    // SAFETY: null or writable by contract.
    unsafe { finish(result, status) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_recvv(
    end: *const CEndpoint,
    from: CSelector,
    into: *const iovec,
    count: c_int,
    micros: i64,
    status: *mut CStatus,
) -> c_int {
    not_null!(end);
    // SAFETY: the header's contract.
    let Some(parts) = (unsafe { parts(into, count) }) else { return EINVAL };
    // SAFETY: the buffers are the caller's for the time of the call, and not used after it.
    let result = unsafe { (*end).0.recv_raw(from.selector(), parts, timeout(micros)) };
    // SAFETY: null or writable by contract.
    unsafe { finish(result, status) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_irecvv(
    end: *const CEndpoint,
    from: CSelector,
    into: *const iovec,
    count: c_int,
    request: *mut u64,
) -> c_int {
    not_null!(end, request);
    // SAFETY: the header's contract.
    let Some(parts) = (unsafe { parts(into, count) }) else { return EINVAL };
    // SAFETY: as above: the buffers stay until the request has ended.
    let started = unsafe { (*end).0.irecv_raw(from.selector(), parts) };
    // SAFETY: checked, and writable by contract.
    number(started.map(|r| unsafe { give(request, r.to_bits()) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_test(
    end: *const CEndpoint,
    request: u64,
    done: *mut c_int,
    status: *mut CStatus,
) -> c_int {
    not_null!(end, done);
    // SAFETY: checked, and an endpoint by contract.
    let tested = unsafe { (*end).0.test(Request::from_bits(request)) };
    // SAFETY: checked, and writable by contract.
    unsafe { give(done, c_int::from(!matches!(tested, Ok(None)))) };
    match tested {
        Ok(None) => 0,
        // SAFETY: null or writable by contract.
        Ok(Some(completion)) => unsafe { finish(completion.result, status) },
        Err(e) => code::of(&e),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_wait(
    end: *const CEndpoint,
    request: u64,
    micros: i64,
    status: *mut CStatus,
) -> c_int {
    not_null!(end);
    // SAFETY: checked, and an endpoint by contract.
    let waited = unsafe { (*end).0.wait(Request::from_bits(request), timeout(micros)) };
    // SAFETY: null or writable by contract.
    unsafe { finish(waited.and_then(|completion| completion.result), status) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_wait_any(
    end: *const CEndpoint,
    requests: *const u64,
    count: usize,
    micros: i64,
    which: *mut usize,
    status: *mut CStatus,
) -> c_int {
    not_null!(end, requests, which);
    // SAFETY: the header asks for an array of that length.
    let requests = unsafe { std::slice::from_raw_parts(requests, count) };
    let requests: Vec<Request> = requests.iter().map(|r| Request::from_bits(*r)).collect();
    // SAFETY: checked, and an endpoint by contract.
    match unsafe { (*end).0.wait_any(&requests, timeout(micros)) } {
        Ok((at, completion)) => {
            // SAFETY: checked, and writable by contract.
            unsafe { give(which, at) };
            // SAFETY: null or writable by contract.
            unsafe { finish(completion.result, status) }
        }
        Err(e) => {
            // SAFETY: checked, and writable by contract.
            unsafe { give(which, usize::MAX) };
            code::of(&e)
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_cancel(
    end: *const CEndpoint,
    request: u64,
    cancelled: *mut c_int,
) -> c_int {
    not_null!(end);
    // SAFETY: checked, and an endpoint by contract.
    let result = unsafe { (*end).0.cancel(Request::from_bits(request)) };
    // SAFETY: null or writable by contract.
    number(result.map(|was| unsafe { give(cancelled, c_int::from(was)) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_probe(
    end: *const CEndpoint,
    from: CSelector,
    micros: i64,
    status: *mut CStatus,
) -> c_int {
    not_null!(end);
    // SAFETY: checked, and an endpoint by contract.
    let found = match (unsafe { &(*end).0 }, from.selector()) {
        (end, from) if micros == 0 => {
            end.iprobe(from).and_then(|found| found.ok_or(Error::TimedOut))
        }
        (end, from) => end.probe(from, timeout(micros)),
    };
    // SAFETY: null or writable by contract.
    unsafe { finish(found, status) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_alloc(
    end: *const CEndpoint,
    length: usize,
    loan: *mut *mut Loan,
) -> c_int {
    not_null!(end, loan);
    // SAFETY: checked, and an endpoint by contract.
    let taken = unsafe { (*end).0.alloc(length) };
    // SAFETY: checked, and writable by contract.
    number(taken.map(|taken| unsafe { give(loan, Box::into_raw(Box::new(taken))) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_loan_data(loan: *mut Loan) -> *mut c_void {
    // SAFETY: null or from `nuri_ipc_alloc`.
    unsafe { loan.as_mut() }.map_or(std::ptr::null_mut(), |loan| loan.as_mut_ptr().cast())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_loan_free(loan: *mut Loan) {
    if !loan.is_null() {
        // SAFETY: from `nuri_ipc_alloc`, and not used again.
        drop(unsafe { Box::from_raw(loan) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_send_loan(
    end: *const CEndpoint,
    to: u32,
    tag: u64,
    loan: *mut Loan,
) -> c_int {
    not_null!(end, loan);
    // SAFETY: from `nuri_ipc_alloc`, and not used again.
    let loan = unsafe { Box::from_raw(loan) };
    // SAFETY: checked, and an endpoint by contract.
    number(unsafe { (*end).0.send_loan(to, tag, *loan) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_recv_open(
    end: *const CEndpoint,
    from: CSelector,
    micros: i64,
    message: *mut *mut CMessage,
    status: *mut CStatus,
) -> c_int {
    not_null!(end, message);
    // SAFETY: checked, and an endpoint by contract.
    match unsafe { (*end).0.recv_open(from.selector(), timeout(micros)) } {
        Ok(Completion {
            result: result @ (Ok(_) | Err(Error::Truncated { .. })),
            buffer,
            lent,
        }) => {
            let own = CMessage::Own(buffer.unwrap_or_default());
            let taken = lent.map_or(own, CMessage::Lent);
            // SAFETY: checked, and writable by contract.
            unsafe { give(message, Box::into_raw(Box::new(taken))) };
            // SAFETY: null or writable by contract.
            unsafe { finish(result, status) }
        }
        Ok(Completion { result, .. }) => number(result),
        Err(e) => code::of(&e),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_message_data(message: *const CMessage) -> *const c_void {
    // SAFETY: null or from `nuri_ipc_recv_open`.
    match unsafe { message.as_ref() } {
        None => std::ptr::null(),
        Some(CMessage::Own(bytes)) => bytes.as_ptr().cast(),
        // SAFETY: only the address is taken; the header says who may write there.
        Some(CMessage::Lent(lent)) => unsafe { lent.as_slice() }.as_ptr().cast(),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_message_free(message: *mut CMessage) {
    if !message.is_null() {
        // SAFETY: from `nuri_ipc_recv_open`, and not used again.
        drop(unsafe { Box::from_raw(message) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_info(
    end: *const CEndpoint,
    text: *mut c_char,
    length: usize,
) -> c_int {
    not_null!(end, text);
    // SAFETY: checked, and an endpoint by contract.
    let info = unsafe { (*end).0.info() }.to_string();
    let len = info.len().min(length.saturating_sub(1));
    if length > 0 {
        // SAFETY: the header asks for `length` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(info.as_ptr(), text.cast(), len);
            text.add(len).write(0);
        }
    }
    c_int::try_from(info.len()).unwrap_or(c_int::MAX)
}

#[unsafe(no_mangle)]
pub extern "C" fn nuri_ipc_error(number: c_int) -> *const c_char {
    let found = code::TABLE.iter().find(|(code, ..)| *code == number);
    found.map_or(c"unknown error", |(_, _, words)| words).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_same_numbers() {
        let header = include_str!("../../nuri-ipc/include/nuri_ipc.h");
        for (number, name, _) in code::TABLE {
            assert!(header.contains(&format!("{name} = {number},")), "{name}");
        }
        assert_eq!(header.matches(" = -").count(), code::TABLE.len() - 1);
    }
}
