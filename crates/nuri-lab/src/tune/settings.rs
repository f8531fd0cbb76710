//! The settings that a search varies: a directory's layout and a mount's settings, one axis after
//! the other. Pure.

use std::fmt;

use clap::ValueEnum;
use nuri_proto::size::human;
use serde_json::{Value, json};

use super::layout::{self, Setting};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// What is varied while the rest stays.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Axis {
    /// Chunk size and width of the directory's new files
    Layout,
    /// Bytes of the mount's flow buffers
    Buffer,
    /// Flow buffers in flight at once, and so the threads that write
    Streams,
    /// Bytes that are read ahead of a program
    ReadAhead,
    /// Bytes that are buffered for writing
    WriteBehind,
    /// Threads that read ahead, for programs that bypass the kernel's cache (--direct)
    Threads,
}

/// Axes that are settings of a mount, in the order of [`Mount`].
const OF_MOUNT: [Axis; 5] =
    [Axis::Buffer, Axis::Streams, Axis::ReadAhead, Axis::WriteBehind, Axis::Threads];

/// Which of an axis' values can matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    Data,
    Names,
}

/// What is forced of a mount, as its attribute `nuri.flow` has it; none is left to the mount.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Mount([Option<u64>; OF_MOUNT.len()]);

/// One value on each axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub(crate) layout: Setting,
    pub(crate) mount: Mount,
}

impl Axis {
    /// In sentences and records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Axis::Layout => "layout",
            Axis::Buffer => "flow buffer",
            Axis::Streams => "streams",
            Axis::ReadAhead => "read-ahead",
            Axis::WriteBehind => "write-behind",
            Axis::Threads => "threads",
        }
    }

    /// In `nuri.flow`, and with `-` in the options of `nuri fs tune set`.
    fn key(self) -> &'static str {
        match self {
            Axis::Layout => "layout",
            Axis::Buffer => "buffer",
            Axis::Streams => "streams",
            Axis::ReadAhead => "read_ahead",
            Axis::WriteBehind => "write_behind",
            Axis::Threads => "threads",
        }
    }

    fn place(self) -> Option<usize> {
        OF_MOUNT.iter().position(|axis| *axis == self)
    }

    pub(crate) fn is_of_mount(self) -> bool {
        self.place().is_some()
    }

    /// What is tried beside leaving it to the mount.
    fn values(self) -> &'static [u64] {
        match self {
            Axis::Layout => &[],
            Axis::Buffer => &[64 * KIB, 256 * KIB, 512 * KIB, MIB],
            Axis::Streams => &[1, 2, 4, 8],
            Axis::ReadAhead => &[128 * KIB, 512 * KIB, MIB, 4 * MIB, 8 * MIB],
            Axis::WriteBehind => &[8 * MIB, 32 * MIB, 64 * MIB, 192 * MIB, 256 * MIB],
            Axis::Threads => &[1, 2, 4, 8],
        }
    }

    /// What is set now, which is to be beaten, and what differs from it on this axis alone.
    pub(crate) fn choices(self, now: Choice, of: Of) -> Vec<Choice> {
        let others: Vec<Choice> = match self.place() {
            Some(place) => {
                let values = std::iter::once(None).chain(self.values().iter().copied().map(Some));
                let choice = |value| {
                    let mut mount = now.mount;
                    mount.0[place] = value;
                    Choice { mount, ..now }
                };
                values.map(choice).filter(|choice| *choice != now).collect()
            }
            None => {
                let layouts = match of {
                    Of::Data => layout::others(now.layout),
                    Of::Names => layout::other_widths(now.layout),
                };
                layouts.into_iter().map(|layout| Choice { layout, ..now }).collect()
            }
        };
        std::iter::once(now).chain(others).collect()
    }

    /// What a choice has there, in words.
    pub(crate) fn words(self, choice: &Choice) -> String {
        let Some(place) = self.place() else { return choice.layout.to_string() };
        let value = match (choice.mount.0[place], self) {
            (None, _) => "auto".into(),
            (Some(count), Axis::Streams | Axis::Threads) => count.to_string(),
            (Some(bytes), _) => human(bytes),
        };
        format!("{} {value}", self.name())
    }
}

impl Mount {
    /// From what the mount shows. None where it does not know all of it.
    pub(crate) fn parse(text: &str) -> Option<Mount> {
        let mut mount = Mount::default();
        for (axis, value) in OF_MOUNT.iter().zip(&mut mount.0) {
            let words = text.split_whitespace().filter_map(|word| word.split_once('='));
            let found = words.into_iter().find(|(name, _)| *name == axis.key());
            *value = match found?.1 {
                "auto" => None,
                number => Some(number.parse().ok()?),
            };
        }
        Some(mount)
    }
}

