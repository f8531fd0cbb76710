//! The handshake (fixed newstyle) as a machine: bytes of the client go in; bytes for it and
//! decisions come out. The machine knows no socket and no clock.
//!
//! An answer to an option never depends on how the bytes arrived. An option that is unknown or
//! malformed is refused, and the next one is read. Only a client that cannot be understood at all
//! is disconnected.

use std::sync::Arc;

use crate::export::{About, Export, Exports, Refusal};
use crate::protocol::{
    ALLOCATION, ALLOCATION_ID, GREETING, MAX_NAME, MAX_PAYLOAD, OPTION, OPTION_REPLY, export_flag,
    handshake_flag, info, option, option_reply,
};

/// The longest option that is read; a name and what is asked of it. Longer ones are skipped.
const MAX_OPTION: u32 = 64 << 10;
/// The longest one that is skipped.
const MAX_SKIPPED: u32 = 32 << 20;
const OPTION_HEADER: usize = 16;
/// What follows an export's size and flags, for clients that do not know better.
const PADDING: usize = 124;

/// What is to be done.
pub(crate) enum Effect {
    Send(Vec<u8>),
    /// The client is told this, and from then on all is encrypted.
    StartTls(Vec<u8>),
    /// The handshake is over.
    Serve(Agreed),
    /// The client is told this and left, with these words for the log.
    Close(Vec<u8>, &'static str),
}

/// What was agreed on.
pub(crate) struct Agreed {
    pub(crate) export: Arc<dyn Export>,
    /// Said before the first request is answered.
    pub(crate) last_words: Vec<u8>,
    pub(crate) structured: bool,
    /// The client may ask what is data and what is a hole.
    pub(crate) allocation: bool,
    /// What the client sent since: requests.
    pub(crate) rest: Vec<u8>,
}

enum Stage {
    Flags,
    Option,
    /// So many bytes of an option that is too long.
    Skip {
        option: u32,
        left: u32,
    },
    Over,
}

/// Whether what is said is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Encryption {
    None,
    /// Not yet: nothing but that is agreed on.
    Required,
    Done,
}

pub(crate) struct Handshake {
    stage: Stage,
    encryption: Encryption,
    input: Vec<u8>,
    no_zeroes: bool,
    structured: bool,
    /// The export of which `base:allocation` was asked for.
    allocation_of: Option<String>,
}

/// The server's first words.
pub(crate) fn greeting() -> Vec<u8> {
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    let mut bytes = GREETING.to_be_bytes().to_vec();
    bytes.extend_from_slice(&OPTION.to_be_bytes());
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes
}

impl Handshake {
    pub(crate) fn new(encryption: Encryption) -> Handshake {
        let (input, no_zeroes, structured, allocation_of) = Default::default();
        Handshake { stage: Stage::Flags, encryption, input, no_zeroes, structured, allocation_of }
    }

