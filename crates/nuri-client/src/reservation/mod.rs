//! Space on targets that is promised before a write is answered: what a write may cost ([`cost`]),
//! the account of what targets promised ([`ledger`]), what a file's write takes from it
//! ([`charge`]), and the space of `fallocate` ([`fill`]).

pub(crate) mod charge;
pub(crate) mod cost;
mod fill;
pub(crate) mod ledger;
