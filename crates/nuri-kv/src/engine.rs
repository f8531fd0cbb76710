//! The trait of a storage engine for metadata, and its batches of changes.

/// Number of a committed batch. Batches are durable in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CommitId(pub u64);

/// Changes that become visible and durable together.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Batch {
    pub(crate) changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.push((key, Some(value)));
    }

    pub fn delete(&mut self, key: Vec<u8>) {
        self.changes.push((key, None));
    }

    /// Changes of keys under a prefix, in their order.
    pub fn changes_under<'b>(
        &'b self,
        prefix: &'b [u8],
    ) -> impl Iterator<Item = (&'b [u8], Option<&'b [u8]>)> {
        let under = self.changes.iter().filter(move |(key, _)| key.starts_with(prefix));
        under.map(|(key, value)| (key.as_slice(), value.as_deref()))
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Encoded length, bytes.
    pub fn bytes(&self) -> usize {
        let len =
            |(k, v): &(Vec<u8>, Option<Vec<u8>>)| 8 + k.len() + v.as_ref().map_or(0, Vec::len);
        self.changes.iter().map(len).sum()
    }

    /// All changes, in their order: `None` is a deletion.
    pub fn changes(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref()))
    }

    /// The last change of `key` in this batch: `Some(None)` is a deletion.
    pub fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let (_, value) = self.changes.iter().rev().find(|(k, _)| k == key)?;
        Some(value.as_deref())
    }
}

/// Why the store cannot serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    #[error("metadata store: {0}")]
    Io(String),
    /// A sync failed earlier: what is durable is unknown until the store is opened again.
    #[error("metadata store stopped after a failed write; restart the node")]
    Stopped,
    #[error("metadata store damaged: {0}")]
    Damaged(String),
    #[error("metadata store has format {found}, this program knows {known}; use a newer nuri")]
    Version { found: u32, known: u32 },
    /// Nothing was changed; the caller commits in parts.
    #[error("a batch of {bytes} bytes is more than the metadata log takes at once ({most})")]
    TooLarge { bytes: usize, most: usize },
    #[error("no space left for the metadata store; free some on its file system")]
    NoSpace,
}

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// An ordered key-value store with one writer and many readers.
pub trait Engine: Send + Sync + 'static {
    /// The value as of the last commit.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError>;

    /// Up to `limit` pairs whose keys start with `prefix` and are above `after`, ascending. A key
    /// equal to the prefix is found where `after` is below it, as an empty one is.
    fn scan(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<Pair>, KvError>;

    /// Makes the batch visible and queues it for durability.
    fn commit(&self, batch: Batch) -> Result<CommitId, KvError>;

    /// Returns once the batch and all before it are durable.
    fn wait_durable(&self, id: CommitId) -> Result<(), KvError>;

    /// Number of the last commit.
    fn last_commit(&self) -> CommitId;

    /// Number of a commit that is durable, with all before it. Later ones may be too.
    fn durable(&self) -> CommitId;
}
