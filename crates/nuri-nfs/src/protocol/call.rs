//! Calls on the wire: the arguments of the 22 procedures of NFS version 3. They borrow from the
//! message that they came in.

use super::attributes::{self, NewAttributes, NfsTime};
use super::{LONGEST_HANDLE, LONGEST_NAME, LONGEST_PATH, MOST_DATA};
use crate::rpc::xdr::{Garbage, Reader};

/// A handle as it comes: nobody has looked at it yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawHandle<'a>(pub &'a [u8]);

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    pub dir: RawHandle<'a>,
    pub name: &'a [u8],
}

/// When bytes must be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stable {
    /// When a COMMIT was answered.
    Later = 0,
    /// With what is needed to find them again.
    Data = 1,
    /// With all attributes.
    File = 2,
}

/// How a file is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Or the one that is there.
    Unchecked(NewAttributes),
    /// None may be there.
    Guarded(NewAttributes),
    /// None may be there that was not made with the same number.
    Exclusive([u8; 8]),
}

/// A file that is neither a regular one, nor a directory or a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    Character { major: u32, minor: u32 },
    Block { major: u32, minor: u32 },
    Socket,
    Fifo,
}

/// Where a listing goes on, and how much of it is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listing<'a> {
    pub dir: RawHandle<'a>,
    pub cookie: u64,
    /// Bytes of names, of READDIRPLUS.
    pub names: u32,
    /// Bytes of the whole answer.
    pub most: u32,
}

