//! What the fuzz targets do with bytes. Also included by `crates/nuri-sim/tests/fuzz.rs`, which
//! replays the corpora and mutates them from a seed in an ordinary `cargo test`.
//!
//! Nothing here may panic, hang or allocate without bound, whatever the bytes are. What decodes is
//! encoded and decoded again: both must agree.

#![allow(dead_code)]

use nuri_proto::codec;
use nuri_proto::header::{HEADER, Header};
use nuri_proto::layout::{Layout, LayoutPolicy};
use nuri_proto::op::Op;
use nuri_proto::op::{cluster, copy, data, disk, lock, log, member, meta, near, once, part};
use nuri_target::store::LogStart;
use nuri_target::store::log::scan;

/// A frame: header, then arguments of the call that it names.
pub fn frame(bytes: &[u8]) {
    let Some((head, args)) = bytes.split_first_chunk::<HEADER>() else { return };
    let mut op = u16::from_le_bytes([head[6], head[7]]);
    if let Ok(header) = Header::decode(head) {
        op = header.op;
        let again = header.encode(args);
        assert_eq!(Header::decode(&again), Ok(header));
        assert_eq!(Header::verify(&again, args), Ok(()));
        let _ = Header::verify(head, args);
    }
    if let Some(op) = Op::from_wire(op) {
        arguments(op, args);
    }
}

fn round<T: serde_free::Wire>(args: &[u8]) {
    T::round(args);
}

mod serde_free {
    use super::codec;
    use nuri_proto::op::Call;

    /// A type that travels.
    pub trait Wire {
        fn round(bytes: &[u8]);
    }

    impl<C: Call> Wire for C {
        fn round(bytes: &[u8]) {
            if let Ok(call) = codec::decode::<C>(bytes)
                && let Ok(encoded) = codec::encode(&call)
            {
                let again = codec::decode::<C>(&encoded);
                let again = again.and_then(|call| codec::encode(&call));
                assert_eq!(again, Ok(encoded));
            }
            let _ = codec::decode::<C::Reply>(bytes);
        }
    }
}

macro_rules! each {
    ($op:ident, $args:ident, $($module:ident: $($name:ident)*;)*) => {
        match $op { $($(Op::$name => round::<$module::$name>($args),)*)* }
    };
}

fn arguments(op: Op, args: &[u8]) {
    each! { op, args,
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

/// What an NBD client says: the handshake, and heads of requests.
pub fn nbd(bytes: &[u8]) {
    nuri_nbd::fuzz(bytes);
}

/// What a client of NFS sends.
pub fn nfs(bytes: &[u8]) {
    nuri_nfs::fuzz(bytes);
}

/// A layout and a policy.
pub fn layout(bytes: &[u8]) {
    if let Ok(layout) = codec::decode::<Layout>(bytes) {
        let encoded = codec::encode(&layout);
        if let Ok(encoded) = encoded {
            assert_eq!(codec::decode::<Layout>(&encoded), Ok(layout));
        }
    }
    if let Ok(policy) = codec::decode::<LayoutPolicy>(bytes) {
        let _ = policy.check();
        let _ = policy.instantiate(&[], 1);
    }
}

/// A segment of the metadata log. The first byte says which generation is wanted.
pub fn kv_log(bytes: &[u8]) {
    use nuri_kv::log;
    let Some((generation, segment)) = bytes.split_first() else { return };
    let generation = u64::from(*generation);
    let _ = log::SegmentHead::decode(segment);
    let (records, _) = log::scan(segment, generation);
    assert!(records.len() <= segment.len() / log::RECORD_HEAD);
    assert!(records.windows(2).all(|w| w[0].sequence < w[1].sequence));
    for at in [0, 1, segment.len() / 2, segment.len(), usize::MAX - 8] {
        let _ = log::parse(segment, at, generation);
    }
    // Past the checksum: bytes sealed as a record.
    if segment.len() > log::RECORD_HEAD {
        let mut record = segment.to_vec();
        let len = (record.len() - log::RECORD_HEAD) as u32;
        record[..4].copy_from_slice(&len.to_le_bytes());
        record[4..8].copy_from_slice(b"NKVG");
        log::reseal(&mut record, generation);
        let _ = log::parse(&record, 0, generation);
    }
}

/// The log region of a target.
pub fn target_log(bytes: &[u8]) {
    let Some((first, log)) = bytes.split_first() else { return };
    let start = LogStart { generation: u64::from(*first & 7), position: 8192, seq: 5 };
    if let Ok(scan) = scan(log, start, 100) {
        assert!(scan.records.len() <= log.len() / 40);
        assert_eq!(scan.next_seq, start.seq + scan.records.len() as u64);
    }
}
