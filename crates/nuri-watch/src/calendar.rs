//! Times as text, in UTC: for records, and for people.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// Seconds since 1970.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// As RFC 3339 says it, to the second.
pub fn utc(unix: u64) -> String {
    let (year, month, day) = civil(unix / DAY);
    let (hour, minute, second) = (unix % DAY / 3600, unix % 3600 / 60, unix % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// For people: weekday, date and minute.
pub fn day_and_minute(unix: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let (year, month, day) = civil(unix / DAY);
    let (hour, minute) = (unix % DAY / 3600, unix % 3600 / 60);
    let name = DAYS[(unix / DAY % 7) as usize];
    format!("{name} {year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// The date so many days after 1970-01-01. Years are counted from 1 March, which puts the leap day
/// at their end.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let days = days + 719_468;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / (ERA - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
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
    }

    #[test]
    fn weekdays() {
        assert_eq!(day_and_minute(0), "Thu 1970-01-01 00:00 UTC");
        assert_eq!(day_and_minute(1_735_689_599), "Tue 2024-12-31 23:59 UTC");
    }
}
