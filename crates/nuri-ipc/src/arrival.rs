//! A long message that is being received: where its bytes go, and how many of them are there.

use crate::requests::{Request, Status};

/// A long message on its way in.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) sink: Sink,
    pub(crate) status: Status,
    pub(crate) done: u64,
}

/// Where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    Request(Request),
    Stored(u32),
}
