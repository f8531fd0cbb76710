//! What of a striped volume lies only in the memory of its targets (NBD-2).
//!
//! A write to a stripe is answered when its target has it in memory. The client library in this
//! process keeps the bytes until a flush, and sends them again where a target lost them. When the
//! process dies, nothing keeps them. So the volume records, durably and before its first write is
//! answered, which targets have bytes in memory, each with its boot id. The next server of the
//! volume asks these targets to make their bytes durable, and so learns their boot ids:
//!
//! - All boot ids are the same: everything that was answered is durable now.
//! - One boot id is another: that target's memory was lost meanwhile. The volume is *doubtful*.
//!   Every FLUSH fails, also later and elsewhere, until a person accepts the loss.
//!
//! The mark is removed when the last client of a server left and everything was made durable.

use std::fmt::Write;

use nuri_client::Client;
use nuri_proto::Status;
use nuri_proto::id::{BootId, Ino, TargetId};
use nuri_rules::broken;
use parking_lot::Mutex;

/// Of the volume's inode.
const MARK: &[u8] = b"nuri.memory";
const DOUBTFUL: &str = "doubtful";

/// What the volume says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mark {
    /// Nothing that was answered is in memory only.
    Clean,
    /// These targets, at those boots.
    InMemory(Boots),
    Doubtful,
}

/// Targets, and their boots.
pub type Boots = Vec<(TargetId, BootId)>;

impl Mark {
    fn read(client: &Client, ino: Ino) -> Result<Mark, Status> {
        match client.xattr_get(ino, MARK) {
            Err(Status::NODATA) => Ok(Mark::Clean),
            Ok(text) => Ok(Mark::parse(&String::from_utf8_lossy(&text))),
            Err(status) => Err(status),
        }
    }

    fn write(&self, client: &Client, ino: Ino) -> Result<(), Status> {
        let text = match self {
            Mark::Clean => {
                return match client.xattr_remove(ino, MARK) {
                    Err(Status::NODATA) => Ok(()),
                    outcome => outcome,
                };
            }
            Mark::InMemory(boots) => shown(boots),
            Mark::Doubtful => DOUBTFUL.into(),
        };
        client.mark_hidden(ino, MARK, text.as_bytes())
    }

    /// What cannot be read is doubtful.
    fn parse(text: &str) -> Mark {
        let boot = |word: &str| {
            let (target, boot) = word.split_once(':')?;
            let boot = u64::from_str_radix(boot, 16).ok()?;
            Some((TargetId(target.parse().ok()?), BootId(boot)))
        };
        let boots: Option<Boots> = text.split_whitespace().map(boot).collect();
        boots.map_or(Mark::Doubtful, Mark::InMemory)
    }

    /// What it becomes where the targets have these boots now, and made durable what they had.
    pub fn settled(self, now: &Boots) -> Mark {
        match self {
            Mark::InMemory(before) => {
                let all =
                    before.iter().all(|boot| now.contains(boot)) || broken!("boots_forgotten");
                if all { Mark::InMemory(before) } else { Mark::Doubtful }
            }
            mark => mark,
        }
    }
}

fn shown(boots: &Boots) -> String {
    boots.iter().fold(String::new(), |mut text, (target, boot)| {
        let _ = write!(text, "{target}:{:016x} ", boot.0);
        text
    })
}

/// Keeps the mark of a volume that is served.
pub(super) struct TargetMemory(Mutex<Mark>);

impl TargetMemory {
    /// Of a volume that this server has just taken: what others left is made durable, or found to
    /// be lost.
    pub(super) fn take(client: &Client, ino: Ino) -> Result<TargetMemory, Status> {
        let found = Mark::read(client, ino)?;
        if found == Mark::Clean {
            return Ok(TargetMemory(Mutex::new(found)));
        }
        let settled = found.clone().settled(&client.settle_targets(ino)?);
        if settled != found {
            tracing::error!("nbd: inode {ino}: a target lost what was answered and not flushed");
            settled.write(client, ino)?;
        }
        Ok(TargetMemory(Mutex::new(settled)))
    }

    /// Before a write is answered.
    pub(super) fn note_write(&self, client: &Client, ino: Ino) -> Result<(), Status> {
        let mut mark = self.0.lock();
        if *mark == Mark::Clean {
            let now = Mark::InMemory(client.settle_targets(ino)?);
            now.write(client, ino)?;
            *mark = now;
        }
        Ok(())
    }

    /// Whether a flush may succeed.
    pub(super) fn check(&self) -> Result<(), Status> {
        if *self.0.lock() == Mark::Doubtful { Err(Status::IO) } else { Ok(()) }
    }

    /// Answered bytes could not be made durable, and nobody will be told of it by a flush.
    pub(super) fn doubt(&self, client: &Client, ino: Ino) -> Result<(), Status> {
        *self.0.lock() = Mark::Doubtful;
        Mark::Doubtful.write(client, ino)
    }

    /// All was made durable, and no client is left.
    pub(super) fn leave(&self, client: &Client, ino: Ino) -> Result<(), Status> {
        let mut mark = self.0.lock();
        if let Mark::InMemory(_) = *mark {
            Mark::Clean.write(client, ino)?;
            *mark = Mark::Clean;
        }
        Ok(())
    }
}

/// Whether answered bytes of the volume are known to be lost.
pub(super) fn is_doubtful(client: &Client, ino: Ino) -> Result<bool, Status> {
    Ok(Mark::read(client, ino)? == Mark::Doubtful)
}

/// A person accepts that.
pub(super) fn accept_loss(client: &Client, ino: Ino) -> Result<(), Status> {
    Mark::Clean.write(client, ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boots(pairs: &[(u32, u64)]) -> Boots {
        pairs.iter().map(|(target, boot)| (TargetId(*target), BootId(*boot))).collect()
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let some = boots(&[(1, 0x5), (12, u64::MAX)]);
        assert_eq!(Mark::parse(&shown(&some)), Mark::InMemory(some));
        for wrong in [DOUBTFUL, "1", "1:", "1:x", "x:1", "1:1 2"] {
            assert_eq!(Mark::parse(wrong), Mark::Doubtful, "{wrong}");
        }
    }

    /// Catches `broken!("boots_forgotten")`.
    #[test]
    fn another_boot_of_one_target_makes_a_volume_doubtful() {
        let before = || Mark::InMemory(boots(&[(1, 10), (2, 20)]));
        assert_eq!(before().settled(&boots(&[(2, 20), (1, 10), (3, 30)])), before());
        assert_eq!(before().settled(&boots(&[(1, 10), (2, 21)])), Mark::Doubtful);
        assert_eq!(before().settled(&boots(&[(1, 10)])), Mark::Doubtful, "it is gone");
        assert_eq!(Mark::Clean.settled(&boots(&[(1, 11)])), Mark::Clean);
        assert_eq!(Mark::Doubtful.settled(&boots(&[(1, 10)])), Mark::Doubtful);
    }
}