/// One call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    Null,
    GetAttributes(RawHandle<'a>),
    SetAttributes {
        file: RawHandle<'a>,
        new: NewAttributes,
        guard: Option<NfsTime>,
    },
    Lookup(Place<'a>),
    Access {
        file: RawHandle<'a>,
        wanted: u32,
    },
    ReadLink(RawHandle<'a>),
    Read {
        file: RawHandle<'a>,
        offset: u64,
        count: u32,
    },
    Write {
        file: RawHandle<'a>,
        offset: u64,
        stable: Stable,
        data: &'a [u8],
    },
    Create {
        place: Place<'a>,
        how: How,
    },
    MakeDirectory {
        place: Place<'a>,
        new: NewAttributes,
    },
    MakeLink {
        place: Place<'a>,
        new: NewAttributes,
        to: &'a [u8],
    },
    /// Without what it is where that is none of those.
    MakeSpecial {
        place: Place<'a>,
        what: Option<(Special, NewAttributes)>,
    },
    Remove(Place<'a>),
    RemoveDirectory(Place<'a>),
    Rename {
        from: Place<'a>,
        to: Place<'a>,
    },
    Link {
        file: RawHandle<'a>,
        place: Place<'a>,
    },
    List(Listing<'a>),
    ListWithAttributes(Listing<'a>),
    SpaceStatistics(RawHandle<'a>),
    SpaceInformation(RawHandle<'a>),
    PathLimits(RawHandle<'a>),
    Commit(RawHandle<'a>),
}

/// Why there is no request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRequest {
    Procedure,
    Arguments,
}

impl From<Garbage> for NoRequest {
    fn from(_: Garbage) -> NoRequest {
        NoRequest::Arguments
    }
}

/// The highest number of a procedure.
pub const LAST_PROCEDURE: u32 = 21;

impl<'a> Request<'a> {
    /// Reads the arguments of a procedure.
    ///
    /// # Errors
    /// There is no such procedure, or it has other arguments.
    pub fn read(procedure: u32, input: &mut Reader<'a>) -> Result<Request<'a>, NoRequest> {
        Ok(match procedure {
            0 => Request::Null,
            1 => Request::GetAttributes(handle(input)?),
            2 => {
                let (file, new) = (handle(input)?, NewAttributes::read(input)?);
                Request::SetAttributes { file, new, guard: attributes::guard(input)? }
            }
            3 => Request::Lookup(place(input)?),
            4 => Request::Access { file: handle(input)?, wanted: input.number()? },
            5 => Request::ReadLink(handle(input)?),
            6 => {
                let (file, offset) = (handle(input)?, input.long()?);
                Request::Read { file, offset, count: input.number()? }
            }
            7 => write(input)?,
            8..=11 => make(procedure, input)?,
            12 => Request::Remove(place(input)?),
            13 => Request::RemoveDirectory(place(input)?),
            14 => Request::Rename { from: place(input)?, to: place(input)? },
            15 => Request::Link { file: handle(input)?, place: place(input)? },
            16 | 17 => list(procedure, input)?,
            18 => Request::SpaceStatistics(handle(input)?),
            19 => Request::SpaceInformation(handle(input)?),
            20 => Request::PathLimits(handle(input)?),
            LAST_PROCEDURE => {
                let file = handle(input)?;
                // All of the file is made durable, whatever part is named.
                let _part = (input.long()?, input.number()?);
                Request::Commit(file)
            }
            _ => return Err(NoRequest::Procedure),
        })
    }

    /// Whether carrying it out twice is another thing than once.
    pub fn is_remembered(&self) -> bool {
        matches!(
            self,
            Request::SetAttributes { .. }
                | Request::Create { .. }
                | Request::MakeDirectory { .. }
                | Request::MakeLink { .. }
                | Request::MakeSpecial { .. }
                | Request::Remove(_)
                | Request::RemoveDirectory(_)
                | Request::Rename { .. }
                | Request::Link { .. }
        )
    }
}

fn handle<'a>(input: &mut Reader<'a>) -> Result<RawHandle<'a>, Garbage> {
    input.bytes(LONGEST_HANDLE).map(RawHandle)
}

fn place<'a>(input: &mut Reader<'a>) -> Result<Place<'a>, Garbage> {
    Ok(Place { dir: handle(input)?, name: input.bytes(LONGEST_NAME)? })
}

fn write<'a>(input: &mut Reader<'a>) -> Result<Request<'a>, Garbage> {
    let (file, offset, count) = (handle(input)?, input.long()?, input.number()?);
    let stable = match input.number()? {
        0 => Stable::Later,
        1 => Stable::Data,
        2 => Stable::File,
        _ => return Err(Garbage),
    };
    let data = input.bytes(MOST_DATA as usize)?;
    // More bytes than are meant may come, not fewer.
    let data = data.get(..count as usize).ok_or(Garbage)?;
    Ok(Request::Write { file, offset, stable, data })
}

fn make<'a>(procedure: u32, input: &mut Reader<'a>) -> Result<Request<'a>, Garbage> {
    let place = place(input)?;
    match procedure {
        8 => Ok(Request::Create { place, how: how(input)? }),
        9 => Ok(Request::MakeDirectory { place, new: NewAttributes::read(input)? }),
        10 => {
            let new = NewAttributes::read(input)?;
            Ok(Request::MakeLink { place, new, to: input.bytes(LONGEST_PATH)? })
        }
        _ => Ok(Request::MakeSpecial { place, what: special(input)? }),
    }
}

fn how(input: &mut Reader<'_>) -> Result<How, Garbage> {
    match input.number()? {
        0 => NewAttributes::read(input).map(How::Unchecked),
        1 => NewAttributes::read(input).map(How::Guarded),
        2 => input.fixed().map(How::Exclusive),
        _ => Err(Garbage),
    }
}

fn special(input: &mut Reader<'_>) -> Result<Option<(Special, NewAttributes)>, Garbage> {
    let kind = input.number()?;
    if ![3, 4, 6, 7].contains(&kind) {
        return Ok(None);
    }
    let new = NewAttributes::read(input)?;
    let what = match kind {
        3 => Special::Block { major: input.number()?, minor: input.number()? },
        4 => Special::Character { major: input.number()?, minor: input.number()? },
        6 => Special::Socket,
        _ => Special::Fifo,
    };
    Ok(Some((what, new)))
}

fn list<'a>(procedure: u32, input: &mut Reader<'a>) -> Result<Request<'a>, Garbage> {
    let (dir, cookie) = (handle(input)?, input.long()?);
    // Cookies stay true while the directory changes: what it was before does not matter.
    let _verifier: [u8; 8] = input.fixed()?;
    let first = input.number()?;
    match procedure {
        16 => Ok(Request::List(Listing { dir, cookie, names: first, most: first })),
        _ => {
            let most = input.number()?;
            Ok(Request::ListWithAttributes(Listing { dir, cookie, names: first, most }))
        }
    }
}

#[cfg(test)]
mod tests {
    use nfs3_types::nfs3;
    use nfs3_types::xdr_codec::{Opaque, Pack};

    use super::super::attributes::NewTime;
    use super::*;