    /// Bytes came: [`Handshake::next`] says what is to be done, one thing after the other.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    pub(crate) fn next(&mut self, exports: &dyn Exports) -> Option<Effect> {
        loop {
            match self.step(exports)? {
                // What is skipped is not answered before its end.
                Effect::Send(bytes) if bytes.is_empty() => {}
                effect @ (Effect::Send(_) | Effect::StartTls(_)) => return Some(effect),
                last => {
                    self.stage = Stage::Over;
                    return Some(last);
                }
            }
        }
    }

    /// The next thing that can be made out of the input; `None` where more is needed.
    fn step(&mut self, exports: &dyn Exports) -> Option<Effect> {
        match self.stage {
            Stage::Flags => self.flags(),
            Stage::Option => self.option(exports),
            Stage::Skip { option, left } => self.skip(option, left),
            Stage::Over => None,
        }
    }

    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        (self.input.len() >= count).then(|| self.input.drain(..count).collect())
    }

    fn flags(&mut self) -> Option<Effect> {
        let flags = u32_of(&self.take(4)?);
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        if flags & !known != 0 {
            return Some(leave("its flags are not known"));
        }
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.stage = Stage::Option;
        Some(Effect::Send(Vec::new()))
    }

    fn skip(&mut self, option: u32, left: u32) -> Option<Effect> {
        let now = self.input.len().min(left as usize);
        self.input.drain(..now);
        let left = left - now as u32;
        self.stage = Stage::Skip { option, left };
        if left > 0 {
            return None;
        }
        self.stage = Stage::Option;
        Some(refuse(option, option_reply::TOO_BIG, "the option is too long"))
    }

    fn option(&mut self, exports: &dyn Exports) -> Option<Effect> {
        let header = self.input.get(..OPTION_HEADER)?;
        let (magic, number) = (&header[..8], u32_of(&header[8..12]));
        let len = u32_of(&header[12..16]);
        if magic != OPTION.to_be_bytes() {
            return Some(leave("what it sent is no option"));
        }
        if len > MAX_OPTION {
            if len > MAX_SKIPPED || number == option::EXPORT_NAME {
                return Some(leave("an option was far too long"));
            }
            self.input.drain(..OPTION_HEADER);
            self.stage = Stage::Skip { option: number, left: len };
            return Some(Effect::Send(Vec::new()));
        }
        let whole = self.take(OPTION_HEADER + len as usize)?;
        Some(self.answer(number, &whole[OPTION_HEADER..], exports))
    }

    fn answer(&mut self, number: u32, data: &[u8], exports: &dyn Exports) -> Effect {
        match number {
            option::STARTTLS => self.start_tls(data),
            option::EXPORT_NAME if self.encryption == Encryption::Required => {
                leave("it does not encrypt")
            }
            option::EXPORT_NAME => self.export_name(data, exports),
            option::ABORT => Effect::Close(ack(number), "it went away"),
            _ if self.encryption == Encryption::Required => {
                refuse(number, option_reply::TLS_REQUIRED, "this server requires TLS")
            }
            option::LIST => list(data, exports),
            option::INFO => self.info(data, exports),
            option::GO => self.go(data, exports),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                Effect::Send(ack(number))
            }
            option::STRUCTURED_REPLY => refuse(number, option_reply::INVALID, "it takes no data"),
            option::LIST_META_CONTEXT => self.contexts(number, data, exports),
            option::SET_META_CONTEXT => self.contexts(number, data, exports),
            _ => refuse(number, option_reply::UNSUPPORTED, "it is not known here"),
        }
    }

    /// All that was agreed on before counts for nothing. What came in one piece with the option was
    /// not encrypted, and may be of somebody else.
    fn start_tls(&mut self, data: &[u8]) -> Effect {
        let number = option::STARTTLS;
        match self.encryption {
            Encryption::None => refuse(number, option_reply::UNSUPPORTED, "there is no TLS here"),
            Encryption::Done => refuse(number, option_reply::INVALID, "it is encrypted already"),
            Encryption::Required if !data.is_empty() => malformed(number),
            Encryption::Required if !self.input.is_empty() => {
                leave("it sent something behind its wish for TLS")
            }
            Encryption::Required => {
                self.encryption = Encryption::Done;
                Effect::StartTls(ack(number))
            }
        }
    }

    /// The oldest way: there is no answer that says no.
    fn export_name(&mut self, data: &[u8], exports: &dyn Exports) -> Effect {
        let Some(name) = text(data) else { return leave("a name is no text") };
        let Ok(export) = exports.open(name) else {
            return leave("it asked for an export that it cannot have");
        };
        let about = export.about();
        let mut bytes = about.size.to_be_bytes().to_vec();
        bytes.extend_from_slice(&flags_of(&about, self.structured).to_be_bytes());
        if !self.no_zeroes {
            bytes.resize(bytes.len() + PADDING, 0);
        }
        self.serve(bytes, export)
    }

    fn serve(&mut self, last_words: Vec<u8>, export: Arc<dyn Export>) -> Effect {
        let asked_of_it = self.allocation_of.as_ref() == Some(&export.about().name);
        let (structured, rest) = (self.structured, std::mem::take(&mut self.input));
        let allocation = structured && asked_of_it;
        Effect::Serve(Agreed { export, last_words, structured, allocation, rest })
    }

    fn info(&mut self, data: &[u8], exports: &dyn Exports) -> Effect {
        let number = option::INFO;
        let Some((name, wanted)) = asked_info(data) else { return malformed(number) };
        match exports.about(name) {
            Ok(about) => Effect::Send(self.informed(number, &about, &wanted)),
            Err(refusal) => refused(number, &refusal),
        }
    }

    fn go(&mut self, data: &[u8], exports: &dyn Exports) -> Effect {
        let number = option::GO;
        let Some((name, wanted)) = asked_info(data) else { return malformed(number) };
        match exports.open(name) {
            Ok(export) => {
                let words = self.informed(number, &export.about(), &wanted);
                self.serve(words, export)
            }
            Err(refusal) => refused(number, &refusal),
        }
    }

    /// All that was asked for; size and flags, and the block sizes, always.
    fn informed(&self, number: u32, about: &About, wanted: &[u16]) -> Vec<u8> {
        let piece = |kind: u16, data: &[&[u8]]| {
            let kind: &[u8] = &kind.to_be_bytes();
            reply(number, option_reply::INFO, &[&[kind], data].concat())
        };
        let flags = flags_of(about, self.structured).to_be_bytes();
        let mut bytes = piece(info::EXPORT, &[&about.size.to_be_bytes(), &flags]);
        let sizes = [about.block, about.preferred_block, MAX_PAYLOAD].map(u32::to_be_bytes);
        bytes.extend(piece(info::BLOCK_SIZE, &sizes.each_ref().map(|size| &size[..])));
        if wanted.contains(&info::NAME) {
            bytes.extend(piece(info::NAME, &[about.name.as_bytes()]));
        }
        if wanted.contains(&info::DESCRIPTION) && !about.description.is_empty() {
            bytes.extend(piece(info::DESCRIPTION, &[about.description.as_bytes()]));
        }
        bytes.extend(ack(number));
        bytes
    }

    fn contexts(&mut self, number: u32, data: &[u8], exports: &dyn Exports) -> Effect {
        let Some((name, queries)) = asked_contexts(data) else { return malformed(number) };
        let sets = number == option::SET_META_CONTEXT;
        if sets && !self.structured {
            return refuse(number, option_reply::INVALID, "structured replies come first");
        }
        let about = match exports.about(name) {
            Ok(about) => about,
            Err(refusal) => return refused(number, &refusal),
        };
        let is_asked = |query: &&[u8]| {
            *query == ALLOCATION.as_bytes() || !sets && *query == b"base:".as_slice()
        };
        let all = !sets && queries.is_empty();
        let is_there = all || queries.iter().any(is_asked);
        let mut bytes = Vec::new();
        if is_there {
            let id = if sets { ALLOCATION_ID } else { 0 }.to_be_bytes();
            bytes = reply(number, option_reply::META_CONTEXT, &[&id, ALLOCATION.as_bytes()]);
        }
        if sets {
            self.allocation_of = is_there.then_some(about.name);
        }
        bytes.extend(ack(number));
        Effect::Send(bytes)
    }
}

