//! Counts how many files and bytes lie on some groups, to tell what a lost target takes with it.
//!
//! The server keeps no account of that. The count is asked for where a target is lost, and then it
//! looks at every file. So the count is bounded in time, and a caller that soon asks again gets the
//! same answer.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use nuri_kv::engine::Engine;
use nuri_proto::Status;
use nuri_proto::id::GroupId;
use nuri_proto::op::meta::{GroupUse, GroupUseReply};
use parking_lot::Mutex;

use crate::namespace::schema::{self, Body, Family, Inode};
use crate::namespace::txn::kv_status;

/// How long files are looked at: shorter than a status is waited for.
const LOOK: Duration = Duration::from_secs(2);
/// How long an answer is taken for the next ones.
const KEPT: Duration = Duration::from_secs(5);
/// Inodes read at once.
const PAGE: usize = 1000;

/// The last answer.
#[derive(Default)]
pub(crate) struct LastUse(Mutex<Option<(Instant, GroupUse, GroupUseReply)>>);

impl LastUse {
    /// Counts, one caller at a time.
    pub(crate) fn of(&self, engine: &dyn Engine, asked: GroupUse) -> Result<GroupUseReply, Status> {
        let mut last = self.0.lock();
        if let Some((at, call, reply)) = &*last
            && at.elapsed() < KEPT
            && *call == asked
        {
            return Ok(*reply);
        }
        let reply = count(engine, &asked.groups.iter().copied().collect(), LOOK)?;
        *last = Some((Instant::now(), asked, reply));
        Ok(reply)
    }
}

fn count(
    engine: &dyn Engine,
    groups: &HashSet<GroupId>,
    look: Duration,
) -> Result<GroupUseReply, Status> {
    let (start, prefix) = (Instant::now(), schema::family_prefix(Family::Inode));
    let (mut use_of, mut after) = (GroupUseReply::default(), prefix.clone());
    loop {
        let page = engine.scan(&prefix, &after, PAGE).map_err(|e| kv_status(&e))?;
        let Some((last, _)) = page.last() else { return Ok(use_of) };
        after.clone_from(last);
        for (_, value) in &page {
            let inode: Inode = schema::decode(value)?;
            let Body::File(file) = &inode.body else { continue };
            if file.inline {
                continue;
            }
            let bytes = file.layout.bytes_on(inode.attr.size, |group| groups.contains(&group));
            use_of.bytes += bytes;
            use_of.files += u64::from(bytes > 0);
        }
        if start.elapsed() > look {
            return Ok(GroupUseReply { is_cut_short: true, ..use_of });
        }
    }
}
