//! What the server serves: a block device with a name.

use std::sync::Arc;
use std::time::Instant;

use crate::age::is_over;
use crate::client::Client;
use crate::order::Order;
use crate::protocol::Errno;

/// A device of which bytes are read and written.
pub trait Export: Send + Sync + 'static {
    fn about(&self) -> About;

    /// In which its requests come, over all connections.
    fn order(&self) -> &Order;

    /// # Errors
    /// Why the bytes cannot be had. Where any of these says `Shutdown`, the client is left without
    /// an answer: it may repeat its requests, here or elsewhere.
    fn read(&self, asked: Asked<'_>, offset: u64, out: &mut [u8]) -> Result<(), Errno>;

    /// Returns when the bytes are where a crash of this server cannot take them, or durable.
    ///
    /// # Errors
    /// Why not all of them are.
    fn write(&self, asked: Asked<'_>, offset: u64, data: &[u8], kept: Kept) -> Result<(), Errno>;

    /// Makes durable all writes that were answered.
    ///
    /// # Errors
    /// Why they are not.
    fn flush(&self, asked: Asked<'_>) -> Result<(), Errno>;

    /// The bytes read as zeros and cost no room, where that can be.
    ///
    /// # Errors
    /// Why not.
    fn trim(&self, asked: Asked<'_>, offset: u64, len: u64) -> Result<(), Errno>;

    /// The bytes read as zeros.
    ///
    /// # Errors
    /// Why not; `NotSupported` where it shall be faster than writing them, and is not.
    fn write_zeroes(
        &self,
        asked: Asked<'_>,
        offset: u64,
        len: u64,
        how: Zeroing,
    ) -> Result<(), Errno>;

    /// What is data and what is a hole, from the offset on, at most so many and `len` bytes.
    ///
    /// # Errors
    /// Why that cannot be known.
    fn extents(
        &self,
        asked: Asked<'_>,
        offset: u64,
        len: u32,
        most: usize,
    ) -> Result<Vec<Extent>, Errno>;

    /// Another client comes: the size may be another one by now.
    ///
    /// # Errors
    /// Where that cannot be known.
    fn look_anew(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Failed flushes that a new client needs not be told of.
    fn told_failures(&self) -> u64 {
        self.order().failures()
    }

    /// The time of this server, where other servers forward requests to it
    /// ([`crate::peer::Until`]).
    fn stamp(&self) -> Option<u32> {
        None
    }
}

/// What is known of how a request came.
#[derive(Clone, Copy)]
pub struct Asked<'c> {
    /// It is not served from then on.
    pub deadline: Instant,
    /// The client's number of it.
    pub cookie: u64,
    pub(crate) client: &'c Client,
}

impl Asked<'_> {
    pub(crate) fn is_too_old(&self) -> bool {
        is_over(self.deadline, Instant::now())
    }

    /// Whether the client left: it may have repeated the request elsewhere.
    pub(crate) fn is_left(&self) -> bool {
        self.client.is_left()
    }
}

/// Where written bytes are when the write is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    BeyondACrash,
    Durably,
}

/// How bytes are zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zeroing {
    /// Their room stays theirs; else it is given back.
    pub keeps_room: bool,
    /// Only if that is much faster than writing zeros.
    pub is_fast: bool,
}

/// Bytes that are all data or all a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub len: u32,
    pub is_hole: bool,
}

/// What a client is told of an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    pub name: String,
    pub description: String,
    pub size: u64,
    pub read_only: bool,
    /// Smaller changes change the rest of the block too.
    pub block: u32,
    /// Bytes that are best read and written at once.
    pub preferred_block: u32,
}

/// Why an export cannot be had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// There is none of this name. With those that there are.
    #[error("there is no export {name:?} here; {}", listed(.there))]
    Unknown { name: String, there: Vec<String> },
    #[error("{0}")]
    Policy(String),
}

pub(crate) fn listed(names: &[String]) -> String {
    const SHOWN: usize = 20;
    match names {
        [] => "there are none".into(),
        names if names.len() <= SHOWN => format!("there are {}", names.join(", ")),
        names => {
            format!("there are {}, and {} more", names[..SHOWN].join(", "), names.len() - SHOWN)
        }
    }
}

/// The exports of a server.
pub trait Exports: Send + Sync + 'static {
    /// Their names.
    ///
    /// # Errors
    /// Where they cannot be known now.
    fn names(&self) -> Result<Vec<String>, Refusal>;

    /// What there is to know of an export, without taking it. The empty name is the default one.
    ///
    /// # Errors
    /// Why it cannot be had.
    fn about(&self, name: &str) -> Result<About, Refusal>;

    /// Takes an export for a connection.
    ///
    /// # Errors
    /// Why it cannot be had.
    fn open(&self, name: &str) -> Result<Arc<dyn Export>, Refusal>;
}
