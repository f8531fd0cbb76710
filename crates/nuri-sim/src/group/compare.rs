//! Compares what the members of a stripe hold: copies must be equal, and parity must be that of the
//! data.

use std::fmt::Display;

use nuri_proto::layout::Shape;
use nuri_proto::op::member::Purpose;
use nuri_proto::stripe::{Covers, Held, Version};
use nuri_stripe::code::Code;
use nuri_stripe::writer::{behind, stripe_covers};
use nuri_target::store::{MemberRead, StoreError};

use super::ground::{CELLS, is_mirror};
use super::world::World;
use crate::check::{CELL, Wrong, wrong};

/// Of so many changes of what is committed one makes the world look.
const LOOK_EVERY: u64 = 16;

/// Base of one member.
type Base = (usize, Covers, Vec<u8>);

impl World {
    /// Looks now and then, while all goes on: whatever is staged and whoever is live, members whose
    /// versions fit together hold one state.
    ///
    /// # Errors
    /// The stripe whose members do not.
    pub(super) fn look(&mut self) -> Result<(), Wrong> {
        self.changes += 1;
        if !self.changes.is_multiple_of(LOOK_EVERY) {
            return Ok(());
        }
        (0..self.ground.stripes.len()).try_for_each(|stripe| self.look_at(stripe))
    }

    fn look_at(&self, number: usize) -> Result<(), Wrong> {
        let shape = self.ground.stripes[number].shape;
        let Some(bases) = self.bases(number)? else { return Ok(()) };
        let held = bases
            .iter()
            .map(|(place, covers, _)| (*place, Held { covers: covers.clone(), ..Held::default() }));
        let held: Vec<_> = held.collect();
        let covers = stripe_covers(shape, &held);
        if behind(shape, &held, &covers).iter().next().is_some() {
            return Ok(());
        }
        is_one(shape, &bases).map_err(|e| wrong!("stripe {number} ({shape}): {e}: {covers:?}"))
    }

    /// What all members hold, live or not; `None` where one does not serve.
    fn bases(&self, number: usize) -> Result<Option<Vec<Base>>, Wrong> {
        let stripe = &self.ground.stripes[number];
        let map = self.authority.map();
        let group = map.group(stripe.group).ok_or("a group is gone")?;
        let mut all = Vec::new();
        for (place, member) in group.members.iter().enumerate() {
            let node = self.nodes.iter().find(|n| n.target == member.target && !n.dying);
            let Some(store) = node.and_then(|n| n.store()) else {
                return Ok(None);
            };
            let mut chunk = vec![0; CELLS * CELL];
            let read = store.read_member(stripe.key, 0, &mut chunk, Version::NONE, Purpose::Base);
            let is_rotten = || self.ground.rotten.lock().contains(&member.target);
            match read {
                Ok(MemberRead::Read(covers)) => all.push((place, covers, chunk)),
                Ok(MemberRead::Undecided) => return Ok(None),
                Err(StoreError::Corrupt(..)) if is_rotten() => return Ok(None),
                Err(error) => return Err(wrong!("stripe {number} place {place}: {error}")),
            }
        }
        Ok(Some(all))
    }

    /// The end: nothing is undecided, nobody is behind, all fits.
    ///
    /// # Errors
    /// The stripe of which that is not so.
    pub(super) fn compare(&self) -> Result<(), Wrong> {
        for (number, stripe) in self.ground.stripes.iter().enumerate() {
            let (key, shape) = (stripe.key, stripe.shape);
            let bases = self.bases(number)?.ok_or("a member is gone")?;
            let map = self.authority.map();
            let group = map.group(stripe.group).ok_or("a group is gone")?;
            let mut held = Vec::new();
            for (place, member) in group.members.iter().enumerate() {
                let node = self.nodes.iter().find(|n| n.target == member.target);
                let store = node.and_then(|n| n.store()).ok_or("a member is gone")?;
                held.push((place, store.held(key).map_err(|e| e.to_string())?));
            }
            let told = |what: &dyn Display| wrong!("stripe {number} ({shape}): {what}: {held:?}");
            if held.iter().any(|(_, h)| h.staged.is_some()) {
                return Err(told(&"a write is undecided though all was read"));
            }
            let covers = stripe_covers(shape, &held);
            if behind(shape, &held, &covers).iter().next().is_some() {
                return Err(told(&"a member is behind"));
            }
            is_one(shape, &bases).map_err(|e| told(&e))?;
        }
        Ok(())
    }
}

/// Whether bytes whose versions fit together do so too.
fn is_one(shape: Shape, bases: &[Base]) -> Result<(), Wrong> {
    let bytes: Vec<&[u8]> = bases.iter().map(|(_, _, bytes)| &bytes[..]).collect();
    if is_mirror(shape) {
        let equal = bytes.iter().all(|b| *b == bytes[0]);
        return if equal { Ok(()) } else { Err("copies differ".into()) };
    }
    let (k, m) = (shape.data(), shape.members() - shape.data());
    let mut parity = vec![vec![0; CELLS * CELL]; m];
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    let code = Code::new(k, m).map_err(|e| e.to_string())?;
    code.encode(&bytes[..k], &mut out).map_err(|e| e.to_string())?;
    for (j, parity) in parity.iter().enumerate() {
        let differs = |cell: &usize| {
            let range = cell * CELL..(cell + 1) * CELL;
            parity[range.clone()] != bytes[k + j][range]
        };
        if let Some(cell) = (0..CELLS).find(differs) {
            return Err(wrong!("parity {j} is not that of the data at cell {cell}"));
        }
    }
    Ok(())
}
