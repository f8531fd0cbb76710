//! The one table of clocks. Their relations are checked at compile time; tests read them from here.

use std::time::Duration;

/// A node sends a heartbeat to the authority this often.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
/// Silence after which the authority calls a node down.
pub const FAILURE_DETECTION: Duration = Duration::from_secs(2);
/// A client's session ends when the metadata server heard nothing for this long.
pub const SESSION: Duration = Duration::from_secs(6);
/// A client renews its session this often (its event poll returns at the latest then). It counts
/// from when it sent the poll, so up to two of these pass between one renewal and the next.
pub const SESSION_RENEW: Duration = Duration::from_millis(500);
/// How long a restarted metadata server waits for known sessions to reclaim what they held.
pub const GRACE: Duration = SESSION;
/// A holder that does not obey a recall for this long is evicted (its flush may have to wait for
/// a restarting target meanwhile).
pub const RECALL: Duration = Duration::from_secs(15);
/// A target accepts changes, and answers reads, this long after it sent a heartbeat that was
/// answered: then the authority may believe it gone.
pub const SERVICE: Duration = FAILURE_DETECTION;
/// What is added before one clock's end of a lease is relied on by another.
pub const DRIFT: Duration = Duration::from_millis(250);
/// A client that was not renewed for this long stops trusting its leases and empties the kernel's
/// caches.
pub const SUSPEND: Duration = Duration::from_millis(3500);
/// Nothing that the kernel cached outlives the last renewal of the session by more than this.
pub const CLIENT_LEASE: Duration = Duration::from_secs(5);
/// A wait for a lock may be blocked only by waits that were passed often. It is let go after one to
/// two of these periods.
pub const LOCK_RELAX: Duration = Duration::from_secs(2);
/// A client gives up a request after this long; the program sees `EIO`.
pub const REQUEST: Duration = Duration::from_secs(30);
/// A member of a redundant group that does not answer, and takes nothing of what it was sent, for
/// this long is taken for lost, until it answers again or its group goes on without it.
pub const MEMBER_TIMEOUT: Duration = Duration::from_millis(1500);
/// A target whose machine was started anew waits so long for the members that it is to be compared
/// with. Then it leaves the groups whose other members are beyond doubt, if those that answered
/// hold the data.
pub const PROOF: Duration = Duration::from_secs(8);
/// A decided write is told to its members at the latest after this long.
pub const COMMIT_DELAY: Duration = Duration::from_millis(50);
/// A copy of the metadata that does not answer for this long is given up.
pub const COPY: Duration = FAILURE_DETECTION;
/// Unsynced data of a quiet file goes to the targets after this long.
pub const WRITE_BEHIND: Duration = Duration::from_millis(1000);
/// A client sends a journalled operation to the metadata server after this long at the latest.
pub const LOG_DELAY: Duration = Duration::from_millis(100);
/// A client may keep a directory that is delegated to it this long while others want it too.
pub const TURN: Duration = Duration::from_millis(20);
/// Synchronised clocks differ by less than this. A clock that went back further was wrong before,
/// and stamps follow it.
pub const CLOCKS_APART: Duration = Duration::from_secs(10);
/// Longest time the kernel may cache an attribute or a name.
pub const KERNEL_TTL: Duration = Duration::from_secs(4);

const fn ms(d: Duration) -> u128 {
    d.as_millis()
}
const _: () = assert!(ms(FAILURE_DETECTION) >= 3 * ms(HEARTBEAT));
const _: () = assert!(ms(SESSION) >= 3 * ms(SESSION_RENEW));
const _: () = assert!(ms(GRACE) >= ms(SESSION));
// A server that is late, but not taken for failed, makes no client wait.
const _: () = assert!(ms(SUSPEND) >= 2 * ms(SESSION_RENEW) + ms(FAILURE_DETECTION));
const _: () = assert!(ms(SUSPEND) + 1000 <= ms(CLIENT_LEASE));
const _: () = assert!(ms(CLIENT_LEASE) + ms(DRIFT) <= ms(SESSION));
const _: () = assert!(ms(MEMBER_TIMEOUT) < ms(FAILURE_DETECTION));
const _: () = assert!(ms(TURN) < ms(LOG_DELAY) && ms(TURN) < ms(RECALL));
const _: () = assert!(ms(PROOF) > 2 * ms(FAILURE_DETECTION) && ms(PROOF) < ms(REQUEST) / 2);
const _: () = assert!(ms(SERVICE) <= ms(FAILURE_DETECTION));
const _: () = assert!(ms(KERNEL_TTL) <= ms(CLIENT_LEASE));
const _: () = assert!(ms(RECALL) > ms(SESSION) && ms(REQUEST) > ms(RECALL) + ms(SESSION));
const _: () = assert!(ms(REQUEST) > ms(RECALL) + ms(SESSION) + 2 * ms(FAILURE_DETECTION));
const _: () = assert!(ms(REQUEST) > 2 * (ms(SESSION) + ms(GRACE)));
