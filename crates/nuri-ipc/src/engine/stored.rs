//! Messages that came before any receive asked for them.

use crate::heap::Lent;
use crate::matching::Key;
use crate::requests::Status;

/// What one costs beside its bytes, so that empty ones are bounded too.
const OVERHEAD: usize = 128;

/// A message, whole or as far as it has come.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) status: Status,
    pub(crate) bytes: Vec<u8>,
    /// The message where its sender lent it.
    pub(crate) lent: Option<Lent>,
    /// Where it waits for a receive.
    pub(crate) key: Option<Key>,
    counted: usize,
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    messages: Vec<Option<Message>>,
    free: Vec<u32>,
    bytes: usize,
}

impl Stored {
    /// Whether a message of so many bytes keeps the whole within a limit.
    pub(crate) fn has_room(&self, len: u64, limit: usize) -> bool {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.bytes.saturating_add(len).saturating_add(OVERHEAD) <= limit
    }

    /// Takes a message in.
    pub(crate) fn add(&mut self, status: Status, bytes: Vec<u8>, lent: Option<Lent>) -> u32 {
        let own = if lent.is_some() { 0 } else { status.len as usize };
        let counted = own + OVERHEAD;
        self.bytes += counted;
        let message = Some(Message { status, bytes, lent, key: None, counted });
        if let Some(id) = self.free.pop() {
            self.messages[id as usize] = message;
            return id;
        }
        self.messages.push(message);
        (self.messages.len() - 1) as u32
    }

    /// One of them.
    pub(crate) fn get(&mut self, id: u32) -> Option<&mut Message> {
        self.messages.get_mut(id as usize)?.as_mut()
    }

    /// Gives one away.
    pub(crate) fn remove(&mut self, id: u32) -> Option<Message> {
        let message = self.messages.get_mut(id as usize)?.take()?;
        self.bytes -= message.counted;
        self.free.push(id);
        Some(message)
    }

    /// Memory taken, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.bytes
    }
}
