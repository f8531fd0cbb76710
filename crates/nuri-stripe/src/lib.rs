//! How bytes lie on stripe groups, and how writes become atomic. Pure state machines: events and
//! times in, effects out. The numbered rules are those of `docs/ARCHITECTURE.md`, "Rules".

pub mod code;
pub mod locate;
pub mod member;
pub mod settle;
pub mod unsynced;
pub mod writer;
