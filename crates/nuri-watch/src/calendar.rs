//! Times as text, in UTC: for records, and for people.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Seconds since 1970.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// As RFC 3339 says it, to the second.
pub fn utc(unix: u64) -> String {
    said(unix, "%Y-%m-%dT%H:%M:%SZ")
}

/// For people: weekday, date and minute.
pub fn day_and_minute(unix: u64) -> String {
    said(unix, "%a %Y-%m-%d %H:%M UTC")
}

/// For people: date and second.
pub fn day_and_second(unix: u64) -> String {
    said(unix, "%Y-%m-%d %H:%M:%S UTC")
}

/// What lies beyond the calendar's years is its last moment.
fn said(unix: u64, form: &str) -> String {
    let time = i64::try_from(unix).ok().and_then(|unix| Timestamp::from_second(unix).ok());
    time.unwrap_or(Timestamp::MAX).strftime(form).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `date -u -d @N` says it.
    #[test]
    fn dates_are_those_of_the_calendar() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (unix, text) in cases {
            assert_eq!(utc(unix), text);
        }
        assert_eq!(day_and_second(951_782_399), "2000-02-28 23:59:59 UTC");
        assert!(utc(u64::MAX).starts_with("9999-"), "{}", utc(u64::MAX));
    }

    #[test]
    fn weekdays() {
        assert_eq!(day_and_minute(0), "Thu 1970-01-01 00:00 UTC");
        assert_eq!(day_and_minute(1_735_689_599), "Tue 2024-12-31 23:59 UTC");
    }
}
