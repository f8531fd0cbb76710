//! What a process that stays in the background takes over from whoever started it: nothing.
//!
//! Callers: the commands that become, or start, a process of a space.
#![allow(unsafe_code)]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that a mount or a node needs at least.
const FEWEST_DESCRIPTORS: u64 = 1024;

/// No process that this one starts gets a descriptor above 2 that this one was given. A lock or a
/// pipe of the starting shell would otherwise be held for as long as the space runs.
pub fn pass_on_nothing() {
    // SAFETY: the call sets a flag on descriptors and closes none; it touches no memory.
    let marked = unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
    // Kernels before 5.11 do not know it; there the descriptors are passed on as before.
    let _ = marked;
}

/// Raises the limits of this process as far as it may.
///
/// # Errors
/// Where even then it could not keep enough descriptors open; says the limit.
pub fn raise_limits() -> Result<(), String> {
    for resource in [Resource::Nofile, Resource::Nproc, Resource::Memlock] {
        let maximum = getrlimit(resource).maximum;
        // What is refused stays as it was.
        let _ = setrlimit(resource, Rlimit { current: maximum, maximum });
    }
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < FEWEST_DESCRIPTORS => Err(format!(
            "only {most} files may be open at once, and nuri needs {FEWEST_DESCRIPTORS}: raise the \
             hard limit (ulimit -Hn {FEWEST_DESCRIPTORS}, or LimitNOFILE= of the service)"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_the_hard_one() {
        raise_limits().unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
