//! Buffers for messages, which are used again. So a large buffer is not made and filled with zeros
//! for every call. A connection has one only while a message comes, so idle clients cost nothing.

use parking_lot::Mutex;

/// Kept at once, and bytes of one that is kept.
const MOST: usize = 16;
const LARGEST: usize = 2 << 20;

/// See the module's text.
#[derive(Debug, Default)]
pub struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// One that holds anything, or nothing.
    pub fn take(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_default()
    }

    /// It is used no more.
    pub fn give(&self, buffer: Vec<u8>) {
        let mut kept = self.0.lock();
        if buffer.len() <= LARGEST && kept.len() < MOST {
            kept.push(buffer);
        }
    }
}