fn leave(why: &'static str) -> Effect {
    Effect::Close(Vec::new(), why)
}

/// The flags of an export, to a client that takes structured replies or does not.
fn flags_of(about: &About, structured: bool) -> u16 {
    use export_flag as flag;
    let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_CACHE | flag::CAN_MULTI_CONN;
    if about.read_only {
        flags |= flag::READ_ONLY;
    } else {
        flags |= flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
    }
    if structured {
        flags |= flag::SEND_DF;
    }
    flags
}

fn list(data: &[u8], exports: &dyn Exports) -> Effect {
    let number = option::LIST;
    if !data.is_empty() {
        return refuse(number, option_reply::INVALID, "it takes no data");
    }
    match exports.names() {
        Ok(names) => {
            let entry = |name: &String| {
                let len = (name.len() as u32).to_be_bytes();
                reply(number, option_reply::SERVER, &[&len, name.as_bytes()])
            };
            let mut bytes: Vec<u8> = names.iter().flat_map(entry).collect();
            bytes.extend(ack(number));
            Effect::Send(bytes)
        }
        Err(refusal) => refused(number, &refusal),
    }
}

fn reply(number: u32, kind: u32, data: &[&[u8]]) -> Vec<u8> {
    let len: usize = data.iter().map(|part| part.len()).sum();
    let mut bytes = OPTION_REPLY.to_be_bytes().to_vec();
    for word in [number, kind, len as u32] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    data.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn ack(number: u32) -> Vec<u8> {
    reply(number, option_reply::ACK, &[])
}

fn refuse(number: u32, kind: u32, words: &str) -> Effect {
    Effect::Send(reply(number, kind, &[words.as_bytes()]))
}

fn malformed(number: u32) -> Effect {
    refuse(number, option_reply::INVALID, "the option is malformed")
}

fn refused(number: u32, refusal: &Refusal) -> Effect {
    let kind = match refusal {
        Refusal::Unknown { .. } => option_reply::UNKNOWN,
        Refusal::Policy(_) => option_reply::POLICY,
    };
    refuse(number, kind, &refusal.to_string())
}

/// An option's data, from the front.
struct Data<'d>(&'d [u8]);

