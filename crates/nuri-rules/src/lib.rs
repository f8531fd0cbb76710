//! Rules of the protocols that a test may break, to prove that another test notices.
//!
//! Code asks `broken!("ack_before_log")` where it would otherwise keep the rule of that name. In a
//! build with debug assertions the answer is yes where the environment variable [`VARIABLE`] names
//! the rule. In every other build, releases among them, the macro is the literal `false`: the
//! compiler removes the broken branch, and neither the rule's name nor the variable's is in the
//! program.
//!
//! `docs/broken-rules.txt` lists each rule with the test that fails where it is broken;
//! `cargo xtask broken` proves the list.

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
