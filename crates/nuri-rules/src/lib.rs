//! Rules of the protocols that a test may break, to prove that another test notices.
//!
//! Code asks `broken!("ack_before_log")` where it would otherwise keep the rule of that name. In a
//! build with debug assertions, the answer is yes where the environment variable [`VARIABLE`] names
//! the rule. In every other build, releases among them, the macro is the literal `false`. There the
//! compiler removes the broken branch, and neither the rule's name nor the variable's is in the
//! program.
//!
//! `pause!("look")` marks a place where a thread may be stopped for long. In a build with debug
//! assertions it sleeps for up to [`LONGEST_PAUSE`] where [`PAUSES`] names the place. What happens
//! once in a thousand runs on a busy machine then happens in every run.
//!
//! `docs/broken-rules.txt` lists each rule with the test that fails where it is broken; `cargo
//! xtask broken` proves the list.

/// Whether the rule of this name is broken in this process.
#[cfg(debug_assertions)]
#[macro_export]
macro_rules! broken {
    ($rule:literal) => {
        $crate::is_broken($rule)
    };
}

/// Whether the rule of this name is broken in this process: no rule is, in a release.
#[cfg(not(debug_assertions))]
#[macro_export]
macro_rules! broken {
    ($rule:literal) => {
        false
    };
}

/// Names the rule that a process and its children break.
#[cfg(debug_assertions)]
pub const VARIABLE: &str = "NURI_BREAK";

/// The environment is read once: no rule changes while a process runs.
#[cfg(debug_assertions)]
pub fn is_broken(rule: &str) -> bool {
    use std::sync::OnceLock;
    static BROKEN: OnceLock<Option<String>> = OnceLock::new();
    let broken = BROKEN.get_or_init(|| std::env::var(VARIABLE).ok());
    broken.as_deref() == Some(rule)
}

/// Sleeps where this process pauses at the place.
#[cfg(debug_assertions)]
#[macro_export]
macro_rules! pause {
    ($place:literal) => {
        $crate::pause_at($place)
    };
}

/// Nothing, in a release.
#[cfg(not(debug_assertions))]
#[macro_export]
macro_rules! pause {
    ($place:literal) => {};
}

/// Names the places where a process and its children pause, with commas between.
#[cfg(debug_assertions)]
pub const PAUSES: &str = "NURI_PAUSE";

/// Longer than all that waits for nothing but a processor.
#[cfg(debug_assertions)]
pub const LONGEST_PAUSE: std::time::Duration = std::time::Duration::from_millis(4);

/// Sleeps, some time or other, where the environment names the place.
#[cfg(debug_assertions)]
pub fn pause_at(place: &str) {
    use std::sync::OnceLock;
    use std::time::SystemTime;
    static PLACES: OnceLock<Vec<String>> = OnceLock::new();
    let places = || std::env::var(PAUSES).unwrap_or_default();
    let places = PLACES.get_or_init(|| places().split(',').map(str::to_owned).collect());
    if places.iter().any(|named| named == place) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let share = f64::from(now.subsec_nanos() % 1000) / 1000.0;
        std::thread::sleep(LONGEST_PAUSE.mul_f64(share));
    }
}

/// The compiler's proof: a call would be no constant.
#[cfg(not(debug_assertions))]
const _: () = assert!(!broken!("every_rule_is_kept"));

#[cfg(test)]
mod tests {
    /// `cargo xtask broken` runs this test with the rule broken: then it must fail, which shows
    /// that the variable reaches the code.
    #[test]
    fn a_rule_is_kept_unless_the_environment_breaks_it() {
        assert!(!broken!("every_rule_is_kept"));
    }
}