impl fmt::Display for Mount {
    /// As the mount takes it.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let word = |(axis, value): (&Axis, &Option<u64>)| {
            let value = value.map_or("auto".into(), |value| value.to_string());
            format!("{}={value}", axis.key())
        };
        let words: Vec<_> = OF_MOUNT.iter().zip(&self.0).map(word).collect();
        f.write_str(&words.join(" "))
    }
}

impl Choice {
    /// Axes on which it is another one.
    pub(crate) fn differs(&self, from: &Choice) -> Vec<Axis> {
        let layout = (self.layout != from.layout).then_some(Axis::Layout);
        let mount = OF_MOUNT.iter().zip(self.mount.0.iter().zip(&from.mount.0));
        let mount = mount.filter(|(_, (own, other))| own != other).map(|(axis, _)| *axis);
        layout.into_iter().chain(mount).collect()
    }

    /// What it has on these axes, in words.
    pub(crate) fn words(&self, axes: &[Axis]) -> String {
        axes.iter().map(|axis| axis.words(self)).collect::<Vec<_>>().join(", ")
    }

    /// What a user types to get from the other one to it.
    pub(crate) fn commands(&self, from: &Choice, dir: &str) -> Vec<String> {
        let axes = self.differs(from);
        let Setting { chunk, width } = self.layout;
        let layout = format!("nuri fs layout set --chunk-size {chunk} --width {width} {dir}");
        let option = |axis: &Axis| {
            let value = self.mount.0[axis.place()?].map_or("auto".into(), |n| n.to_string());
            Some(format!(" --{} {value}", axis.key().replace('_', "-")))
        };
        let options: String = axes.iter().filter_map(option).collect();
        let mount = format!("nuri fs tune set{options} {dir}");
        let is_layout = axes.contains(&Axis::Layout);
        let all = [(is_layout, layout), (!options.is_empty(), mount)];
        all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, command)| command).collect()
    }

    /// Null is left to the mount.
    pub(crate) fn as_json(&self) -> Value {
        let mut all = json!({ "chunk_size": self.layout.chunk, "width": self.layout.width });
        for (axis, value) in OF_MOUNT.iter().zip(&self.mount.0) {
            all[axis.key()] = json!(value);
        }
        all
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn plain() -> Choice {
        Choice { layout: Setting { chunk: MIB, width: 0 }, mount: Mount::default() }
    }

    /// With another value on an axis of the mount.
    pub(crate) fn with(axis: Axis, value: u64) -> Choice {
        let mut choice = plain();
        choice.mount.0[axis.place().unwrap()] = Some(value);
        choice
    }

    #[test]
    fn a_mount_is_read_as_it_is_written() {
        let shown = "buffer=auto streams=2 read_ahead=0 write_behind=auto threads=auto \
                     streams_now=2 write_rate=unknown";
        let mount = Mount::parse(shown).unwrap();
        assert_eq!(mount.0, [None, Some(2), Some(0), None, None]);
        assert_eq!(Mount::parse(&mount.to_string()), Some(mount));
        assert_eq!(Mount::parse("buffer=auto streams=auto streams_now=4"), None, "an older mount");
        assert_eq!(Mount::parse(&shown.replace("streams=2", "streams=x")), None);
    }

    /// The mount knows these bounds, and would refuse.
    #[test]
    fn what_is_tried_can_be_set() {
        use nuri_volume::transfer::Forced;
        for axis in OF_MOUNT {
            for choice in axis.choices(plain(), Of::Data) {
                let text = choice.mount.to_string();
                assert_eq!(text.parse::<Forced>().unwrap().to_string(), text);
            }
        }
    }

    #[test]
    fn an_axis_varies_itself_alone() {
        let now = with(Axis::Streams, 2);
        let choices = Axis::Streams.choices(now, Of::Data);
        assert_eq!((choices[0], choices.len()), (now, 5));
        assert!(choices[1..].iter().all(|choice| choice.differs(&now) == [Axis::Streams]));
        assert!(choices.contains(&plain()), "left to the mount again");
        let layouts = Axis::Layout.choices(now, Of::Data);
        assert_eq!((layouts[0], layouts.len()), (now, 12));
        assert_eq!(Axis::Layout.choices(now, Of::Names).len(), 3);
    }

    #[test]
    fn a_choice_is_told_as_it_is_typed() {
        let mut choice = with(Axis::ReadAhead, 4 * MIB);
        assert_eq!(choice.words(&choice.differs(&plain())), "read-ahead 4.0 MiB");
        assert_eq!(plain().words(&[Axis::Streams]), "streams auto");
        assert_eq!(choice.commands(&plain(), "/d"), ["nuri fs tune set --read-ahead 4194304 /d"]);
        choice.layout.width = 2;
        let commands = plain().commands(&choice, "/d");
        let wanted = [
            "nuri fs layout set --chunk-size 1048576 --width 0 /d",
            "nuri fs tune set --read-ahead auto /d",
        ];
        assert_eq!(commands, wanted);
        assert_eq!(choice.as_json()["read_ahead"], 4 * MIB);
        assert!(choice.as_json()["streams"].is_null());
    }
}
