//! Every call of the wire, of the right shape and with whatever values, from who proved to be a
//! mount and from who proved to be a node, against running nodes: nothing crashes, hangs or grows.
//!
//! `NURI_CALLS` says how many calls and `NURI_THREADS` from how many threads; a failure names the
//! seed, which `NURI_SEED` takes. Millions of calls leave more files and sessions than a few
//! thousand: `NURI_GROWTH` says how many MiB a node may take for them. The disk bounds the speed;
//! with `TMPDIR` on a tmpfs and 64 threads it is 10,000 calls a second.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nuri_io::rng::Rng;
use nuri_proto::Status;
use nuri_proto::id::SessionId;
use nuri_proto::op::{Call, Op, Role};
use nuri_proto::op::{cluster, copy, data, disk, lock, log, member, meta, near, once, part};
use nuri_rpc::{CallContext, Peer, Secret};

use crate::hostile::figure;
use crate::shaped::random;
use crate::support::{Space, nuri, text, wait};

/// Some calls wait, as a lock does: they are not waited for.
const PATIENCE: Duration = Duration::from_millis(150);
const THREADS: u64 = 4;
/// What a node may take in memory for it, MiB: its caches, and sessions that are left.
const GROWTH: u64 = 300;
/// An evicted mount opens a new session; what hangs for ever does not end by then.
const ANSWERED: Duration = Duration::from_secs(60);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Somebody with the space's secret, or that for mounts.
struct Stranger {
    peer: Peer,
    rng: Rng,
    session: SessionId,
    sequence: u64,
}

impl Stranger {
    fn new(address: &str, secret: &Secret, seed: u64) -> Stranger {
        let peer = Peer::new(address, secret);
        Stranger { peer, rng: Rng::new(seed), session: SessionId(0), sequence: 0 }
    }

    fn context(&mut self) -> CallContext {
        self.sequence += 1;
        let rng = &mut self.rng;
        let mut context = CallContext {
            session: self.session.0,
            slot: rng.below(3) as u32,
            sequence: self.sequence,
            epoch: rng.below(8),
        };
        match rng.below(20) {
            0 => context.session = rng.next(),
            1 => context.slot = rng.next() as u32,
            2 => context.sequence = rng.next(),
            3 => context.epoch = u64::MAX - rng.below(2),
            _ => {}
        }
        context
    }

    fn call<C: Call>(&mut self) -> Option<Status> {
        let call: C = random(&mut self.rng)?;
        let context = self.context();
        let len = [0, 0, 1, 100, 4096, 70_000][self.rng.below(6) as usize];
        let mut payload = vec![0; len];
        self.rng.fill(&mut payload);
        let mut into = vec![0; 1 << 20];
        self.peer.call(context, &call, &payload, &mut into, PATIENCE).err()
    }

    fn begin_session(&mut self) {
        let open = meta::SessionOpen { client: "stranger".into() };
        let opened = self.peer.call(CallContext::default(), &open, &[], &mut [], PATIENCE);
        if let Ok((reply, _)) = opened {
            self.session = reply.session;
        }
    }
}

macro_rules! each {
    ($op:ident, $stranger:ident, $($module:ident: $($name:ident)*;)*) => {
        match $op { $($(Op::$name => $stranger.call::<$module::$name>(),)*)* }
    };
}

fn make(op: Op, stranger: &mut Stranger) -> Option<Status> {
    each! { op, stranger,
        cluster: MapGet Join Heartbeat ClusterStatus MountReport MemberSynced
            TargetReplace ResyncSet ScrubSet TargetRetire TargetRemove TargetProved MemberMove
            GroupRenew NodeReach SpaceSet;
        copy: CopyLatest CopyBegin CopyWrite CopyMap CopyWhole;
        member: MemberStage MemberCommit MemberAbort MemberHeld MemberRead MemberInstall
            MemberChanged MemberForget;
        data: DataWrite DataRead DataFlush DataPunch DataDelete DataExtents DataTruncate DataRoom
            DataTrim;
        meta: SessionOpen Events RecallDone Downgrade Reclaim SessionClose
            Lookup GetAttr SetAttr Make Link
            Unlink Rename ReadDir Acquire Release Publish XattrGet XattrSet XattrList XattrRemove
            LayoutSet StatFs OrphanRelease TruncateDone Extend LayoutGet MakeUnnamed
            Accessed GroupUse SwapData XattrAll;
        log: Reserve Apply TakeDirectory Children;
        once: ChangeOnce CallsDone;
        part: AcquirePart;
        lock: LockSet LockTest LockCancel LockTell;
        disk: DiskList DiskOpen;
        near: PeerMemoryAsk PeerMemoryProof Echo;
    }
}

