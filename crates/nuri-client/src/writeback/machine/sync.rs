//! The steps of a sync: which step comes next. Pure.

use nuri_proto::op::data::Durability;
use nuri_rules::broken;

use super::file::FileWriteback;

/// What a sync must cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncScope {
    /// Data and what is needed to read it back (`fdatasync`).
    Data,
    All,
}

/// What a sync does next.
#[derive(PartialEq, Eq, Debug)]
pub enum Step {
    /// The file gets its place on the targets.
    Place,
    /// Bytes of these blocks leave. One short piece is made durable by the same call.
    Push(Vec<u64>, Durability),
    /// Pushes are in flight: one of them ends.
    Await,
    /// Targets that hold bytes of the file in memory only flush them.
    Flush,
    /// Size and times are told: bytes up to here are durable. It is the last step.
    Publish { durable_to: u64 },
}

/// How far a sync goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// Targets have the bytes.
    Pushed,
    /// Size and times are published.
    Published,
    /// As `Published`, of a file that is being written on: what the last such sync found is made
    /// durable, and what came since stays for the next one. By then a writer of much has filled
    /// its rows; a part of a row of a redundant file costs more than twice as much.
    Aged,
}

/// One sync of a file: what was written before it began becomes durable (WRITEBACK-3).
pub struct FileSync {
    /// Bytes of that age and older.
    mark: u64,
    is_short_piece_tried: bool,
}

impl FileSync {
    pub fn begin(file: &mut FileWriteback, goal: Goal) -> FileSync {
        let mark = match goal {
            Goal::Aged => file.buffer.mark_aged(),
            _ if broken!("sync_covers_later_bytes") => u64::MAX,
            _ => file.buffer.mark(),
        };
        file.begin_sync(goal);
        FileSync { mark, is_short_piece_tried: goal != Goal::Published }
    }

