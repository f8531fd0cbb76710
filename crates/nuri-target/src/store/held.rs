//! What the target keeps of stripes of redundant groups: a small entry per stripe, in memory. The
//! entries are written out with the index.

use nuri_proto::id::{ChunkKey, Epoch, GroupId, ObjectId, SessionId};
use nuri_proto::limit::MAX_MEMBERS;
use nuri_proto::stripe::{Covers, Held, Members, Staged, Version, WriteId};

use nuri_stripe::member::cut_off;

use super::bytes::{Fields, Put};
use super::index::{put_key, take_key};
use super::leaves::LeafMap;

/// Stripes of one truncation of which it is kept how far they went.
const MOST_CUT_OFF: usize = 1 << 16;

/// Versions as an entry keeps them. One is the rule: only parity stands for several.
enum Versions {
    One(Version),
    Many(Box<[Version]>),
}

impl Default for Versions {
    fn default() -> Self {
        Versions::One(Version::NONE)
    }
}

impl Versions {
    fn new(covers: &Covers) -> Versions {
        let all = spelled(covers);
        if all.len() > 1 { Versions::Many(all.into()) } else { Versions::One(covers.get(0)) }
    }

    fn covers(&self) -> Covers {
        match self {
            Versions::One(Version::NONE) => Covers::default(),
            Versions::One(version) => Covers::one(*version),
            Versions::Many(all) => Covers(all.to_vec()),
        }
    }
}

/// The entries up to the last that is not [`Version::NONE`].
fn spelled(covers: &Covers) -> &[Version] {
    let len = covers.0.iter().rposition(|v| *v != Version::NONE).map_or(0, |last| last + 1);
    &covers.0[..len]
}

/// A [`Held`] in less room.
#[derive(Default)]
struct Entry {
    group: GroupId,
    covers: Versions,
    last: WriteId,
    floor: Version,
    staged: Option<Box<Staged>>,
}

const _: () = assert!(size_of::<(ChunkKey, Entry)>() <= 72);

impl Entry {
    fn held(&self) -> Held {
        Held {
            group: self.group,
            covers: self.covers.covers(),
            last: self.last,
            floor: self.floor,
            staged: self.staged.as_deref().cloned(),
        }
    }
}

/// See the module's text.
#[derive(Default)]
pub struct HeldTable {
    entries: LeafMap<ChunkKey, Entry>,
    /// Encoded length of all entries.
    bytes: u64,
}

impl HeldTable {
    /// The default where nothing is held. Versions that are none are not spelled out.
    pub fn get(&self, key: ChunkKey) -> Held {
        self.entries.get(&key).map(Entry::held).unwrap_or_default()
    }

    pub fn set(&mut self, key: ChunkKey, held: &Held) {
        self.remove(key);
        if *held == Held::default() {
            return;
        }
        let staged = held.staged.clone().map(|mut staged| {
            staged.covers.0.truncate(spelled(&staged.covers).len());
            Box::new(staged)
        });
        let covers = Versions::new(&held.covers);
        let Held { group, last, floor, .. } = *held;
        *self.entries.get_or_default(key) = Entry { group, covers, last, floor, staged };
        self.bytes += encoded_len(held);
    }

    fn remove(&mut self, key: ChunkKey) {
        if let Some(entry) = self.entries.get(&key) {
            self.bytes -= encoded_len(&entry.held());
            self.entries.remove(&key);
        }
    }

    /// Forgets the object's stripes from `from` on. Of an object that stays it is known how far
    /// they went: a member whose disk lost the truncation holds nothing newer.
    pub fn truncate(&mut self, object: ObjectId, from: u32) {
        let own: Vec<_> = self.iter_of(object, from).collect();
        for (nth, key) in own.into_iter().enumerate() {
            let Held { group, floor, .. } = cut_off(&self.get(key));
            self.remove(key);
            if from > 0 && nth < MOST_CUT_OFF {
                self.set(key, &Held { group, floor, ..Held::default() });
            }
        }
    }

    /// Whether there is anything to truncate.
    pub fn has_any_of(&self, object: ObjectId, from: u32) -> bool {
        let is_cut_off = |key| {
            let held = self.get(key);
            held.covers == Covers::default() && held.staged.is_none()
        };
        self.iter_of(object, from).any(|key| from == 0 || !is_cut_off(key))
    }

