//! Garbage collection: deletes the data of removed files from the targets.

use std::time::Duration;

use nuri_meta::server::MetaServer;
use nuri_proto::id::ObjectId;
use nuri_rpc::Secret;
use nuri_volume::DataPlane;

use crate::joining::connected;

const TICK: Duration = Duration::from_millis(100);
const BATCH: usize = 512;

/// Deletes the data of removed files from the targets, for ever.
pub fn collect_garbage(meta: &MetaServer, address: &str, secret: &Secret) {
    let cluster = connected(address, secret);
    let data = DataPlane::new(&cluster);
    // Where this round is, and whether something of it was left.
    let (mut after, mut left) = (ObjectId(0), false);
    loop {
        let garbage = meta.garbage(after, BATCH).unwrap_or_default();
        let Some((last, _)) = garbage.last() else {
            // What waits for a target that is down is tried again, and holds nothing else up.
            if left {
                let _ = cluster.refresh();
                std::thread::sleep(TICK * 20);
            }
            std::thread::sleep(TICK);
            (after, left) = (ObjectId(0), false);
            continue;
        };
        after = *last;
        let deleted = data.delete(&garbage);
        left |= deleted.len() < garbage.len() || meta.garbage_done(&deleted).is_err();
    }
}
