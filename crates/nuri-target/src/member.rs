//! Answers the calls of `op::member`: this node's targets as members of redundant groups.

use nuri_proto::Status;
use nuri_proto::id::{ChunkKey, Epoch};
use nuri_proto::limit::MAX_LISTED;
use nuri_proto::op::member::{
    MemberAbort, MemberChanged, MemberCommit, MemberForget, MemberHeld, MemberInstall, MemberRead,
    MemberReadReply, MemberStage, Purpose,
};
use nuri_proto::stripe::{Change, Covers, Earlier, Held, Stage, StageReply, Version};
use nuri_rpc::{Reply, Request, reply_to};
use nuri_rules::broken;

use crate::server::{TargetServer, check_range, payer_of};
use crate::store;

/// No write has a version of an epoch that is still to come: taken for real, no later write would
/// ever be newer.
fn check_version(version: Version, epoch: Epoch) -> Result<(), Status> {
    if version.epoch() <= epoch { Ok(()) } else { Err(Status::RETRY) }
}

/// Whatever version a stage names beside its own is one that somebody wrote: none is newer.
fn check_stage(stage: &Stage, epoch: Epoch) -> Result<(), Status> {
    check_version(stage.version, epoch)?;
    check_version(stage.covers.newest(), epoch)?;
    match stage.earlier {
        Earlier::Unknown => Ok(()),
        Earlier::Decided(version) | Earlier::Aborted(version) => check_version(version, epoch),
    }
}

impl TargetServer {
    pub(crate) fn member_stage(
        &self,
        call: &MemberStage,
        request: &Request<'_>,
    ) -> Result<StageReply, Status> {
        let (Change::Bytes { offset } | Change::Xor { offset }) = call.change;
        check_range(call.key, offset, request.payload.len())?;
        let _entered = self.epochs.enter_on(call.target, call.stage.group, call.epoch)?;
        check_stage(&call.stage, call.epoch)?;
        let store = self.store(call.target)?;
        let (payer, data) = (payer_of(request, call.room), request.payload);
        Ok(store.stage_for(payer, call.key, &call.stage, call.change, data)?)
    }

    pub(crate) fn member_commit(&self, call: &MemberCommit) -> Result<(), Status> {
        let store = self.store(call.target)?;
        for (key, version) in &call.decided {
            store.commit(*key, *version)?;
        }
        Ok(())
    }

    pub(crate) fn member_abort(&self, call: &MemberAbort) -> Result<Held, Status> {
        let _entered = self.epochs.enter_on(call.target, call.group, call.epoch)?;
        check_version(call.version, call.epoch)?;
        let (store, version) = (self.store(call.target)?, call.version);
        Ok(match call.drops {
            true => store.abort(call.key, call.group, version)?,
            false => store.promise(call.key, call.group, version)?,
        })
    }

    pub(crate) fn member_held(&self, call: &MemberHeld) -> Result<Held, Status> {
        // What is answered is evidence for a decision of this epoch.
        let _entered = match call.in_doubt {
            true => self.epochs.enter(call.group, call.epoch)?,
            false => self.epochs.enter_on(call.target, call.group, call.epoch)?,
        };
        let held = self.store(call.target)?.held(call.key)?;
        self.admission.check_lease().map(|()| held)
    }

    pub(crate) fn member_read(&self, request: &Request<'_>) -> Reply {
        let mut buf = request.buffers.take();
        let mut reply = reply_to::<MemberRead>(request.args, |call| {
            check_range(call.key, call.offset, call.len as usize)?;
            if call.purpose == Purpose::Use {
                self.epochs.check_read(call.group, call.target)?;
            }
            buf.set_len(call.len as usize);
            let store = self.store(call.target)?;
            match store.read_member(call.key, call.offset, &mut buf, call.decided, call.purpose)? {
                store::MemberRead::Undecided => Err(Status::UNDECIDED),
                store::MemberRead::Read(covers) => {
                    self.admission.check_lease().map(|()| MemberReadReply { covers })
                }
            }
        });
        if reply.status == Status::OK {
            reply.payload = Some(buf);
        }
        reply
    }

    pub(crate) fn member_install(
        &self,
        call: &MemberInstall,
        request: &Request<'_>,
    ) -> Result<Held, Status> {
        check_range(call.key, call.install.offset, request.payload.len())?;
        let _entered = self.epochs.enter(call.install.group, call.epoch)?;
        check_version(call.install.covers.newest(), call.epoch)?;
        Ok(self.store(call.target)?.install(call.key, &call.install, request.payload)?)
    }

    pub(crate) fn member_forget(&self, call: &MemberForget) -> Result<(), Status> {
        let _entered = self.epochs.enter(call.group, call.epoch)?;
        // Writes that somebody may still end are of this epoch or later.
        let epoch = if call.was_cut_off { Epoch(u64::MAX) } else { call.epoch };
        let forgotten = self.store(call.target)?.forget(call.key, &call.covers, epoch)?;
        if forgotten { Ok(()) } else { Err(Status::RETRY) }
    }

    pub(crate) fn member_changed(
        &self,
        call: &MemberChanged,
    ) -> Result<Vec<(ChunkKey, Covers)>, Status> {
        // What is answered is all that was ever taken in earlier epochs (EPOCH-2), proven or not
        // (EPOCH-5).
        let _entered = match broken!("list_any_epoch") {
            true => None,
            false => Some(self.epochs.enter(call.group, call.epoch)?),
        };
        let limit = call.limit.min(MAX_LISTED) as usize;
        Ok(self.store(call.target)?.changed(call.group, call.since, call.after, limit))
    }
}

#[cfg(test)]
mod tests {
    use nuri_proto::id::GroupId;
    use nuri_proto::stripe::{Members, WriteId};

    use super::*;

    #[test]
    fn no_stage_names_a_version_of_an_epoch_to_come() {
        let (now, to_come) = (Version::new(Epoch(3), 9), Version::new(Epoch(4), 0));
        let stage = |version, covers, earlier| Stage {
            group: GroupId(1),
            version,
            id: WriteId::default(),
            base: Covers::default(),
            covers: Covers(vec![now, covers]),
            participants: Members::of([0, 1]),
            earlier,
        };
        let check = |version, covers, earlier| {
            check_stage(&stage(version, covers, earlier), Epoch(3)).is_ok()
        };
        assert!(check(now, now, Earlier::Unknown));
        assert!(check(now, now, Earlier::Decided(now)));
        assert!(!check(to_come, now, Earlier::Unknown));
        assert!(!check(now, to_come, Earlier::Unknown));
        assert!(!check(now, now, Earlier::Decided(to_come)));
        assert!(!check(now, now, Earlier::Aborted(to_come)));
    }
}
