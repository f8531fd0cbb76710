//! Why a call failed, in the numbers of RFC 1813, 2.6.

/// See the module's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NfsStatus(pub u32);

macro_rules! statuses {
    ($($name:ident = $value:expr;)*) => {
        impl NfsStatus {
            $(pub const $name: NfsStatus = NfsStatus($value);)*
        }
    };
}

statuses! {
    OK = 0;
    PERM = 1;
    NOENT = 2;
    IO = 5;
    NXIO = 6;
    ACCES = 13;
    EXIST = 17;
    XDEV = 18;
    NOTDIR = 20;
    ISDIR = 21;
    INVAL = 22;
    FBIG = 27;
    NOSPC = 28;
    ROFS = 30;
    MLINK = 31;
    NAMETOOLONG = 63;
    NOTEMPTY = 66;
    STALE = 70;
    BADHANDLE = 10_001;
    NOT_SYNC = 10_002;
    BAD_COOKIE = 10_003;
    NOTSUPP = 10_004;
    TOOSMALL = 10_005;
    SERVERFAULT = 10_006;
    BADTYPE = 10_007;
    // Try again later.
    JUKEBOX = 10_008;
}

#[cfg(feature = "space")]
impl From<nuri_proto::Status> for NfsStatus {
    fn from(status: nuri_proto::Status) -> NfsStatus {
        use nuri_proto::Status;
        match status {
            Status::PERM => NfsStatus::PERM,
            Status::NOENT => NfsStatus::NOENT,
            Status::NXIO => NfsStatus::NXIO,
            Status::ACCES => NfsStatus::ACCES,
            Status::EXIST => NfsStatus::EXIST,
            Status::XDEV => NfsStatus::XDEV,
            Status::NOTDIR => NfsStatus::NOTDIR,
            Status::ISDIR => NfsStatus::ISDIR,
            Status::INVAL => NfsStatus::INVAL,
            Status::FBIG => NfsStatus::FBIG,
            Status::NOSPC => NfsStatus::NOSPC,
            Status::ROFS => NfsStatus::ROFS,
            Status::MLINK => NfsStatus::MLINK,
            Status::NAMETOOLONG => NfsStatus::NAMETOOLONG,
            Status::NOTEMPTY => NfsStatus::NOTEMPTY,
            Status::STALE | Status::BADF => NfsStatus::STALE,
            Status::NOTSUP => NfsStatus::NOTSUPP,
            Status::AGAIN | Status::BUSY | Status::NOMEM => NfsStatus::JUKEBOX,
            // The space does not answer for now: a client that waits loses nothing.
            Status::RETRY | Status::UNREACHABLE | Status::SESSION_GONE => NfsStatus::JUKEBOX,
            Status::OUT_OF_SERVICE | Status::EPOCH => NfsStatus::JUKEBOX,
            _ => NfsStatus::IO,
        }
    }
}
