//! Checksums: CRC-32C for bytes on a wire, CRC-64/NVME for bytes on a disk.

use crc_fast::{CrcAlgorithm, checksum};

/// CRC-32C (Castagnoli) of a frame's parts.
pub fn crc32c(data: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, data) as u32
}

/// CRC-64/NVME of stored bytes.
pub fn crc64(data: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, data)
}

/// Mixes words into one well-spread word. Binds a stored block's checksum to its address and
/// version, so that a misdirected or lost write cannot pass for the right block.
pub fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |acc, &word| {
        let x = (acc ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (x ^ (x >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ (x >> 29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_check_values() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
    }

    #[test]
    fn mix_depends_on_order_and_each_word() {
        assert_ne!(mix(&[1, 2]), mix(&[2, 1]));
        assert_ne!(mix(&[1, 2]), mix(&[1, 3]));
        assert_ne!(mix(&[0]), mix(&[0, 0]));
    }
}
