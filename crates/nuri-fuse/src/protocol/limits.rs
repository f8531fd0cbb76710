//! Sizes that the handshake with the kernel agrees on.

/// Largest transfer of one request, bytes.
pub const MAX_WRITE: u32 = 1 << 20;
