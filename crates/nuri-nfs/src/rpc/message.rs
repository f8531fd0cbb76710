//! Calls and replies of ONC RPC version 2 (RFC 5531).

use super::record;
use super::xdr::{Garbage, Reader, Writer};

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;
/// Bytes of credentials, groups of a user, letters of a machine's name (RFC 5531, 8.2 and A).
const LONGEST_AUTH: usize = 400;
const MOST_GROUPS: u32 = 16;
const LONGEST_MACHINE: usize = 255;

/// Of credentials.
pub(crate) const AUTH_NONE: u32 = 0;
pub(crate) const AUTH_SYS: u32 = 1;

/// Who calls, as the client says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Credentials {
    Nobody,
    /// Numbers of a user and of groups, which nobody proves.
    Sys {
        uid: u32,
        gid: u32,
        groups: Vec<u32>,
    },
    /// Of a kind that is not known here.
    Other(u32),
}

/// The head of a call. Its arguments follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Of the client's choice; the reply repeats it.
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
    pub credentials: Credentials,
}

/// Why a message is no call that can be looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoCall {
    /// Nothing can be answered.
    Garbage,
    /// It is a call of another version of RPC.
    Version { xid: u32 },
    /// Its credentials are not what they say.
    Credentials { xid: u32 },
}

impl From<Garbage> for NoCall {
    fn from(_: Garbage) -> NoCall {
        NoCall::Garbage
    }
}

impl Call {
    /// Reads the head of a call; `input` is at its arguments then.
    ///
    /// # Errors
    /// What it is instead.
    pub fn read(input: &mut Reader<'_>) -> Result<Call, NoCall> {
        let xid = input.number()?;
        if input.number()? != CALL {
            return Err(NoCall::Garbage);
        }
        if input.number()? != RPC_VERSION {
            return Err(NoCall::Version { xid });
        }
        let (program, version, procedure) = (input.number()?, input.number()?, input.number()?);
        let bad = |_: Garbage| NoCall::Credentials { xid };
        let credentials = credentials(input).map_err(bad)?;
        // What proves the credentials: nothing does, of those that are known here.
        input.number()?;
        input.bytes(LONGEST_AUTH).map_err(bad)?;
        Ok(Call { xid, program, version, procedure, credentials })
    }
}

fn credentials(input: &mut Reader<'_>) -> Result<Credentials, Garbage> {
    let kind = input.number()?;
    let mut body = Reader::new(input.bytes(LONGEST_AUTH)?);
    match kind {
        AUTH_NONE => Ok(Credentials::Nobody),
        AUTH_SYS => {
            let _stamp = body.number()?;
            let _machine = body.bytes(LONGEST_MACHINE)?;
            let (uid, gid, count) = (body.number()?, body.number()?, body.number()?);
            if count > MOST_GROUPS {
                return Err(Garbage);
            }
            let groups = (0..count).map(|_| body.number()).collect::<Result<_, _>>()?;
            Ok(Credentials::Sys { uid, gid, groups })
        }
        kind => Ok(Credentials::Other(kind)),
    }
}

/// Why a call was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    Program,
    /// Those versions of the program are known.
    Version {
        lowest: u32,
        highest: u32,
    },
    Procedure,
    Arguments,
    /// Something failed here that no status of the program says.
    Here,
    /// The credentials are of a kind that is not accepted.
    TooWeak,
}

impl Refusal {
    /// Number of the program's or the arguments' refusals.
    fn code(self) -> u32 {
        match self {
            Refusal::Program => 1,
            Refusal::Version { .. } => 2,
            Refusal::Procedure => 3,
            Refusal::Arguments => 4,
            Refusal::Here | Refusal::TooWeak => 5,
        }
    }
}

/// The head of a call to a program and its version, behind which the arguments go. Nobody calls.
pub(crate) fn asked(xid: u32, (program, version): (u32, u32), procedure: u32) -> Writer {
    let mut out = record::begun(Vec::new());
    let head = [xid, CALL, RPC_VERSION, program, version, procedure];
    let nobody = [AUTH_NONE, 0];
    head.into_iter().chain(nobody).chain(nobody).for_each(|word| out.number(word));
    out
}

/// The results in the answer to a call, if it was carried out.
///
/// # Errors
/// It is no answer to this call.
pub(crate) fn results(answer: &[u8], xid: u32) -> Result<Option<Reader<'_>>, Garbage> {
    let mut input = Reader::new(answer);
    if (input.number()?, input.number()?) != (xid, REPLY) {
        return Err(Garbage);
    }
    if input.number()? != ACCEPTED {
        return Ok(None);
    }
    input.number()?;
    input.bytes(LONGEST_AUTH)?;
    Ok((input.number()? == 0).then_some(input))
}

/// The head of a reply, behind which the results go.
pub(crate) fn accepted(xid: u32, buffer: Vec<u8>) -> Writer {
    let mut out = begun(xid, ACCEPTED, buffer);
    out.number(AUTH_NONE);
    out.bytes_of(&[]);
    out.number(0);
    out
}

fn begun(xid: u32, outcome: u32, buffer: Vec<u8>) -> Writer {
    let mut out = record::begun(buffer);
    [xid, REPLY, outcome].into_iter().for_each(|word| out.number(word));
    out
}

