//! Protocol versions. A handshake agrees on the highest version that both sides speak.

/// 1: first release. 2: a proof says the role and covers the address that was dialled.
/// 3: a client's log may change access control lists.
pub const PROTOCOL_MIN: u16 = 3;
pub const PROTOCOL_MAX: u16 = 3;

/// The version to speak with a peer that offers `min..=max`, if any.
pub fn agree(min: u16, max: u16) -> Option<u16> {
    let version = max.min(PROTOCOL_MAX);
    (version >= min && version >= PROTOCOL_MIN).then_some(version)
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_common_version_is_none() {
        assert_eq!(super::agree(1, 7), Some(3));
        assert_eq!(super::agree(1, 2), None);
        assert_eq!(super::agree(4, 7), None);
        assert_eq!(super::agree(0, 0), None);
    }
}
