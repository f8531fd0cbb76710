//! Attributes on the wire: what clients are told of a file, and what they want changed (RFC 1813,
//! 2.5 and 2.6).

use crate::rpc::xdr::{Garbage, Reader, Writer};

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NfsTime {
    pub seconds: u32,
    pub nanoseconds: u32,
}

impl NfsTime {
    fn read(input: &mut Reader<'_>) -> Result<NfsTime, Garbage> {
        let (seconds, nanoseconds) = (input.number()?, input.number()?);
        let is_time = nanoseconds < 1_000_000_000;
        if is_time { Ok(NfsTime { seconds, nanoseconds }) } else { Err(Garbage) }
    }

    fn write(self, out: &mut Writer) {
        out.number(self.seconds);
        out.number(self.nanoseconds);
    }
}

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    Regular = 1,
    Directory = 2,
    Block = 3,
    Character = 4,
    Link = 5,
    Socket = 6,
    Fifo = 7,
}

/// Attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    pub kind: FileKind,
    /// Without the bits of the kind.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub used: u64,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    pub file_system: u64,
    pub number: u64,
    pub accessed: NfsTime,
    pub modified: NfsTime,
    pub changed: NfsTime,
}

impl Attributes {
    pub(crate) fn write(&self, out: &mut Writer) {
        let words = [self.kind as u32, self.mode, self.links, self.uid, self.gid];
        words.into_iter().for_each(|word| out.number(word));
        out.long(self.size);
        out.long(self.used);
        out.number(self.device.0);
        out.number(self.device.1);
        out.long(self.file_system);
        out.long(self.number);
        [self.accessed, self.modified, self.changed].into_iter().for_each(|time| time.write(out));
    }
}

/// Attributes behind an operation, if they are known.
pub(crate) fn write_after(after: Option<&Attributes>, out: &mut Writer) {
    out.boolean(after.is_some());
    if let Some(after) = after {
        after.write(out);
    }
}

/// A file before and after a change of it: weak cache consistency. What was before is told only
/// where nothing else changed it in between, since clients then keep what they have cached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wcc {
    pub before: Option<Attributes>,
    pub after: Option<Attributes>,
}

impl Wcc {
    pub(crate) fn write(&self, out: &mut Writer) {
        out.boolean(self.before.is_some());
        if let Some(before) = &self.before {
            out.long(before.size);
            before.modified.write(out);
            before.changed.write(out);
        }
        write_after(self.after.as_ref(), out);
    }
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewTime {
    Now,
    At(NfsTime),
}

/// Attributes to set, those that are named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NewAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub accessed: Option<NewTime>,
    pub modified: Option<NewTime>,
}

impl NewAttributes {
    pub(crate) fn read(input: &mut Reader<'_>) -> Result<NewAttributes, Garbage> {
        Ok(NewAttributes {
            mode: input.option(Reader::number)?,
            uid: input.option(Reader::number)?,
            gid: input.option(Reader::number)?,
            size: input.option(Reader::long)?,
            accessed: new_time(input)?,
            modified: new_time(input)?,
        })
    }
}

fn new_time(input: &mut Reader<'_>) -> Result<Option<NewTime>, Garbage> {
    match input.number()? {
        0 => Ok(None),
        1 => Ok(Some(NewTime::Now)),
        2 => NfsTime::read(input).map(|time| Some(NewTime::At(time))),
        _ => Err(Garbage),
    }
}

/// Reads a time that may be left out: of the last change, as the client knows it.
pub(crate) fn guard(input: &mut Reader<'_>) -> Result<Option<NfsTime>, Garbage> {
    input.option(NfsTime::read)
}
