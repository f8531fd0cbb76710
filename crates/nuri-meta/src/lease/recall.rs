//! Handles answers to recalls, and leases that sessions reclaim after a restart.

use nuri_proto::Status;
use nuri_proto::id::{Ino, SessionId};
use nuri_proto::op::meta::{Downgrade, LeaseMode, RecallDone, Reclaim, ReclaimReply};
use nuri_proto::range_map::Span;
use nuri_rpc::CallContext;
use nuri_rules::broken;

use crate::namespace::txn::Finished;
use crate::server::{Core, MetaServer, Recalled};

impl MetaServer {
    pub(crate) fn recall_done(
        &self,
        context: CallContext,
        call: &RecallDone,
    ) -> Result<(), Status> {
        let session = SessionId(context.session);
        let mut core = self.core.lock();
        self.hear(&mut core, session)?;
        let wrote = core.leases.held(call.ino, session) == Some(LeaseMode::Write);
        let (leases, number) = (&mut core.leases, call.number);
        let ended = match call.part {
            Some(Span::ALL) => leases.parts_given_up(call.ino, session, number),
            Some(part) => leases.part_done(call.ino, session, number, part),
            None => leases.recall_done(call.ino, session, number, call.kept),
        };
        if ended {
            core.recalls.remove(&(session, Recalled::Lease(call.ino)));
        }
        if ended && wrote && call.part.is_none() && call.settled {
            self.settled(&mut core, session, call.ino)?;
        }
        self.wake();
        Ok(())
    }

    pub(crate) fn downgrade(&self, context: CallContext, call: &Downgrade) -> Result<(), Status> {
        let session = SessionId(context.session);
        let mut core = self.core.lock();
        self.hear(&mut core, session)?;
        for (ino, number, settled) in &call.leases {
            if core.leases.downgrade(*ino, session, *number) && *settled {
                self.settled(&mut core, session, *ino)?;
            }
        }
        self.wake();
        Ok(())
    }

    /// A writer gave its lease back in order: nobody has left bytes beyond the file's size. If this
    /// is lost with a crash, the next writer looks for some in vain.
    fn settled(&self, core: &mut Core, session: SessionId, ino: Ino) -> Result<(), Status> {
        let mut txn = self.txn(core, session);
        let Ok(mut inode) = txn.inode(ino) else { return Ok(()) };
        match inode.as_file_mut() {
            Ok(file) if file.grown_from.is_some() => file.grown_from = None,
            _ => return Ok(()),
        }
        txn.put_inode(&inode)?;
        let Finished { batch, found, .. } = txn.finish()?;
        self.commit(core, batch, &found).map(|_| ())
    }

    /// `STALE` where the client means an earlier start of the server, which may have heard a part
    /// of the leases. Otherwise the server would no longer wait for the session, although leases
    /// are missing that the session relies on.
    pub(crate) fn reclaim(
        &self,
        context: CallContext,
        call: Reclaim,
    ) -> Result<ReclaimReply, Status> {
        if call.server_boot != self.engine.epoch() && !broken!("reclaim_from_two_starts") {
            return Err(Status::STALE);
        }
        let session = SessionId(context.session);
        let mut core = self.core.lock();
        self.hear(&mut core, session)?;
        let grants =
            call.leases.iter().map(|(ino, mode)| core.leases.reclaim(*ino, session, *mode));
        let leases = grants.collect();
        let mut reclaimed =
            |(ino, spans): &(Ino, Vec<Span>)| core.leases.reclaim_parts(*ino, session, spans);
        let parts = call.parts.iter().map(&mut reclaimed).collect();
        let locks = self.reclaim_locks(&mut core, session, &call.locks);
        call.open.iter().for_each(|ino| core.leases.note_open(*ino, session));
        if !call.more
            && let Some(grace) = &mut core.grace
        {
            grace.came_back(session);
        }
        self.wake();
        Ok(ReclaimReply { leases, parts, locks })
    }
}