    fn iter_of(&self, object: ObjectId, from: u32) -> impl Iterator<Item = ChunkKey> + '_ {
        let first = ChunkKey { object, component: 0, stripe: 0 };
        let all = self.entries.range(first).map(|(key, _)| *key);
        all.take_while(move |key| key.object == object).filter(move |key| key.stripe >= from)
    }

    pub fn len(&self) -> u64 {
        self.entries.len()
    }

    /// Bytes of the encoded table.
    pub fn image_bytes(&self) -> u64 {
        8 + self.bytes
    }

    /// Looks at `look` entries from `from` on for those of the group that were written or staged
    /// in `since` or later, and says what they will stand for if what is staged is committed. The
    /// second value tells where to look next.
    pub fn changed(
        &self,
        group: GroupId,
        since: Epoch,
        from: ChunkKey,
        look: usize,
    ) -> (Vec<(ChunkKey, Covers)>, Option<ChunkKey>) {
        let mut entries = self.entries.range(from);
        let found = entries.by_ref().take(look).filter(|(_, entry)| entry.group == group);
        let newer =
            |covers: &Covers| covers.newest() > Version::NONE && covers.newest().epoch() >= since;
        let would_be = |entry: &Entry| match &entry.staged {
            Some(staged) => staged.covers.clone(),
            None => entry.covers.covers(),
        };
        let changed = found.map(|(key, entry)| (*key, would_be(entry)));
        let changed = changed.filter(|(_, covers)| newer(covers)).collect();
        (changed, entries.next().map(|(key, _)| *key))
    }

    /// Entries that speak of versions of a later epoch than `last`.
    pub fn beyond(&self, last: Epoch) -> Vec<(ChunkKey, Held)> {
        let all = self.entries.iter().map(|(key, entry)| (*key, entry.held()));
        all.filter(|(_, held)| held.newest().epoch() > last).collect()
    }

    /// Number of entries, then each.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.entries.len());
        for (key, entry) in self.entries.iter() {
            put_key(out, *key);
            put_held(out, &entry.held());
        }
    }

    pub fn decode(f: &mut Fields<'_>) -> Option<HeldTable> {
        let mut table = HeldTable::default();
        for _ in 0..f.u64()? {
            let key = take_key(f)?;
            table.set(key, &take_held(f)?);
        }
        Some(table)
    }
}

/// Bytes of an entry in the table's image.
fn encoded_len(held: &Held) -> u64 {
    let staged = held.staged.as_ref().map_or(0, |s| 32 + 8 * spelled(&s.covers).len());
    (16 + 32 + 8 * spelled(&held.covers).len() + staged) as u64
}

pub fn put_held(out: &mut Vec<u8>, held: &Held) {
    let covers = spelled(&held.covers);
    out.put_u32(held.group.0);
    out.put_u16(covers.len() as u16);
    out.put_u16(held.staged.is_some().into());
    put_id(out, held.last);
    out.put_u64(held.floor.0);
    covers.iter().for_each(|version| out.put_u64(version.0));
    if let Some(staged) = &held.staged {
        let covers = spelled(&staged.covers);
        out.put_u64(staged.version.0);
        put_id(out, staged.id);
        out.put_u32(staged.participants.0);
        out.put_u32(covers.len() as u32);
        covers.iter().for_each(|version| out.put_u64(version.0));
    }
}

pub fn take_held(f: &mut Fields<'_>) -> Option<Held> {
    let group = GroupId(f.u32()?);
    let (count, is_staged) = (f.u16()?, f.u16()?);
    let (last, floor) = (take_id(f)?, Version(f.u64()?));
    let covers = take_covers(f, u32::from(count))?;
    let staged = if is_staged == 0 {
        None
    } else {
        let (version, id) = (Version(f.u64()?), take_id(f)?);
        let (participants, count) = (Members(f.u32()?), f.u32()?);
        Some(Staged { version, id, covers: take_covers(f, count)?, participants })
    };
    Some(Held { group, covers, last, floor, staged })
}

