//! Remote procedure calls as NFS uses them: values ([`xdr`]), messages ([`message`]), and the
//! records that separate messages ([`record`]).

pub mod message;
pub mod record;
pub mod xdr;
