//! Sizes as people write and read them, in powers of 1024.

/// Why a text is no size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SizeError {
    #[error("unknown unit in {0:?}: expected K, M, G or T, as in 64K")]
    Unit(String),
    #[error("{0:?} is not a size: expected a whole number and a unit, as in 64K")]
    Number(String),
    #[error("{0:?} is too large")]
    TooLarge(String),
}

/// Reads 4096, 64K, 1m, 500G, 2T.
///
/// # Errors
/// What of the text is wrong.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let shift = match unit.trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(SizeError::Unit(text.into())),
    };
    let number: u64 = digits.parse().map_err(|_| SizeError::Number(text.into()))?;
    let bytes = number.checked_shl(shift).filter(|n| n >> shift == number);
    bytes.ok_or_else(|| SizeError::TooLarge(text.into()))
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
