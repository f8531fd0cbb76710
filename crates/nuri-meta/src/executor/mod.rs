//! How the server carries calls out: commits and waits until they are durable ([`commit`],
//! [`pending_commits`]), and waits for leases that are in a call's way ([`waits`]).

pub(crate) mod commit;
pub(crate) mod pending_commits;
pub(crate) mod waits;
