//! Who is in the space and who holds what: the authority, its map and its small store.
//!
//! [`transition`] decides (pure), [`store`] keeps, [`authority`] answers calls.

pub mod authority;
pub mod store;
pub mod transition;
