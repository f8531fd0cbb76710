//! Space on targets that is promised before a write is answered.
//!
//! [`cost`] says what a write may take, [`ledger`] keeps the account of what targets promised, and
//! [`charge`] takes from it for a file's write.

pub(crate) mod charge;
pub(crate) mod cost;
pub(crate) mod ledger;
