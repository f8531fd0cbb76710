//! Who is in the space and who holds what: the authority, its map and its small store.
//!
//! [`transition`], [`standing`], [`placement`] and [`moving`] decide (pure), [`news`] tells of
//! what was decided, [`credible`] says what is not even looked at, [`sound`] what a map must be
//! like, [`store`] keeps, [`authority`] answers calls.

pub mod authority;
mod choice;
mod credible;
pub mod moving;
pub mod news;
pub mod placement;
mod scrub;
pub mod sound;
pub mod standing;
pub mod store;
pub mod transition;
