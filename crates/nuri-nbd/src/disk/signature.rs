//! What an unused disk holds, told by marks at known places.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use nuri_proto::limit::TARGET_MAGIC;

/// Something that would be lost, or go wrong, if another one wrote to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signature {
    Target,
    Lvm,
    Md,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Signature::Target => "a target of a Nuri space",
            Signature::Lvm => "a member of LVM",
            Signature::Md => "a member of an md array",
        })
    }
}

const HEAD: usize = 8192;
const SECTOR: usize = 512;
const LVM: &[u8] = b"LABELONE";
const MD: [u8; 4] = 0xa92b_4efcu32.to_le_bytes();
/// Places of md's superblock, from the start: versions 1.1 and 1.2.
const MD_AT: [usize; 2] = [0, 4096];
/// From the end, which is rounded down to this: versions 1.0 and 0.90.
const MD_BEFORE_END: [(u64, u64); 2] = [(8192, 4096), (65536, 65536)];

pub(super) fn signature(path: &Path) -> io::Result<Option<Signature>> {
    let mut file = File::open(path)?;
    let size = file.seek(SeekFrom::End(0))?;
    let head = read_at(&mut file, 0, HEAD)?;
    let ends = MD_BEFORE_END.map(|(before, unit)| (size / unit * unit).checked_sub(before));
    let is_md_at_end = ends.into_iter().flatten().map(|at| read_at(&mut file, at, MD.len()));
    let is_md_at_end = is_md_at_end.collect::<io::Result<Vec<_>>>()?.iter().any(|mark| *mark == MD);
    Ok(of_head(&head).or(is_md_at_end.then_some(Signature::Md)))
}

/// Bytes from there on, fewer at the end.
fn read_at(file: &mut File, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len);
    file.seek(SeekFrom::Start(at))?;
    file.take(len as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn of_head(head: &[u8]) -> Option<Signature> {
    let is_at = |at: usize, mark: &[u8]| head.get(at..at + mark.len()) == Some(mark);
    if is_at(0, TARGET_MAGIC) {
        return Some(Signature::Target);
    }
    if (0..4).any(|sector| is_at(sector * SECTOR, LVM)) {
        return Some(Signature::Lvm);
    }
    MD_AT.into_iter().any(|at| is_at(at, &MD)).then_some(Signature::Md)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(marks: &[(usize, &[u8])]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = vec![0; 1_000_000];
        for (at, mark) in marks {
            bytes[*at..at + mark.len()].copy_from_slice(mark);
        }
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn what_lies_on_a_disk_is_known_by_its_marks() {
        // The sizes of disks are no multiple of 64 KiB.
        let end = 1_000_000;
        type Row<'r> = (&'r [(usize, &'r [u8])], Option<Signature>);
        let rows: &[Row<'_>] = &[
            (&[], None),
            (&[(0, TARGET_MAGIC)], Some(Signature::Target)),
            (&[(512, LVM)], Some(Signature::Lvm)),
            (&[(2048, LVM)], None),
            (&[(0, &MD)], Some(Signature::Md)),
            (&[(4096, &MD)], Some(Signature::Md)),
            (&[(end / 4096 * 4096 - 8192, &MD)], Some(Signature::Md)),
            (&[(end / 65536 * 65536 - 65536, &MD)], Some(Signature::Md)),
            (&[(300_000, &MD)], None),
        ];
        for (marks, expected) in rows {
            assert_eq!(signature(disk(marks).path()).unwrap(), *expected, "{marks:?}");
        }
    }

    #[test]
    fn a_disk_of_a_few_bytes_has_no_marks() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"x").unwrap();
        assert_eq!(signature(file.path()).unwrap(), None);
    }
}
