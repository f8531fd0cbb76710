//! Which server has a floating address: the server that holds the address's lock, for as long as it
//! is sure of the lock.
//!
//! The metadata server gives the lock to another server when the session of this one ended, 6 s
//! after it was heard last. This server doubts its leases after 3.5 s already, and gives the
//! address up then. So both never have it at once.

use nuri_rules::broken;

/// What a server sees of the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// The metadata server was heard lately.
    pub(super) is_heard: bool,
    /// The lock is this server's, as far as it was told.
    pub(super) has_lock: bool,
}

/// What is to be done with the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Move {
    Take,
    Leave,
}

/// Whether the address is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Holder {
    #[default]
    Elsewhere,
    Here,
}

impl Holder {
    pub(super) fn see(&mut self, seen: Seen) -> Option<Move> {
        let is_sure = seen.has_lock && (seen.is_heard || broken!("nfs_address_unheard"));
        match (*self, is_sure) {
            (Holder::Elsewhere, true) => {
                *self = Holder::Here;
                Some(Move::Take)
            }
            (Holder::Here, false) => {
                *self = Holder::Elsewhere;
                Some(Move::Leave)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_where_the_lock_is_for_sure() {
        let mut holder = Holder::default();
        let mut see = |is_heard, has_lock| holder.see(Seen { is_heard, has_lock });
        assert_eq!(see(true, false), None);
        assert_eq!(see(false, true), None, "who hears nothing takes nothing");
        assert_eq!(see(true, true), Some(Move::Take));
        assert_eq!(see(true, true), None);
        assert_eq!(see(false, true), Some(Move::Leave), "the lock may be another's by now");
        assert_eq!(see(true, true), Some(Move::Take));
        assert_eq!(see(true, false), Some(Move::Leave));
        assert_eq!(see(false, false), None);
    }
}
