//! The news of the space in a node's log: members that leave and return, contact with the first
//! node, and own targets that fill up.

use std::collections::BTreeSet;

use nuri_cluster::news::{Tone, news};
use nuri_proto::id::TargetId;
use nuri_proto::map::{Map, is_nearly_full};
use nuri_proto::op::cluster::TargetReport;

/// What was told already.
#[derive(Default)]
pub struct Told {
    map: Option<Map>,
    full: BTreeSet<TargetId>,
    is_out_of_contact: bool,
}

impl Told {
    /// Tells how this map differs from the one before.
    pub fn of_map(&mut self, map: Map) {
        for (tone, said) in self.map.iter().flat_map(|old| news(old, &map)) {
            match tone {
                Tone::Worse => tracing::warn!("{said}"),
                Tone::Better => tracing::info!("{said}"),
            }
        }
        self.map = Some(map);
    }

    /// Tells where the first node stopped answering, or began to again.
    pub fn of_contact(&mut self, answers: bool) {
        if std::mem::replace(&mut self.is_out_of_contact, !answers) != answers {
            return;
        }
        match answers {
            true => tracing::info!("the first node answers again"),
            false => tracing::warn!("the first node does not answer; it is asked again and again"),
        }
    }

    /// Tells of this node's targets that became nearly full, or are so no more.
    pub fn of_targets(&mut self, reports: &[TargetReport]) {
        for report in reports {
            let is_full = is_nearly_full(report.used, report.size);
            let (used, size) = (report.used >> 20, report.size >> 20);
            match is_full {
                true if self.full.insert(report.id) => tracing::warn!(
                    "target {} is nearly full: {used} of {size} MiB; new files avoid it",
                    report.id
                ),
                false if self.full.remove(&report.id) => {
                    tracing::info!("target {} has room again: {used} of {size} MiB", report.id);
                }
                _ => {}
            }
        }
    }
}
