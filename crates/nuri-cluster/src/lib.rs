//! Who is in the space and who holds what: the authority, its map and its small store.
//!
//! [`transition`], [`standing`], [`placement`] and [`moving`] decide (pure), [`store`] keeps,
//! [`authority`] answers calls.

pub mod authority;
pub mod moving;
pub mod placement;
mod scrub;
pub mod standing;
pub mod store;
pub mod transition;
