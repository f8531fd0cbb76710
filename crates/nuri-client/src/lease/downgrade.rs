//! Gives up the write leases of closed files together with the lease of their directory.
//!
//! A client that asks for a directory that was filled here looks at its files next. Without this,
//! each of these files would cost a recall.

use nuri_proto::id::Ino;
use nuri_proto::op::meta::{Downgrade, LeaseMode};
use nuri_rules::broken;

use crate::inode::InodeState;
use crate::lease::acquire::Leases;

/// Leases told of in one call.
const BATCH: usize = 4096;

impl Leases {
    /// Downgrades to reads the leases of those files that are closed and that the server knows as
    /// they are. Leases for which the call fails are recalled one by one.
    pub(crate) fn downgrade_children(&self, files: Vec<Ino>) {
        for batch in files.chunks(BATCH) {
            let share = |ino: &Ino| {
                self.inodes.with_known(*ino, |state| {
                    let is_flushed = self.journal.is_flushed(state.logged);
                    let (number, settled) = if is_flushed { share(state) } else { None }?;
                    state.hold.step_down();
                    Some((*ino, number, settled))
                })
            };
            let leases: Vec<_> = batch.iter().filter_map(share).collect();
            if !leases.is_empty() {
                // A lease that is asked for again meanwhile has a higher number.
                let _ = self.session.call(&Downgrade { leases });
            }
        }
    }
}

/// The grant of a write lease that nobody uses, and whether it leaves nothing beyond the size.
fn share(state: &mut InodeState) -> Option<(u64, bool)> {
    let is_used =
        state.opens > 0 || state.active > 0 || state.hold.revoking || state.asking_whole > 0;
    let is_alone = state.hold.mode == Some(LeaseMode::Write) && state.parts.is_none();
    let is_dirty = state.file.as_ref().is_some_and(|file| file.own.is_dirty());
    let is_dirty = is_dirty && !broken!("share_dirty");
    if is_used || !is_alone || is_dirty {
        return None;
    }
    let settled = state.file.as_ref().is_some_and(|file| file.left_nothing());
    if let Some(file) = &mut state.file {
        file.keep_writable(false);
    }
    Some((state.hold.number, settled))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nuri_proto::id::{ObjectId, SessionId};
    use nuri_proto::layout::Layout;
    use nuri_proto::op::meta::{Attr, FileRecord, Time};

    use super::*;
    use crate::inode::FileData;
    use crate::lease::state::LeaseState;

    fn written() -> InodeState {
        let layout = Layout { generation: 0, components: Vec::new() };
        let (object, inline) = (ObjectId(1), Some(Vec::new()));
        let record = FileRecord { object, layout, truncate_version: 0, inline, punch_from: None };
        let data = FileData::new(SessionId(1), record, &Attr::default());
        let file = Some(Box::new(FileData { is_writable: true, ..data }));
        let hold = LeaseState { number: 7, ..LeaseState::own() };
        InodeState { hold, file, ..InodeState::default() }
    }

    /// Catches `broken!("share_dirty")`.
    #[test]
    fn what_is_open_or_not_known_elsewhere_keeps_its_lease() {
        let mut closed = written();
        assert_eq!(share(&mut closed), Some((7, true)));
        assert!(!closed.file.unwrap().is_writable);
        assert_eq!(share(&mut InodeState { opens: 1, ..written() }), None);
        let held = |hold| InodeState { hold, ..written() };
        assert_eq!(share(&mut held(LeaseState { revoking: true, ..LeaseState::own() })), None);
        assert_eq!(
            share(&mut held(LeaseState { mode: Some(LeaseMode::Read), ..LeaseState::own() })),
            None
        );
        let mut dirty = written();
        let file = dirty.file.as_mut().unwrap();
        file.own.touch(Time::default(), Instant::now());
        assert_eq!(share(&mut dirty), None);
        assert!(dirty.file.unwrap().is_writable);
    }
}
