//! Delta debugging: the fewest calls that still fail.

use std::time::{Duration, Instant};

/// Tries of what may fail only now and then.
const TRIES: usize = 3;

/// Leaves calls out, in ever smaller pieces, as long as the rest fails; gives up after `limit`.
pub(super) fn shrink<T: Clone>(
    calls: &[T],
    limit: Duration,
    mut fails: impl FnMut(&[T]) -> bool,
) -> Vec<T> {
    let start = Instant::now();
    let mut calls = calls.to_vec();
    let mut piece = calls.len().div_ceil(2);
    while piece > 0 {
        let mut at = 0;
        while at < calls.len() {
            if start.elapsed() > limit {
                return calls;
            }
            let mut rest = calls.clone();
            rest.drain(at..(at + piece).min(calls.len()));
            if (0..TRIES).any(|_| fails(&rest)) {
                calls = rest;
            } else {
                at += piece;
            }
        }
        piece = if piece == 1 { 0 } else { piece.div_ceil(2) };
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let calls: Vec<u32> = (0..100).collect();
        let fails = |calls: &[u32]| calls.contains(&17) && calls.contains(&80);
        assert_eq!(shrink(&calls, Duration::from_secs(9), fails), [17, 80]);
    }
}