    /// The next step, as the file is now.
    pub fn next(&mut self, file: &FileWriteback, is_placed: bool) -> Step {
        let buffer = &file.buffer;
        if buffer.is_empty() || broken!("published_before_bytes") {
            return Step::Publish { durable_to: file.size() };
        }
        if !is_placed {
            return Step::Place;
        }
        if !std::mem::replace(&mut self.is_short_piece_tried, true)
            && let Some(block) = buffer.only_dirty_block()
        {
            return Step::Push(vec![block], Durability::Stable);
        }
        let blocks = buffer.pushable_before(self.mark);
        if !blocks.is_empty() {
            return Step::Push(blocks, Durability::Memory);
        }
        if buffer.has_unpushed_before(self.mark) {
            return Step::Await;
        }
        match buffer.has_held_before(self.mark) && !broken!("published_before_flush") {
            true => Step::Flush,
            false => Step::Publish { durable_to: file.covered_size() },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nuri_proto::id::Ino;
    use nuri_proto::op::meta::{Attr, PublishData, Time};

    use super::super::file::{Publication, Told};
    use super::*;
    use crate::writeback::buffer::{BLOCK, PushedBytes};

    const INO: Ino = Ino(7);

    fn write(file: &mut FileWriteback, block: u64, bytes: &[u8]) {
        file.buffer.write(block, 0, bytes);
        file.reached(bytes.len() as u64);
        file.touch(Time::default(), Instant::now());
    }

    fn file() -> FileWriteback {
        FileWriteback::new(None, &Attr::default(), Instant::now())
    }

    /// A push of a block whose bytes a target has in memory.
    fn push(file: &mut FileWriteback, block: u64) -> PushedBytes {
        let push = file.buffer.begin_push(block).unwrap();
        for range in &push.ranges {
            file.pushed(push.part(*range), 4096);
        }
        push.part(push.ranges[0])
    }

    fn told(file: &FileWriteback, durable_to: u64) -> Publication {
        match file.publication(INO, SyncScope::All, durable_to) {
            Told::Call(told) => *told,
            Told::Early => panic!("early"),
            Told::Nothing => panic!("nothing"),
        }
    }

    const MEMORY: Durability = Durability::Memory;

    #[test]
    fn bytes_are_flushed_before_their_size_is_told() {
        let mut file = file();
        write(&mut file, 0, &[1; 200_000]);
        let mut sync = FileSync::begin(&mut file, Goal::Published);
        assert_eq!(sync.next(&file, false), Step::Place);
        assert_eq!(sync.next(&file, true), Step::Push(vec![0], MEMORY));
        let range = push(&mut file, 0);
        assert_eq!(sync.next(&file, true), Step::Flush);
        file.buffer.lost(range);
        assert_eq!(sync.next(&file, true), Step::Push(vec![0], MEMORY), "the target restarted");
        let range = push(&mut file, 0);
        file.buffer.durable(range);
        assert_eq!(sync.next(&file, true), Step::Publish { durable_to: 200_000 });
        let told = told(&file, 200_000);
        assert_eq!((told.call.size, told.call.data), (200_000, PublishData::OnTargets));
        file.published(&told, Instant::now());
        assert!(!file.is_dirty() && file.left_nothing());
    }

    #[test]
    fn one_short_piece_is_made_durable_by_one_call() {
        let mut file = file();
        write(&mut file, 0, b"short");
        let mut sync = FileSync::begin(&mut file, Goal::Published);
        assert_eq!(sync.next(&file, true), Step::Push(vec![0], Durability::Stable));
        let range = push(&mut file, 0);
        file.buffer.durable(range);
        assert_eq!(sync.next(&file, true), Step::Publish { durable_to: 5 });
    }

    /// WRITEBACK-3. Catches `broken!("sync_covers_later_bytes")`.
    #[test]
    fn a_sync_ends_beside_writers_and_covers_what_came_before_it() {
        let mut file = file();
        write(&mut file, 0, &[1; 1000]);
        let held = push(&mut file, 0);
        write(&mut file, 0, &[2; 500]);
        write(&mut file, 1, &[2; 500]);
        let mut sync = FileSync::begin(&mut file, Goal::Published);
        assert_eq!(sync.next(&file, true), Step::Push(vec![0, 1], MEMORY));
        let first = file.buffer.begin_push(0).unwrap();
        let first = first.part(first.ranges[0]);
        write(&mut file, 0, &[3; 100]);
        write(&mut file, 2, &[3; 3000]);
        assert_eq!(sync.next(&file, true), Step::Push(vec![1], MEMORY));
        let second = push(&mut file, 1);
        assert_eq!(sync.next(&file, true), Step::Await, "of the first block");
        file.pushed(first, 0);
        assert_eq!(sync.next(&file, true), Step::Flush);
        file.buffer.durable(held);
        file.buffer.durable(first);
        assert_eq!(sync.next(&file, true), Step::Flush);
        file.buffer.durable(second);
        assert_eq!(sync.next(&file, true), Step::Publish { durable_to: 1000 });
        let told = told(&file, 1000);
        assert_eq!(told.call.size, 1000, "what came later is not there yet");
        file.published(&told, Instant::now());
        assert!(file.is_unpublished() && file.published_size() == 1000);
    }

    #[test]
    fn a_file_that_is_written_on_is_published_as_it_was_a_while_ago() {
        let mut file = file();
        write(&mut file, 0, &[1; 4096]);
        let mut sync = FileSync::begin(&mut file, Goal::Aged);
        assert_eq!(sync.next(&file, true), Step::Publish { durable_to: 0 }, "it may grow yet");
        file.buffer.write(0, 4096, &[2; 4096]);
        file.reached(8192);
        let mut sync = FileSync::begin(&mut file, Goal::Aged);
        assert_eq!(sync.next(&file, true), Step::Push(vec![0], MEMORY));
        let range = push(&mut file, 0);
        file.buffer.write(0, 10, b"its header again");
        assert_eq!(sync.next(&file, true), Step::Flush);
        file.buffer.durable(range);
        assert_eq!(sync.next(&file, true), Step::Publish { durable_to: 4096 });
        assert_eq!(told(&file, 4096).call.size, 4096);
        let mut sync = FileSync::begin(&mut file, Goal::Aged);
        assert_eq!(file.resize_unsent(8000), None, "targets have more");
        assert_eq!(sync.next(&file, true), Step::Publish { durable_to: 8192 }, "as it was then");
        let mut sync = FileSync::begin(&mut file, Goal::Aged);
        assert_eq!(sync.next(&file, true), Step::Push(vec![0], MEMORY));
    }

    /// What is written again after a cut is younger than the sync.
    #[test]
    fn a_sync_tells_no_size_from_before_a_cut() {
        let mut file = file();
        write(&mut file, 0, &[1; 200_000]);
        let mut sync = FileSync::begin(&mut file, Goal::Published);
        assert!(file.resize_unsent(0).is_some());
        write(&mut file, 0, &[2; 100_000]);
        assert_eq!(sync.next(&file, true), Step::Publish { durable_to: 0 });
        assert_eq!(told(&file, 0).call.size, 0);
    }

    /// An empty file that a server made long lies inline no longer.
    #[test]
    fn what_is_long_lies_not_with_the_inode() {
        let mut file = FileWriteback::empty();
        assert_eq!(file.spill(1 << 40, Instant::now()), 0);
        file.resized(1 << 40, Instant::now());
        assert!(file.inline().is_none() && !file.is_dirty());
        let mut file = FileWriteback::empty();
        file.resized(1 << 40, Instant::now());
        assert!(file.inline().is_none());
        assert!(file.write_inline(0, b"bytes").is_err());
    }

    /// Blocks that a target counted while the server was told are told with the next sync.
    #[test]
    fn a_file_with_blocks_that_are_not_counted_is_published_once_more() {
        let mut file = file();
        file.resized(BLOCK, Instant::now());
        let mut sync = FileSync::begin(&mut file, Goal::Published);
        write(&mut file, 0, &[1; 200_000]);
        assert_eq!(sync.next(&file, true), Step::Publish { durable_to: BLOCK });
        let told = told(&file, BLOCK);
        let range = push(&mut file, 0);
        file.buffer.durable(range);
        file.published(&told, Instant::now());
        assert!(file.is_unpublished());
    }

    /// A small file that outgrows its inode while a sync is about to publish it.
    #[test]
    fn what_left_the_inode_is_on_the_targets_before_the_server_forgets_it() {
        let mut file = FileWriteback::new(Some(vec![7; 100]), &sized(100), Instant::now());
        assert!(file.write_inline(50, &[8; 100]).is_ok());
        file.reached(150);
        file.touch(Time::default(), Instant::now());
        let mut sync = FileSync::begin(&mut file, Goal::Published);
        assert_eq!(sync.next(&file, true), Step::Publish { durable_to: 150 });
        assert!(file.write_inline(20_000, b"far away").is_err());
        file.buffer.write(0, 20_000, b"far away");
        file.reached(20_008);
        assert!(matches!(file.publication(INO, SyncScope::All, 150), Told::Early));
        assert_eq!(sync.next(&file, true), Step::Push(vec![0], MEMORY));
        let push = file.buffer.begin_push(0).unwrap();
        for bytes in push.ranges.iter().map(|range| push.part(*range)) {
            file.pushed(bytes, 4096);
            file.buffer.durable(bytes);
        }
        assert_eq!(sync.next(&file, true), Step::Publish { durable_to: 20_008 });
        assert_eq!(told(&file, 20_008).call.data, PublishData::OnTargets);
    }

    fn sized(size: u64) -> Attr {
        Attr { size, ..Attr::default() }
    }
}
