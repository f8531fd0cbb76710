//! Calls of `nuri_ipc.h` on windows.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use nuri_ipc::Window;

use crate::code::EINVAL;
use crate::{CEndpoint, give, number, timeout};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_window_create(
    end: *const CEndpoint,
    id: u64,
    length: usize,
    window: *mut *mut Window,
) -> c_int {
    not_null!(end, window);
    // SAFETY: checked, and an endpoint by contract.
    let made = unsafe { (*end).0.window(id, length) };
    // SAFETY: checked, and writable by contract.
    number(made.map(|made| unsafe { give(window, Box::into_raw(Box::new(made))) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_window_attach(
    end: *const CEndpoint,
    rank: u32,
    id: u64,
    micros: i64,
    window: *mut *mut Window,
) -> c_int {
    not_null!(end, window);
    let patience = timeout(micros).unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
    // SAFETY: checked, and an endpoint by contract.
    let found = unsafe { (*end).0.attach(rank, id, patience) };
    // SAFETY: checked, and writable by contract.
    number(found.map(|found| unsafe { give(window, Box::into_raw(Box::new(found))) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_window_free(window: *mut Window) {
    if !window.is_null() {
        // SAFETY: from one of the calls above, and not used again.
        drop(unsafe { Box::from_raw(window) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_put(
    window: *const Window,
    offset: usize,
    bytes: *const c_void,
    length: usize,
) -> c_int {
    not_null!(window, bytes);
    // SAFETY: the header asks for that many readable bytes.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), length) };
    // SAFETY: checked, and a window by contract.
    number(unsafe { (*window).put(offset, bytes) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_get(
    window: *const Window,
    offset: usize,
    bytes: *mut c_void,
    length: usize,
) -> c_int {
    not_null!(window, bytes);
    // SAFETY: the header asks for that many writable bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(bytes.cast(), length) };
    // SAFETY: checked, and a window by contract.
    number(unsafe { (*window).get(offset, bytes) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_fetch_add(
    window: *const Window,
    offset: usize,
    value: u64,
    before: *mut u64,
) -> c_int {
    not_null!(window);
    // SAFETY: checked, and a window by contract.
    let was = unsafe { (*window).fetch_add(offset, value) };
    // SAFETY: null or writable by contract.
    number(was.map(|was| unsafe { give(before, was) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_fence(window: *const Window) {
    // SAFETY: null or a window.
    if let Some(window) = unsafe { window.as_ref() } {
        window.fence();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_notify(window: *const Window) {
    // SAFETY: null or a window.
    if let Some(window) = unsafe { window.as_ref() } {
        window.notify();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nuri_ipc_wait_notice(
    end: *const CEndpoint,
    window: *const Window,
    seen: u64,
    micros: i64,
    notices: *mut u64,
) -> c_int {
    not_null!(end, window);
    // SAFETY: checked, and what they are by contract.
    let waited = unsafe { (*end).0.wait_notice(&*window, seen, timeout(micros)) };
    // SAFETY: null or writable by contract.
    number(waited.map(|now| unsafe { give(notices, now) }))
}
