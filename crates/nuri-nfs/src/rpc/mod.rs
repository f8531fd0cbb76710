//! Remote procedure calls as NFS uses them: values ([`xdr`]), messages ([`message`]) and where one
//! ends and the next begins ([`record`]).

pub mod message;
pub mod record;
pub mod xdr;
