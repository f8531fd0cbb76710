//! The volumes of a space: files of a hidden directory, each of a fixed size.
//!
//! A volume is thin: what was never written costs no space. Every server serves every volume
//! ([`serving`]). The server that holds the volume's lock owns it ([`device`]) and orders all
//! requests; the others forward to it ([`crate::peer`]). [`served`] decides between the two, and
//! takes over where the owner is lost.

mod catalog;
mod device;
mod memory;
mod owner;
mod served;
mod serving;

pub use catalog::{Catalog, Shrink, VolumeError, VolumeView};
pub use device::is_sure;
pub use memory::{Boots, Mark};
pub use serving::Serving;
