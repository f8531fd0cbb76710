//! How the server carries calls out. It commits changes and waits until they are durable
//! ([`commit`], [`pending_commits`]). It also waits for leases that are in the way of a call
//! ([`waits`]).

pub(crate) mod commit;
pub(crate) mod pending_commits;
pub(crate) mod waits;
