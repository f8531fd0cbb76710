//! Space on targets that is promised before a write is answered: what a write may cost ([`cost`]),
//! the account of what targets promised ([`ledger`]), and what a file's
//! write takes from it ([`charge`]).

pub(crate) mod charge;
pub(crate) mod cost;
pub(crate) mod ledger;