    fn packed(value: &impl Pack) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.pack(&mut bytes).unwrap();
        bytes
    }

    fn fh() -> nfs3::nfs_fh3 {
        nfs3::nfs_fh3 { data: Opaque::borrowed(b"handle") }
    }

    fn dirop() -> nfs3::diropargs3<'static> {
        nfs3::diropargs3 { dir: fh(), name: b"name"[..].into() }
    }

    const HANDLE: RawHandle<'_> = RawHandle(b"handle");
    const PLACE: Place<'_> = Place { dir: HANDLE, name: b"name" };

    /// Whole, it is that; cut anywhere, it is nothing.
    fn check(procedure: u32, bytes: &[u8], expected: Request<'_>) {
        let mut input = Reader::new(bytes);
        assert_eq!(Request::read(procedure, &mut input), Ok(expected));
        assert!(input.rest().is_empty(), "{procedure}");
        for len in 0..bytes.len() {
            let cut = Request::read(procedure, &mut Reader::new(&bytes[..len]));
            assert_eq!(cut, Err(NoRequest::Arguments), "{procedure}, {len} bytes");
        }
    }

    #[test]
    fn arguments_are_read_as_others_write_them() {
        check(1, &packed(&nfs3::GETATTR3args { object: fh() }), Request::GetAttributes(HANDLE));
        check(3, &packed(&dirop()), Request::Lookup(PLACE));
        let read = nfs3::READ3args { file: fh(), offset: 1 << 33, count: 9 };
        let expected = Request::Read { file: HANDLE, offset: 1 << 33, count: 9 };
        check(6, &packed(&read), expected);
        let data = Opaque::borrowed(b"bytes");
        let stable = nfs3::stable_how::DATA_SYNC;
        let write = nfs3::WRITE3args { file: fh(), offset: 3, count: 5, stable, data };
        let (offset, stable, data) = (3, Stable::Data, &b"bytes"[..]);
        check(7, &packed(&write), Request::Write { file: HANDLE, offset, stable, data });
        let create = nfs3::CREATE3args {
            where_: dirop(),
            how: nfs3::createhow3::EXCLUSIVE(nfs3::createverf3([1, 2, 3, 4, 5, 6, 7, 8])),
        };
        let how = How::Exclusive([1, 2, 3, 4, 5, 6, 7, 8]);
        check(8, &packed(&create), Request::Create { place: PLACE, how });
        let rename = nfs3::RENAME3args { from: dirop(), to: dirop() };
        check(14, &packed(&rename), Request::Rename { from: PLACE, to: PLACE });
        let link = nfs3::LINK3args { file: fh(), link: dirop() };
        check(15, &packed(&link), Request::Link { file: HANDLE, place: PLACE });
        let commit = nfs3::COMMIT3args { file: fh(), offset: 0, count: 0 };
        check(21, &packed(&commit), Request::Commit(HANDLE));
    }

    #[test]
    fn attributes_and_devices_are_read_as_others_write_them() {
        let time = nfs3::nfstime3 { seconds: 9, nseconds: 8 };
        let attributes = nfs3::sattr3 {
            mode: nfs3::Nfs3Option::Some(0o640),
            size: nfs3::Nfs3Option::Some(1 << 40),
            mtime: nfs3::set_mtime::SET_TO_CLIENT_TIME(time),
            atime: nfs3::set_atime::SET_TO_SERVER_TIME,
            ..nfs3::sattr3::default()
        };
        let own = NfsTime { seconds: 9, nanoseconds: 8 };
        let new = NewAttributes {
            mode: Some(0o640),
            size: Some(1 << 40),
            accessed: Some(NewTime::Now),
            modified: Some(NewTime::At(own)),
            ..NewAttributes::default()
        };
        let guard = nfs3::Nfs3Option::Some(time);
        let set = nfs3::SETATTR3args { object: fh(), new_attributes: attributes.clone(), guard };
        let expected = Request::SetAttributes { file: HANDLE, new, guard: Some(own) };
        check(2, &packed(&set), expected);
        let spec = nfs3::specdata3 { specdata1: 8, specdata2: 1 };
        let device = nfs3::devicedata3 { dev_attributes: attributes, spec };
        let what = nfs3::mknoddata3::NF3BLK(device);
        let make = nfs3::MKNOD3args { where_: dirop(), what };
        let what = Some((Special::Block { major: 8, minor: 1 }, new));
        check(11, &packed(&make), Request::MakeSpecial { place: PLACE, what });
    }

    #[test]
    fn unknown_procedures_and_choices_are_refused() {
        fn read(procedure: u32, bytes: &[u8]) -> Result<Request<'_>, NoRequest> {
            Request::read(procedure, &mut Reader::new(bytes))
        }
        assert_eq!(read(22, &[]), Err(NoRequest::Procedure));
        let stable = nfs3::stable_how::FILE_SYNC;
        let data = Opaque::borrowed(b"bytes");
        let short = nfs3::WRITE3args { file: fh(), offset: 3, count: 6, stable, data };
        assert_eq!(read(7, &packed(&short)), Err(NoRequest::Arguments), "fewer bytes than said");
        let mut create = packed(&dirop());
        create.extend_from_slice(&[0, 0, 0, 9]);
        assert_eq!(read(8, &create), Err(NoRequest::Arguments));
        let mut node = packed(&dirop());
        node.extend_from_slice(&[0, 0, 0, 1]);
        let what = Request::MakeSpecial { place: PLACE, what: None };
        assert_eq!(read(11, &node), Ok(what), "a regular file is no special one");
    }
}