impl<'d> Data<'d> {
    fn take(&mut self, len: usize) -> Option<&'d [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4).map(u32_of)
    }

    /// A length and so many bytes.
    fn string(&mut self) -> Option<&'d [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }
}

fn u32_of(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// A name.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|name| name.len() <= MAX_NAME)
}

fn asked_info(data: &[u8]) -> Option<(&str, Vec<u16>)> {
    let mut data = Data(data);
    let name = text(data.string()?)?;
    let count = data.take(2)?;
    let count = usize::from(u16::from_be_bytes([count[0], count[1]]));
    let wanted = data.take(2 * count)?;
    let wanted = wanted.chunks_exact(2).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
    data.0.is_empty().then(|| (name, wanted.collect()))
}

fn asked_contexts(data: &[u8]) -> Option<(&str, Vec<&[u8]>)> {
    let mut data = Data(data);
    let name = text(data.string()?)?;
    let count = data.u32()?;
    let queries: Option<Vec<_>> = (0..count).map(|_| data.string()).collect();
    queries.filter(|_| data.0.is_empty()).map(|queries| (name, queries))
}

/// Feeds the handshake and the parser of requests with a client's bytes, all at once and in pieces.
/// For fuzzers.
///
/// # Panics
/// Where the answers depend on how the bytes arrived.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let whole = fake::play([bytes], Encryption::None);
    let pieces = fake::play(bytes.chunks(1 + usize::from(*first)), Encryption::None);
    assert_eq!(whole, pieces);
    // What is said to a client is bounded by what it said.
    assert!(whole.len() <= 64 * (bytes.len() + 64), "{} bytes for {}", whole.len(), bytes.len());
    for header in bytes.chunks_exact(crate::protocol::request::HEADER) {
        let Ok(header) = header.try_into() else { continue };
        let _ = crate::protocol::request::Request::parse(header);
    }
}

/// A server of two exports.
mod fake {
    use super::{About, Agreed, Arc, Effect, Encryption, Export, Exports, Handshake, Refusal};
    use crate::export::{Asked, Extent, Kept, Zeroing};
    use crate::order::Order;
    use crate::protocol::Errno;

    pub(super) struct Fake;

    #[derive(Default)]
    struct Device {
        about: Option<About>,
        order: Order,
    }