/// The reply to a call that is not carried out.
pub(crate) fn refused(xid: u32, why: Refusal) -> Writer {
    if why == Refusal::TooWeak {
        return denied(xid, &[AUTH_ERROR, 5]);
    }
    let mut out = begun(xid, ACCEPTED, Vec::new());
    out.number(AUTH_NONE);
    out.bytes_of(&[]);
    out.number(why.code());
    if let Refusal::Version { lowest, highest } = why {
        out.number(lowest);
        out.number(highest);
    }
    out
}

/// The reply to what is no call that can be looked at, if there is one.
pub(crate) fn answer_to(no: NoCall) -> Option<Writer> {
    match no {
        NoCall::Garbage => None,
        NoCall::Version { xid } => Some(denied(xid, &[RPC_MISMATCH, RPC_VERSION, RPC_VERSION])),
        NoCall::Credentials { xid } => Some(denied(xid, &[AUTH_ERROR, 1])),
    }
}

fn denied(xid: u32, words: &[u32]) -> Writer {
    let mut out = begun(xid, DENIED, Vec::new());
    words.iter().for_each(|word| out.number(*word));
    out
}

#[cfg(test)]
mod tests {
    use nfs3_types::rpc::{auth_unix, call_body, msg_body, opaque_auth, rpc_msg};
    use nfs3_types::xdr_codec::{Pack, Unpack};

    use super::*;

    /// As another implementation writes it.
    fn call(cred: opaque_auth<'static>) -> Vec<u8> {
        let verf = opaque_auth::default();
        let body = call_body { rpcvers: 2, prog: 100_003, vers: 3, proc: 6, cred, verf };
        let mut bytes = Vec::new();
        rpc_msg { xid: 77, body: msg_body::CALL(body) }.pack(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn calls_are_read_with_who_makes_them() {
        let user = auth_unix { uid: 5, gid: 6, gids: vec![7, 8], ..auth_unix::default() };
        let bytes = [call(opaque_auth::auth_unix(&user)), vec![1, 2, 3, 4]].concat();
        let mut input = Reader::new(&bytes);
        let found = Call::read(&mut input).unwrap();
        assert_eq!((found.xid, found.program, found.version, found.procedure), (77, 100_003, 3, 6));
        let groups = vec![7, 8];
        assert_eq!(found.credentials, Credentials::Sys { uid: 5, gid: 6, groups });
        assert_eq!(input.rest(), [1, 2, 3, 4]);
        let found = Call::read(&mut Reader::new(&call(opaque_auth::default()))).unwrap();
        assert_eq!(found.credentials, Credentials::Nobody);
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        let mut out = asked(7, (100_000, 4), 3);
        out.number(5);
        let mut input = Reader::new(&out.bytes()[4..]);
        let call = Call::read(&mut input).unwrap();
        assert_eq!((call.xid, call.program, call.version, call.procedure), (7, 100_000, 4, 3));
        assert_eq!((call.credentials, input.number()), (Credentials::Nobody, Ok(5)));
        let mut out = accepted(7, Vec::new());
        out.boolean(true);
        let answer = &out.bytes()[4..];
        assert_eq!(results(answer, 7).unwrap().unwrap().boolean(), Ok(true));
        assert_eq!(results(answer, 8).unwrap_err(), Garbage);
        for why in [Refusal::Program, Refusal::TooWeak] {
            assert!(results(&refused(7, why).bytes()[4..], 7).unwrap().is_none());
        }
    }

    #[test]
    fn what_is_no_call_is_refused() {
        let many = auth_unix { gids: (0..17).collect(), ..auth_unix::default() };
        let bytes = call(opaque_auth::auth_unix(&many));
        let read = |bytes: &[u8]| Call::read(&mut Reader::new(bytes));
        assert_eq!(read(&bytes), Err(NoCall::Credentials { xid: 77 }));
        let mut other = call(opaque_auth::default());
        other[11] = 3;
        assert_eq!(read(&other), Err(NoCall::Version { xid: 77 }));
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "{len} bytes of a call");
        }
    }

    #[test]
    fn replies_are_understood_elsewhere() {
        let read = |out: Writer| {
            let (message, _) = rpc_msg::unpack(&mut &out.bytes()[4..]).unwrap();
            format!("{:?}", message.body)
        };
        assert!(read(accepted(1, vec![7; 9])).contains("SUCCESS"));
        assert!(read(refused(1, Refusal::Program)).contains("PROG_UNAVAIL"));
        let version = Refusal::Version { lowest: 3, highest: 3 };
        assert!(read(refused(1, version)).contains("PROG_MISMATCH { low: 3, high: 3 }"));
        assert!(read(refused(1, Refusal::Procedure)).contains("PROC_UNAVAIL"));
        assert!(read(refused(1, Refusal::Arguments)).contains("GARBAGE_ARGS"));
        assert!(read(refused(1, Refusal::Here)).contains("SYSTEM_ERR"));
        assert!(read(refused(1, Refusal::TooWeak)).contains("AUTH_TOOWEAK"));
        let version = answer_to(NoCall::Version { xid: 1 }).unwrap();
        assert!(read(version).contains("RPC_MISMATCH { low: 2, high: 2 }"));
        assert!(answer_to(NoCall::Garbage).is_none());
    }
}
