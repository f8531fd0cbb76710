//! Protocol versions. A handshake agrees on the highest version that both sides speak.

/// 1: first release. 2: a proof says the role and covers the address that was dialled.
/// 4: that a cut is done is told with a publication or a growth.
pub const PROTOCOL_MIN: u16 = 4;
pub const PROTOCOL_MAX: u16 = 4;

/// The version to speak with a peer that offers `min..=max`, if any.
pub fn agree(min: u16, max: u16) -> Option<u16> {
    let version = max.min(PROTOCOL_MAX);
    (version >= min && version >= PROTOCOL_MIN).then_some(version)
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_common_version_is_none() {
        assert_eq!(super::agree(1, 7), Some(4));
        assert_eq!(super::agree(1, 3), None);
        assert_eq!(super::agree(5, 7), None);
        assert_eq!(super::agree(0, 0), None);
    }
}
