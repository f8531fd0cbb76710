//! When scrubs begin: pure changes of the policy in the map.

use nuri_proto::map::ScrubPolicy;
use nuri_proto::op::cluster::ScrubChange;

const DAY: u64 = 24 * 3600;

/// What somebody asked for, at `now` seconds since 1970.
pub fn change(policy: &mut ScrubPolicy, change: ScrubChange, now: u64) {
    match change {
        ScrubChange::Start { rate } => start(policy, rate, now),
        ScrubChange::Stop => policy.is_stopped = true,
        ScrubChange::EveryDays(days) => policy.every_days = days,
    }
}

/// Begins what is due; says whether the policy changed. The first one is due that many days after
/// the space was made.
pub fn tick(policy: &mut ScrubPolicy, now: u64) -> bool {
    let Some(days) = policy.every_days else { return false };
    if policy.started == 0 || policy.started > now {
        policy.started = now;
        return now > 0;
    }
    let is_due = now - policy.started >= u64::from(days) * DAY;
    if is_due {
        start(policy, ScrubPolicy::RATE, now);
    }
    is_due
}

fn start(policy: &mut ScrubPolicy, rate: u64, now: u64) {
    let every_days = policy.every_days;
    let number = policy.number + 1;
    *policy = ScrubPolicy { number, started: now, is_stopped: false, rate, every_days };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrubs_begin_when_they_are_due() {
        let mut policy = ScrubPolicy::default();
        assert!(tick(&mut policy, 100));
        assert!(!tick(&mut policy, 100 + 7 * DAY - 1));
        assert_eq!(policy.number, 0);
        assert!(tick(&mut policy, 100 + 7 * DAY));
        assert_eq!((policy.number, policy.rate), (1, ScrubPolicy::RATE));
        change(&mut policy, ScrubChange::Start { rate: 5 }, 9 * DAY);
        assert_eq!((policy.number, policy.rate), (2, 5));
        change(&mut policy, ScrubChange::Stop, 9 * DAY);
        assert!(policy.is_stopped && !tick(&mut policy, 16 * DAY - 1));
        assert!(tick(&mut policy, 16 * DAY), "the schedule goes on");
        assert!(!policy.is_stopped);
        change(&mut policy, ScrubChange::EveryDays(None), 16 * DAY);
        assert!(!tick(&mut policy, 1000 * DAY));
    }

    #[test]
    fn a_clock_that_steps_back_begins_the_schedule_anew() {
        let mut policy = ScrubPolicy { started: 50 * DAY, ..ScrubPolicy::default() };
        assert!(tick(&mut policy, 2 * DAY));
        assert_eq!((policy.number, policy.started), (0, 2 * DAY));
    }
}