fn put_id(out: &mut Vec<u8>, id: WriteId) {
    out.put_u64(id.session.0);
    out.put_u64(id.number);
}

fn take_id(f: &mut Fields<'_>) -> Option<WriteId> {
    Some(WriteId { session: SessionId(f.u64()?), number: f.u64()? })
}

fn take_covers(f: &mut Fields<'_>, count: u32) -> Option<Covers> {
    let few = usize::try_from(count).ok().filter(|count| *count <= MAX_MEMBERS)?;
    Some(Covers(f.words(few)?.into_iter().map(Version).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(stripe: u32) -> ChunkKey {
        ChunkKey { object: ObjectId(u64::from(stripe) / 100), component: 0, stripe }
    }

    fn held(covers: &[u64], is_staged: bool) -> Held {
        let covers = Covers(covers.iter().map(|v| Version(*v)).collect());
        let id = WriteId { session: SessionId(3), number: 4 };
        let (version, participants) = (Version(9), Members(7));
        let staged = Staged { version, id, covers: Covers::one(version), participants };
        let staged = is_staged.then_some(staged);
        Held { group: GroupId(2), covers, last: id, floor: Version(1), staged }
    }

    #[test]
    fn image_round_trip_and_length() {
        let mut table = HeldTable::default();
        for (i, covers) in [&[][..], &[5], &[0, 7], &[1, 2, 3, 4]].into_iter().enumerate() {
            table.set(key(i as u32), &held(covers, false));
            table.set(key(100 + i as u32), &held(covers, true));
        }
        table.set(key(3), &held(&[6, 0, 0], true));
        table.set(key(2), &Held::default());
        let mut image = Vec::new();
        table.encode(&mut image);
        assert_eq!((image.len() as u64, table.len()), (table.image_bytes(), 7));
        let back = HeldTable::decode(&mut Fields::new(&image)).unwrap();
        assert_eq!(back.get(key(3)), held(&[6], true), "what is none is not spelled out");
        assert_eq!(back.get(key(102)), held(&[0, 7], true));
        assert_eq!(back.get(key(2)), Held::default());
        assert_eq!(back.image_bytes(), table.image_bytes());
        assert!(HeldTable::decode(&mut Fields::new(&image[..image.len() - 1])).is_none());
        table.truncate(ObjectId(1), 102);
        let Held { covers, floor, staged, .. } = table.get(key(103));
        assert_eq!((covers, staged, table.len()), (Covers::default(), None, 7));
        assert_eq!(floor, held(&[1, 2, 3, 4], true).newest(), "how far it went");
        assert!(!table.has_any_of(ObjectId(1), 102) && table.has_any_of(ObjectId(1), 100));
        table.truncate(ObjectId(0), 0);
        table.truncate(ObjectId(1), 0);
        assert_eq!((table.len(), table.image_bytes()), (0, 8));
    }

    /// Resident bytes of this process.
    fn resident() -> u64 {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    /// Each table has a process of its own, so that nothing else counts.
    #[test]
    fn a_stripe_takes_little_memory() {
        const CHILD: &str = "NURI_MEASURES_HELD";
        // A copy or data chunk; parity over two and four data chunks.
        let cases: [(&[u64], f64); 3] = [(&[5], 100.0), (&[5, 6], 115.0), (&[5, 6, 7, 8], 130.0)];
        let Some(case) = std::env::var_os(CHILD) else {
            let name = "store::held::tests::a_stripe_takes_little_memory";
            for case in 0..cases.len() {
                let mut child = std::process::Command::new(std::env::current_exe().unwrap());
                child.args(["--exact", name, "--nocapture"]).env(CHILD, case.to_string());
                assert!(child.status().unwrap().success());
            }
            return;
        };
        let (covers, bound) = cases[case.to_str().unwrap().parse::<usize>().unwrap()];
        let before = resident();
        let mut table = HeldTable::default();
        (0..400_000).for_each(|stripe| table.set(key(stripe), &held(covers, false)));
        let bytes = (resident() - before) as f64 / 400_000.0;
        println!("{} versions: {bytes:.1} bytes per stripe", covers.len());
        assert!(bytes <= bound, "{bytes:.1}");
    }
}
