//! What each member of a group gets of a write. Data members and copies get bytes. Parity members
//! get parity, or a change of it.

use std::borrow::Cow;

use nuri_io::buf::{BufPool, PooledBuf};
use nuri_proto::Status;
use nuri_proto::layout::Shape;
use nuri_proto::stripe::{Change, Members};
use nuri_stripe::code::{Code, CodeError};

use super::part::Part;
use super::read_modify_write::Old;

/// One member's share of a write.
pub(super) struct Share<'a> {
    pub(super) place: usize,
    pub(super) change: Change,
    pub(super) payload: Payload<'a>,
}

/// The writer's bytes, or parity computed from them.
pub(super) enum Payload<'a> {
    Data(&'a [u8]),
    Parity(PooledBuf),
}

impl std::ops::Deref for Payload<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Payload::Data(data) => data,
            Payload::Parity(parity) => parity,
        }
    }
}

/// The range of the chunks that the parts touch.
pub(super) struct Hull {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Hull {
    pub(super) fn of(parts: &[Part<'_>]) -> Hull {
        let start = parts.iter().map(|p| p.offset).min().unwrap_or(0);
        let end = parts.iter().map(Part::end).max().unwrap_or(0);
        Hull { start, end }
    }

    pub(super) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

pub(super) fn code(shape: Shape) -> Result<Code, Status> {
    let Shape::Parity { k, m } = shape else { return Err(Status::INVAL) };
    Code::new(usize::from(k), usize::from(m)).map_err(|_| Status::INVAL)
}

pub(super) fn code_status(_: CodeError) -> Status {
    Status::IO
}

/// Whether the parts are whole rows, so that parity follows from them alone.
pub(super) fn is_full(shape: Shape, parts: &[Part<'_>]) -> bool {
    let hull = Hull::of(parts);
    parts.len() == shape.data()
        && parts.iter().all(|p| p.offset == hull.start && p.end() == hull.end)
}

/// Shares of data members and copies.
pub(super) fn data_shares<'a>(
    shape: Shape,
    parts: &[Part<'a>],
    participants: Members,
) -> Vec<Share<'a>> {
    let share = |place: usize, part: &Part<'a>| Share {
        place,
        change: Change::Bytes { offset: part.offset },
        payload: Payload::Data(part.data),
    };
    match shape {
        Shape::Parity { .. } => {
            let here = parts.iter().filter(|p| participants.has(p.place));
            here.map(|part| share(part.place, part)).collect()
        }
        Shape::Stripe | Shape::Mirror(_) => {
            parts.iter().flat_map(|part| participants.iter().map(|p| share(p, part))).collect()
        }
    }
}

/// Parity of whole rows.
pub(super) fn full_parity<'a>(
    buffers: &BufPool,
    shape: Shape,
    parts: &[Part<'_>],
    participants: Members,
) -> Result<Vec<Share<'a>>, Status> {
    let hull = Hull::of(parts);
    let mut by_place: Vec<&Part<'_>> = parts.iter().collect();
    by_place.sort_by_key(|p| p.place);
    let data: Vec<&[u8]> = by_place.iter().map(|p| p.data).collect();
    let mut parity = blank(buffers, shape, &hull);
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[..]).collect();
    code(shape)?.encode(&data, &mut out).map_err(code_status)?;
    let change = |_| Change::Bytes { offset: hull.start };
    Ok(shares(shape, parity, change, participants))
}

/// What parity members get where old and new bytes of the parts differ. They get the new parity
/// where the old one is known, else its change.
pub(super) fn parity_change<'a>(
    buffers: &BufPool,
    shape: Shape,
    parts: &[Part<'_>],
    old: Old,
    participants: Members,
) -> Result<Vec<Share<'a>>, Status> {
    let (hull, code) = (Hull::of(parts), code(shape)?);
    let mut parity = blank(buffers, shape, &hull);
    parity.iter_mut().for_each(|parity| parity.fill(0));
    for (part, old) in parts.iter().zip(old.data) {
        let change: Cow<'_, [u8]> = match old {
            None => Cow::Borrowed(part.data),
            Some(mut old) => {
                old.iter_mut().zip(part.data).for_each(|(o, n)| *o ^= n);
                Cow::Owned(old)
            }
        };
        let at = (part.offset - hull.start) as usize;
        for (j, parity) in parity.iter_mut().enumerate() {
            let range = &mut parity[at..at + change.len()];
            code.update(j, part.place, &change, range).map_err(code_status)?;
        }
    }
    for (place, old) in &old.parity {
        let parity = &mut parity[place - shape.data()];
        parity.iter_mut().zip(&old[..]).for_each(|(p, o)| *p ^= o);
    }
    let offset = hull.start;
    let change = |place| match old.parity.iter().any(|(p, _)| *p == place) {
        true => Change::Bytes { offset },
        false => Change::Xor { offset },
    };
    Ok(shares(shape, parity, change, participants))
}

/// A buffer for each parity member, with whatever was in it.
fn blank(buffers: &BufPool, shape: Shape, hull: &Hull) -> Vec<PooledBuf> {
    let one = |_| {
        let mut buffer = buffers.take();
        buffer.set_len(hull.len());
        buffer
    };
    (shape.data()..shape.members()).map(one).collect()
}

/// Finds, by place, the chunks of one range that do not fit the others: copies unlike the first, or
/// parity unlike what follows from the data.
pub(super) fn misfits(shape: Shape, chunks: &[(usize, &[u8])]) -> Result<Members, Status> {
    let Some((_, first)) = chunks.first() else { return Ok(Members::default()) };
    let Shape::Parity { .. } = shape else {
        let odd = chunks.iter().filter(|(_, bytes)| bytes != first);
        return Ok(Members::of(odd.map(|(place, _)| *place)));
    };
    let (data, parity) = chunks.split_at(chunks.partition_point(|(p, _)| *p < shape.data()));
    if data.len() < shape.data() {
        return Ok(Members::default());
    }
    let data: Vec<&[u8]> = data.iter().map(|(_, bytes)| *bytes).collect();
    let mut wanted = vec![vec![0; first.len()]; shape.members() - shape.data()];
    let mut out: Vec<&mut [u8]> = wanted.iter_mut().map(|p| &mut p[..]).collect();
    code(shape)?.encode(&data, &mut out).map_err(code_status)?;
    let odd = parity.iter().filter(|(place, bytes)| *bytes != wanted[place - shape.data()]);
    Ok(Members::of(odd.map(|(place, _)| *place)))
}

fn shares<'a>(
    shape: Shape,
    parity: Vec<PooledBuf>,
    change: impl Fn(usize) -> Change,
    participants: Members,
) -> Vec<Share<'a>> {
    let places = shape.data()..;
    let all = places.zip(parity).filter(|(place, _)| participants.has(*place));
    let share =
        |(place, parity)| Share { place, change: change(place), payload: Payload::Parity(parity) };
    all.map(share).collect()
}
