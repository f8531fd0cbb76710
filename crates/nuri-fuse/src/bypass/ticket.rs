//! Tickets of open files (rule BYPASS-1). Random: they cannot be guessed.

use std::collections::HashMap;

use nuri_proto::Status;
use nuri_rules::broken;

/// What names an open file to the bypass.
pub(super) type Secret = [u8; 16];

pub(super) fn random() -> Result<Secret, Status> {
    let mut secret = Secret::default();
    getrandom::fill(&mut secret).map_err(|_| Status::IO)?;
    Ok(secret)
}

#[derive(Default)]
pub(super) struct Tickets {
    files: HashMap<Secret, u64>,
    issued: HashMap<u64, Secret>,
}

impl Tickets {
    /// The file's ticket, the same as before where it has one.
    pub(super) fn of(&mut self, fh: u64) -> Result<Secret, Status> {
        if let Some(secret) = self.issued.get(&fh) {
            return Ok(*secret);
        }
        let secret = random()?;
        self.files.insert(secret, fh);
        self.issued.insert(fh, secret);
        Ok(secret)
    }

    /// The open file.
    pub(super) fn file(&self, secret: &Secret) -> Option<u64> {
        self.files.get(secret).copied()
    }

    pub(super) fn revoke(&mut self, fh: u64) {
        if let Some(secret) = self.issued.remove(&fh).filter(|_| !broken!("ticket_stays")) {
            self.files.remove(&secret);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches `broken!("ticket_stays")`.
    #[test]
    fn a_ticket_ends_with_its_file() {
        let mut tickets = Tickets::default();
        let (one, two) = (tickets.of(1).unwrap(), tickets.of(2).unwrap());
        assert_ne!(one, two);
        assert_eq!(tickets.of(1), Ok(one));
        assert_eq!(tickets.file(&one), Some(1));
        tickets.revoke(1);
        assert_eq!((tickets.file(&one), tickets.file(&two)), (None, Some(2)));
        assert_ne!(tickets.of(1).unwrap(), one);
    }
}
