//! Redundant stripes (mirrors and parity), as writers and readers see them.
//!
//! The client leads a write. It stages the write on all participants at once, directly, and the
//! write is decided when all hold it (`nuri_stripe::writer`). No member relays, so a small write
//! costs one round trip and one flush. Safety rests on the members' rules, and on settling what no
//! client finished (`settle.rs`). It does not rest on the leader or on leases. The same code brings
//! members up to date (`repair.rs`) and proves what they hold (`scrub.rs`).
//!
//! All calls here block. The outside is a [`Port`], which the simulator replaces.

mod commit;
mod degraded;
mod forward;
mod hand_over;
mod parity;
mod part;
mod port;
mod prove;
mod read;
mod read_modify_write;
mod read_repair;
mod repair;
mod resync;
mod rows;
mod rpc;
mod scrub;
mod seen;
mod settle;
mod sources;
mod trim;
mod truncate;
mod unresponsive;
mod write;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nuri_io::buf::BufPool;
use nuri_proto::Status;
use nuri_proto::id::{ChunkKey, GroupId, ObjectId, SessionId};
use nuri_proto::layout::Shape;
use nuri_proto::limit::MAX_PAYLOAD;
use nuri_proto::map::Group;
use nuri_proto::status::RetryClass;
use nuri_proto::stripe::WriteId;

pub use hand_over::Move;
pub use part::Part;
pub use port::{Ask, Port};
pub use prove::{Compared, Proofs, Unheard};
pub use repair::Found;
pub use resync::{Kept, Missed};
pub use rpc::RpcPort;
pub use scrub::{Finding, Flaw, Verdict};
pub use write::{Guess, Written};

use commit::Commits;
use read_repair::Damaged;
use rows::Rows;
use seen::SeenTable;
use unresponsive::Unresponsive;

/// First and longest pause before something is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// One stripe of a redundant group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stripe {
    pub group: GroupId,
    pub shape: Shape,
    pub key: ChunkKey,
}

/// All redundant stripes, as one client knows them.
pub struct Groups<P> {
    pub port: P,
    seen: SeenTable,
    numbers: AtomicU64,
    commits: Commits,
    rows: Rows,
    /// For parity, and for frames that are read to decode others.
    buffers: BufPool,
    unresponsive: Unresponsive,
    damaged: Damaged,
}

impl<P: Port> Groups<P> {
    /// `first` is the number of its first write. It tells its writes from those of an earlier life
    /// of the same session.
    pub fn new(port: P, first: u64) -> Groups<P> {
        let numbers = AtomicU64::new(first);
        let (seen, commits, rows, unresponsive, damaged) = Default::default();
        let buffers = BufPool::new(MAX_PAYLOAD, rows::MOST);
        Groups { port, seen, numbers, commits, rows, buffers, unresponsive, damaged }
    }

    /// Forgets what is known of an object, because the right to it is new or the object was
    /// truncated.
    pub fn forget_object(&self, object: ObjectId) {
        self.seen.forget(object);
        self.rows.forget(object);
    }

    /// The outside.
    pub fn port(&self) -> &P {
        &self.port
    }

    fn next_id(&self, session: SessionId) -> WriteId {
        WriteId { session, number: self.numbers.fetch_add(1, Ordering::Relaxed) }
    }

    /// The group, if what its live members hold is the whole data.
    fn available(&self, id: GroupId) -> Result<Group, Status> {
        let group = self.port.group(id).ok_or(Status::UNREACHABLE)?;
        if group.is_available() { Ok(group) } else { Err(Status::UNREACHABLE) }
    }

    /// Repeats `attempt` while it says "later" and time is left, with a fresh map each time.
    fn until<R>(
        &self,
        limit: Duration,
        mut attempt: impl FnMut() -> Result<R, Status>,
    ) -> Result<R, Status> {
        let end = self.port.now() + limit;
        let mut pause = FIRST_PAUSE;
        loop {
            match attempt() {
                Err(s) if s.retry() == RetryClass::Later && self.port.now() < end => {
                    self.port.pause(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    self.port.refresh();
                }
                outcome => return outcome,
            }
        }
    }
}
