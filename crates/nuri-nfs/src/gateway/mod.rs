//! One server of the space's exports: it tells calls of NFS, MOUNT and the port mapper apart, and
//! has them carried out.

mod mount;
mod port_mapper;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use nuri_client::Client;

use crate::export::{ExportError, Store, Table, normal};
use crate::floating::{Addresses, Standing};
use crate::op::{Asker, Files};
use crate::opened::Opened;
use crate::protocol::call::{NoRequest, Request};
use crate::protocol::status::NfsStatus;
use crate::protocol::{MOUNT, MOUNT_VERSION, NFS, NFS_VERSION, PORT_MAPPER, PORT_MAPPER_VERSIONS};
use crate::remembered::Remembered;
use crate::repeated::{Repeated, Seen};
use crate::rpc::message::{self, Call, Credentials, Refusal};
use crate::rpc::record;
use crate::rpc::xdr::{Reader, Writer};
use crate::server::{Answer, Peer, Service};

/// Bytes before the status of an NFS call that was accepted.
const HEADS: usize = 28;
/// Inodes that stay known, twice so many at most.
const REMEMBERED: usize = 20_000;
/// Between two looks at the exports, and at files that nobody writes.
const LOOK: Duration = Duration::from_secs(1);

/// See the module's text.
pub struct Gateway {
    files: Files,
    repeated: Repeated,
    addresses: Arc<Addresses>,
    /// Where clients find NFS and MOUNT.
    port: u16,
}

impl Gateway {
    /// Of all exports of the space, or of those with the paths `only`.
    ///
    /// # Errors
    /// Where the exports cannot be read.
    pub fn new(client: Arc<Client>, only: Vec<String>, port: u16) -> Result<Gateway, ExportError> {
        let only = only.iter().map(|path| normal(path)).collect::<Result<_, _>>()?;
        let store = Store::new(client.clone());
        let (key, opened) = (store.key()?, Opened::new(client.clone()));
        let opened = opened.map_err(ExportError::Random)?;
        let exports = Arc::new(Table::new(store, only));
        exports.refresh()?;
        let remembered = Remembered::new(client.clone(), REMEMBERED);
        let files = Files { client, exports, key, opened, remembered };
        let (repeated, addresses) = Default::default();
        Ok(Gateway { files, repeated, addresses, port })
    }

    /// The addresses that move and are here now.
    pub fn addresses(&self) -> &Arc<Addresses> {
        &self.addresses
    }

    /// The exports as they are known now.
    pub fn exports(&self) -> &Table {
        &self.files.exports
    }

    /// Looks after exports and files, for ever.
    pub fn look_after(&self) -> ! {
        loop {
            std::thread::sleep(LOOK);
            if let Err(error) = self.files.exports.refresh() {
                tracing::warn!("nfs: the exports are as they were: {error}");
            }
            self.files.opened.close_idle();
        }
    }

    /// Makes durable what clients wrote. Nobody may write any more.
    pub fn close(&self) {
        self.files.opened.close_all();
    }

    fn reply(&self, call: &Call, input: Reader<'_>, from: (&Peer, &Standing, Vec<u8>)) -> Writer {
        let peer = from.0;
        let known = |own: RangeInclusive<u32>| match own.contains(&call.version) {
            true => Ok(()),
            false => Err(Refusal::Version { lowest: *own.start(), highest: *own.end() }),
        };
        let outcome = match call.program {
            NFS => known(NFS_VERSION..=NFS_VERSION).and_then(|()| self.nfs(call, input, from)),
            MOUNT => {
                known(MOUNT_VERSION..=MOUNT_VERSION).and_then(|()| self.mount(call, input, peer))
            }
            PORT_MAPPER => {
                known(PORT_MAPPER_VERSIONS).and_then(|()| self.port_mapper(call, input, peer))
            }
            _ => Err(Refusal::Program),
        };
        outcome.unwrap_or_else(|why| message::refused(call.xid, why))
    }

    fn nfs(
        &self,
        call: &Call,
        mut input: Reader<'_>,
        (peer, standing, buffer): (&Peer, &Standing, Vec<u8>),
    ) -> Result<Writer, Refusal> {
        let request = Request::read(call.procedure, &mut input).map_err(|why| match why {
            NoRequest::Procedure => Refusal::Procedure,
            NoRequest::Arguments => Refusal::Arguments,
        })?;
        if let (Credentials::Other(_), false) = (&call.credentials, request == Request::Null) {
            return Err(Refusal::TooWeak);
        }
        let mut out = message::accepted(call.xid, buffer);
        let asker = Asker { credentials: &call.credentials, peer, standing };
        self.files.answer(&request, asker, &mut out);
        Ok(out)
    }

    /// Carries out a call that must not be carried out twice.
    fn reply_once(
        &self,
        call: &Call,
        (whole, input): (&[u8], Reader<'_>),
        (peer, buffer): (&Peer, Vec<u8>),
    ) -> Answer {
        match self.repeated.see(peer, call.xid, whole) {
            Seen::Again(answer) => {
                let mut out = Writer::over(buffer);
                out.fixed(&answer);
                Answer::Reply(out)
            }
            Seen::Unclear => Answer::Silence,
            Seen::First(first) => {
                let Some(standing) = self.addresses.standing(peer, call.xid, whole) else {
                    return Answer::Close;
                };
                let answer = framed(self.reply(call, input, (peer, &standing, buffer)));
                // What may be done later was not done for sure: the same call finds out.
                if !is_later(answer.bytes()) {
                    first.answered(answer.bytes());
                }
                Answer::Reply(answer)
            }
        }
    }
}

/// Whether to carry the call out twice is another thing than once.
fn is_remembered(call: &Call, mut input: Reader<'_>) -> bool {
    call.program == NFS
        && Request::read(call.procedure, &mut input).is_ok_and(|request| request.is_remembered())
}

/// Whether the client is asked to try again later. The status follows two heads.
fn is_later(answer: &[u8]) -> bool {
    answer.get(HEADS..HEADS + 4) == Some(&NfsStatus::JUKEBOX.0.to_be_bytes())
}

fn framed(mut out: Writer) -> Writer {
    record::finish(&mut out);
    out
}

impl Service for Gateway {
    fn answer(&self, message: &[u8], peer: &Peer, buffer: Vec<u8>) -> Answer {
        let mut input = Reader::new(message);
        let call = match Call::read(&mut input) {
            Ok(call) => call,
            Err(no) => {
                let answer = message::answer_to(no).map(framed);
                return answer.map_or(Answer::Close, Answer::Reply);
            }
        };
        if is_remembered(&call, input) {
            return self.reply_once(&call, (message, input), (peer, buffer));
        }
        Answer::Reply(framed(self.reply(&call, input, (peer, &Standing::Unremembered, buffer))))
    }
}