    impl Export for Device {
        fn about(&self) -> About {
            self.about.clone().unwrap_or_else(|| about("", 0))
        }
        fn order(&self) -> &Order {
            &self.order
        }
        fn read(&self, _: Asked<'_>, _: u64, _: &mut [u8]) -> Result<(), Errno> {
            Err(Errno::Io)
        }
        fn write(&self, _: Asked<'_>, _: u64, _: &[u8], _: Kept) -> Result<(), Errno> {
            Err(Errno::Io)
        }
        fn flush(&self, _: Asked<'_>) -> Result<(), Errno> {
            Ok(())
        }
        fn trim(&self, _: Asked<'_>, _: u64, _: u64) -> Result<(), Errno> {
            Ok(())
        }
        fn write_zeroes(&self, _: Asked<'_>, _: u64, _: u64, _: Zeroing) -> Result<(), Errno> {
            Ok(())
        }
        fn extents(&self, _: Asked<'_>, _: u64, len: u32, _: usize) -> Result<Vec<Extent>, Errno> {
            Ok(vec![Extent { len, is_hole: true }])
        }
    }

    fn about(name: &str, size: u64) -> About {
        let (name, description) = (name.to_owned(), "for tests".to_owned());
        About { name, description, size, read_only: size == 4096, block: 1, preferred_block: 4096 }
    }

    impl Exports for Fake {
        fn names(&self) -> Result<Vec<String>, Refusal> {
            Ok(vec!["disk".into(), "read-only".into()])
        }
        fn about(&self, name: &str) -> Result<About, Refusal> {
            match name {
                "" | "disk" => Ok(about("disk", 1 << 30)),
                "read-only" => Ok(about(name, 4096)),
                "busy" => Err(Refusal::Policy("it is in use".into())),
                name => Err(Refusal::Unknown { name: name.into(), there: self.names()? }),
            }
        }
        fn open(&self, name: &str) -> Result<Arc<dyn Export>, Refusal> {
            let about = Some(self.about(name)?);
            Ok(Arc::new(Device { about, ..Device::default() }))
        }
    }

