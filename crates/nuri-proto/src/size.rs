//! Sizes as people write and read them, in powers of 1024.

/// Reads 4096, 64K, 1m, 500G, 2T.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let shift = match unit.trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("{text:?} has an unknown unit; use K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size such as 64K"))?;
    number.checked_shl(shift).filter(|n| n >> shift == number).ok_or("too large".into())
}

/// Bytes for people.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse("64K"), Ok(65536));
        assert_eq!(parse("2m"), Ok(2 << 20));
        assert_eq!(parse("1MiB"), Ok(1 << 20));
        assert_eq!(parse("4096"), Ok(4096));
        assert!(parse("12X").is_err());
        assert!(parse("k").is_err());
        assert!(parse("99999999999T").is_err());
        assert_eq!(human(1000), "1000 B");
        assert_eq!(human(3 << 19), "1.5 MiB");
    }
}