fn storm(addresses: &[String], secret: &Secret, seed: u64, calls: u64) {
    let threads = setting("NURI_THREADS", THREADS);
    let ops: Vec<Op> = (0..=u16::MAX).filter_map(Op::from_wire).collect();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let ops = &ops;
            let address = &addresses[thread as usize % addresses.len()];
            let mut stranger = Stranger::new(address, secret, seed + thread);
            scope.spawn(move || {
                let share = calls / threads;
                for i in 0..share {
                    if i % 200 == 0 {
                        stranger.begin_session();
                    }
                    // The first node has the most to do.
                    if thread == 0 && i > 0 && i % 10_000 == 0 {
                        eprintln!("{i} of {share} calls of the first thread");
                    }
                    let op = ops[stranger.rng.below(ops.len() as u64) as usize];
                    // It waits for seconds by what it is for.
                    if op != Op::Events || stranger.rng.one_in(20) {
                        make(op, &mut stranger);
                    }
                }
            });
        }
    });
}

/// Calls against a space of two nodes; the processes are the same ones afterwards, and have not
/// grown.
fn storm_of(role: Role) -> Space {
    let (seed, calls) = (setting("NURI_SEED", 1), setting("NURI_CALLS", 6_000));
    eprintln!("NURI_SEED={seed} NURI_CALLS={calls}");
    let space = Space::up(&["--nodes", "2"]);
    for i in 0..8u8 {
        fs::write(space.mnt().join(format!("f{i}")), vec![i; 40_000]).unwrap();
    }
    let status = space.status();
    let nodes = status["nodes"].as_array().unwrap();
    let addresses: Vec<_> =
        nodes.iter().map(|node| node["address"].as_str().unwrap().to_string()).collect();
    let file = if role == Role::Mount { "mount.token" } else { "token" };
    let secret = Secret::load(&Path::new(&space.dir()).join(file)).unwrap();
    assert_eq!(secret.role(), role);
    let of_nodes = || ["node0", "node1"].map(|name| space.pid(name));
    let before = of_nodes().map(|pid| (pid, figure(pid, "VmRSS")));
    storm(&addresses, &secret, seed, calls);
    let growth = setting("NURI_GROWTH", GROWTH) << 10;
    let after = of_nodes().map(|pid| (pid, figure(pid, "VmRSS")));
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.0, after.0, "seed {seed}: a node ended\n{}", space.logs());
        assert!(after.1 < before.1 + growth, "seed {seed}: {} KiB, now {}", before.1, after.1);
    }
    space
}

/// Mounts of other machines that were only reported are in the list.
fn down(space: &Space) {
    let down = nuri(&["down", "--yes", "--dir", &space.dir()]);
    assert!(down.status.success(), "{}{}", text(&down.stderr), space.logs());
}

#[test]
fn calls_of_mounts_with_any_values_hurt_no_space() {
    let space = storm_of(Role::Mount);
    let answered = space.mnt().join("answered");
    wait("a mount goes on", ANSWERED, || {
        fs::write(&answered, "yes").is_ok() && fs::read(&answered).is_ok_and(|text| text == b"yes")
    });
    down(&space);
    let doctor = nuri(&["doctor", "--dir", &space.dir()]);
    assert!(doctor.status.success(), "{}{}", text(&doctor.stdout), text(&doctor.stderr));
}

/// Who is a node may take the space apart; it ends no process and fills no memory.
#[test]
fn calls_of_nodes_with_any_values_end_no_process() {
    down(&storm_of(Role::Node));
}