    /// All that a client is told that sends this; what was agreed follows.
    pub(super) fn play<'b>(
        pieces: impl IntoIterator<Item = &'b [u8]>,
        encryption: Encryption,
    ) -> Vec<u8> {
        let (mut machine, mut said) = (Handshake::new(encryption), Vec::new());
        let mut rest: Option<Vec<u8>> = None;
        for piece in pieces {
            if let Some(rest) = &mut rest {
                rest.extend_from_slice(piece);
                continue;
            }
            machine.receive(piece);
            while let Some(effect) = machine.next(&Fake) {
                match effect {
                    Effect::Send(bytes) | Effect::StartTls(bytes) => said.extend(bytes),
                    Effect::Close(bytes, why) => {
                        said.extend(bytes);
                        said.extend_from_slice(why.as_bytes());
                        return said;
                    }
                    Effect::Serve(agreed) => {
                        let Agreed { export, last_words, structured, allocation, .. } = &agreed;
                        said.extend(last_words);
                        let agreed_on = (export.about(), structured, allocation);
                        said.extend_from_slice(format!("{agreed_on:?}").as_bytes());
                        rest = Some(agreed.rest);
                    }
                }
            }
        }
        said.extend(rest.unwrap_or_default());
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [u8; 4] = [0, 0, 0, 3];

    fn ask(number: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = OPTION.to_be_bytes().to_vec();
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
    }

    fn go(name: &str, kinds: &[u16]) -> Vec<u8> {
        let kinds = [kinds.len() as u16].into_iter().chain(kinds.iter().copied());
        [string(name), kinds.flat_map(u16::to_be_bytes).collect()].concat()
    }

    fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
        let count = (queries.len() as u32).to_be_bytes().to_vec();
        let queries = queries.iter().flat_map(|query| string(query)).collect();
        [string(name), count, queries].concat()
    }

    /// Kinds of the answers to options, and what was said last.
    fn answers(options: &[Vec<u8>]) -> (Vec<u32>, String) {
        answers_under(options, Encryption::None)
    }

    fn answers_under(options: &[Vec<u8>], encryption: Encryption) -> (Vec<u32>, String) {
        let asked = [BOTH.to_vec(), options.concat()].concat();
        let said = fake::play([asked.as_slice()], encryption);
        let (mut kinds, mut rest) = (Vec::new(), &said[..]);
        while rest.starts_with(&OPTION_REPLY.to_be_bytes()) {
            kinds.push(u32_of(&rest[12..16]));
            rest = &rest[20 + u32_of(&rest[16..20]) as usize..];
        }
        (kinds, String::from_utf8_lossy(rest).into_owned())
    }

    /// Options, each with the kinds of its answers.
    #[test]
    fn every_option_is_answered_as_the_protocol_says() {
        use option::*;
        use option_reply::*;
        let rows: &[(u32, Vec<u8>, &[u32])] = &[
            (LIST, vec![], &[SERVER, SERVER, ACK]),
            (LIST, vec![1], &[INVALID]),
            (option::INFO, go("disk", &[]), &[option_reply::INFO, option_reply::INFO, ACK]),
            (option::INFO, go("", &[info::NAME, 77]), &[3, 3, 3, ACK]),
            (option::INFO, go("disk", &[info::NAME, info::DESCRIPTION]), &[3, 3, 3, 3, ACK]),
            (option::INFO, go("none", &[]), &[UNKNOWN]),
            (option::INFO, go("busy", &[]), &[POLICY]),
            (GO, go("busy", &[]), &[POLICY]),
            (option::INFO, string("disk"), &[INVALID]),
            (option::INFO, [go("disk", &[]), vec![0]].concat(), &[INVALID]),
            (GO, vec![0xff; 4], &[INVALID]),
            (GO, [vec![0, 0, 0, 2, 0xff, 0xfe], vec![0, 0]].concat(), &[INVALID]),
            (STRUCTURED_REPLY, vec![0], &[INVALID]),
            (STRUCTURED_REPLY, vec![], &[ACK]),
            (LIST_META_CONTEXT, contexts("disk", &[]), &[META_CONTEXT, ACK]),
            (LIST_META_CONTEXT, contexts("disk", &["base:"]), &[META_CONTEXT, ACK]),
            (LIST_META_CONTEXT, contexts("disk", &["qemu:x"]), &[ACK]),
            (LIST_META_CONTEXT, contexts("none", &[]), &[UNKNOWN]),
            (SET_META_CONTEXT, contexts("disk", &["base:"]), &[ACK]),
            (SET_META_CONTEXT, contexts("disk", &[ALLOCATION, "x:y"]), &[META_CONTEXT, ACK]),
            (SET_META_CONTEXT, vec![0, 0, 0, 0], &[INVALID]),
            (5, vec![], &[UNSUPPORTED]),
            (11, vec![], &[UNSUPPORTED]),
            (4711, vec![9; 100], &[UNSUPPORTED]),
            (4711, vec![9; MAX_OPTION as usize + 1], &[TOO_BIG]),
        ];
        for (number, data, kinds) in rows {
            // With structured replies agreed on, and one more option behind.
            let options = [ask(STRUCTURED_REPLY, &[]), ask(*number, data), ask(LIST, &[])];
            let expected = [&[ACK], *kinds, &[SERVER, SERVER, ACK]].concat();
            let shown = &data[..data.len().min(40)];
            assert_eq!(answers(&options), (expected, String::new()), "option {number} {shown:?}");
        }
    }

    /// Nothing is agreed on, and no name is told, before all is encrypted.
    #[test]
    fn who_must_encrypt_gets_nothing_before() {
        use option::*;
        use option_reply::*;
        let under = |options: &[Vec<u8>]| answers_under(options, Encryption::Required);
        let others = [
            (LIST, vec![]),
            (GO, go("disk", &[])),
            (option::INFO, go("disk", &[])),
            (STRUCTURED_REPLY, vec![]),
            (SET_META_CONTEXT, contexts("disk", &[ALLOCATION])),
        ];
        for (number, data) in others {
            let (kinds, said) = under(&[ask(number, &data), ask(STARTTLS, &[])]);
            assert_eq!((kinds, said), (vec![TLS_REQUIRED, ACK], String::new()), "{number}");
        }
        assert_eq!(under(&[ask(EXPORT_NAME, b"disk")]), (vec![], "it does not encrypt".into()));
        assert_eq!(under(&[ask(STARTTLS, &[1])]).0, [INVALID]);
        let (kinds, said) = under(&[ask(STARTTLS, &[]), ask(LIST, &[])]);
        assert_eq!((kinds.len(), said.contains("behind its wish")), (0, true), "not encrypted");
        let done = |options: &[Vec<u8>]| answers_under(options, Encryption::Done).0;
        assert_eq!(done(&[ask(STARTTLS, &[]), ask(LIST, &[])]), [INVALID, SERVER, SERVER, ACK]);
    }

    #[test]
    fn what_was_agreed_is_what_was_asked_for() {
        let set = |name| ask(option::SET_META_CONTEXT, &contexts(name, &[ALLOCATION]));
        let structured = ask(option::STRUCTURED_REPLY, &[]);
        let go = |name| ask(option::GO, &go(name, &[]));
        let agreed = |options: &[Vec<u8>]| answers(options).1;
        assert!(agreed(&[go("")]).ends_with("false, false)"));
        assert!(agreed(&[structured.clone(), go("")]).ends_with("true, false)"));
        assert!(agreed(&[structured.clone(), set("disk"), go("")]).ends_with("true, true)"));
        let other = [structured.clone(), set("read-only"), go("disk")];
        assert!(agreed(&other).ends_with("true, false)"), "the context was of another export");
        let (kinds, _) = answers(&[set("disk"), go("disk")]);
        assert_eq!(kinds[0], option_reply::INVALID, "without structured replies");
        let request = agreed(&[go("disk"), b"a request".to_vec()]);
        assert!(request.ends_with("a request"), "what follows is not lost: {request}");
    }

    #[test]
    fn the_oldest_way_gives_an_export_or_nothing() {
        let name = |name: &str| ask(option::EXPORT_NAME, name.as_bytes());
        let said = |flags: u8, name: Vec<u8>| {
            fake::play([[&[0, 0, 0, flags][..], &name].concat().as_slice()], Encryption::None)
        };
        let size = (1u64 << 30).to_be_bytes();
        let (long, short) = (said(1, name("disk")), said(3, name("disk")));
        assert!(long.starts_with(&size) && short.starts_with(&size));
        assert_eq!(long.len(), short.len() + PADDING);
        assert!(said(3, name("none")).starts_with(b"it asked for an export"));
        assert!(said(4, vec![]).starts_with(b"its flags"));
    }

    #[test]
    fn who_cannot_be_understood_is_left() {
        let last = |bytes: &[u8]| {
            let said = fake::play([[&BOTH, bytes].concat().as_slice()], Encryption::None);
            String::from_utf8(said).unwrap()
        };
        assert_eq!(last(&[7; 16]), "what it sent is no option");
        let mut endless = ask(4711, &[]);
        endless[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(last(&endless), "an option was far too long");
        assert!(answers(&[ask(option::ABORT, &[])]).1.ends_with("it went away"));
    }

    #[test]
    fn a_read_only_export_takes_nothing() {
        let about = |name| fake::Fake.about(name).unwrap();
        let (disk, read_only) = (about("disk"), about("read-only"));
        assert_eq!(flags_of(&disk, false) & export_flag::READ_ONLY, 0);
        let changes = export_flag::SEND_TRIM | export_flag::SEND_WRITE_ZEROES;
        assert_eq!(flags_of(&read_only, true) & changes, 0);
        assert_ne!(flags_of(&read_only, true) & export_flag::SEND_DF, 0);
    }

    #[test]
    fn bytes_at_random_are_answered_the_same_however_they_arrive() {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32
        };
        for _ in 0..20_000 {
            let mut bytes = vec![next() as u8, 0, 0, 0, 3];
            for _ in 0..next() % 6 {
                let len = next() as usize % 40;
                let data: Vec<u8> = (0..len).map(|_| (next() % 7) as u8).collect();
                bytes.extend(ask(next() % 13, &data));
            }
            fuzz(&bytes);
        }
    }
}
