//! Who is in the space and who holds what: the authority, its map and its small store.
//!
//! [`transition`], [`standing`] and [`placement`] decide (pure), [`store`] keeps, [`authority`]
//! answers calls.

pub mod authority;
pub mod placement;
mod scrub;
pub mod standing;
pub mod store;
pub mod transition;
