//! Which nodes are in the space and which targets hold what: the authority, its map and its small
//! store.
//!
//! The pure parts decide: [`transition`], [`standing`], [`placement`] and [`moving`]. [`news`]
//! tells what was decided. [`credible`] says which reports are refused unread, and [`sound`] what a
//! map must be like. [`store`] keeps the map, and [`authority`] answers calls.

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
