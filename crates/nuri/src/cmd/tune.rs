//! `nuri fs tune`: how a mount moves bulk data, as its attribute `nuri.flow` shows and takes it.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::Serialize;

use super::fs::{attribute, fields};
use crate::Failure;
use crate::cli::{Override, Overrides, Tune, TuneSet};
use crate::show::{human, print_json};

const FLOW_ATTRIBUTE: &str = "nuri.flow";
const AUTO: &str = "auto";

/// As the mount shows it.
#[derive(Serialize)]
struct View {
    /// Bytes and counts that are forced.
    forced_buffer: Option<u64>,
    forced_streams: Option<u64>,
    forced_read_ahead: Option<u64>,
    forced_write_behind: Option<u64>,
    forced_threads: Option<u64>,
    streams: Option<u64>,
    /// Bytes that the kernel reads ahead, and that are buffered for writing at most.
    read_ahead: Option<u64>,
    write_behind: Option<u64>,
    /// That fetch ahead for programs that bypass the kernel's cache.
    threads: Option<u64>,
    /// Bytes of a flow buffer.
    write_buffer: Option<u64>,
    read_buffer: Option<u64>,
    /// Bytes per second.
    write_rate: Option<u64>,
    read_rate: Option<u64>,
}

impl Overrides {
    /// With the names that the mount knows them by.
    fn named(&self) -> [(&'static str, Option<Override>); 5] {
        [
            ("buffer", self.buffer),
            ("streams", self.streams),
            ("read_ahead", self.read_ahead),
            ("write_behind", self.write_behind),
            ("threads", self.threads),
        ]
    }
}

pub(crate) fn run(tune: Tune) -> Result<(), Failure> {
    match tune {
        Tune::Get { path, json } => get(&path, json),
        Tune::Set(TuneSet { path, overrides }) => set(&path, &overrides),
    }
}

fn view(fields: &BTreeMap<&str, &str>) -> View {
    let field = |key| fields.get(key).and_then(|value| value.parse().ok());
    View {
        forced_buffer: field("buffer"),
        forced_streams: field("streams"),
        forced_read_ahead: field("read_ahead"),
        forced_write_behind: field("write_behind"),
        forced_threads: field("threads"),
        streams: field("streams_now"),
        read_ahead: field("read_ahead_now"),
        write_behind: field("write_behind_now"),
        threads: field("threads_now"),
        write_buffer: field("write_buffer"),
        read_buffer: field("read_buffer"),
        write_rate: field("write_rate"),
        read_rate: field("read_rate"),
    }
}

fn get(path: &Path, json: bool) -> Result<(), Failure> {
    let view = view(&fields(&attribute(path, FLOW_ATTRIBUTE)?));
    if json {
        return print_json(&view);
    }
    let forced = |choice: Option<u64>| if choice.is_some() { "forced" } else { AUTO };
    let buffers = forced(view.forced_buffer);
    let ways =
        [("write", view.write_buffer, view.write_rate), ("read", view.read_buffer, view.read_rate)];
    for (name, buffer, rate) in ways {
        let rate = rate.map_or("not measured yet".into(), |rate| format!("{}/s", human(rate)));
        println!("{name:<12} {:>9} {buffers:<7} {rate}", human(buffer.unwrap_or(0)));
    }
    let bytes = |value: Option<u64>| human(value.unwrap_or(0));
    let count = |value: Option<u64>| value.unwrap_or(0).to_string();
    let rest = [
        ("streams", count(view.streams), view.forced_streams),
        ("read-ahead", bytes(view.read_ahead), view.forced_read_ahead),
        ("write-behind", bytes(view.write_behind), view.forced_write_behind),
        ("threads", count(view.threads), view.forced_threads),
    ];
    for (name, now, choice) in rest {
        println!("{name:<12} {now:>9} {}", forced(choice));
    }
    Ok(())
}

fn set(path: &Path, overrides: &Overrides) -> Result<(), Failure> {
    let overrides = overrides.named();
    if overrides.iter().all(|(_, choice)| choice.is_none()) {
        return Err(Failure(
            "say what to set: --buffer, --streams, --read-ahead, --write-behind or --threads"
                .into(),
        ));
    }
    let old = attribute(path, FLOW_ATTRIBUTE)?;
    let old = fields(&old);
    let word = |(name, choice): (&str, Option<Override>)| {
        let kept = old.get(name).copied().unwrap_or(AUTO).to_string();
        let forced = choice.map_or(kept, |choice| choice.0.map_or(AUTO.into(), |n| n.to_string()));
        format!("{name}={forced}")
    };
    let text = overrides.map(word).join(" ");
    let set = rustix::fs::setxattr(path, FLOW_ATTRIBUTE, text.as_bytes(), XattrFlags::empty());
    set.map_err(|e| match e {
        Errno::PERM | Errno::ACCESS => {
            Failure(format!("only root and whoever mounted {} may set it", path.display()))
        }
        Errno::INVAL => Failure(format!(
            "the mount at {} is of another version: mount it anew with this one",
            path.display()
        )),
        Errno::NOTSUP => Failure(format!(
            "{}: how far the kernel reads ahead cannot be set there (/sys/class/bdi)",
            path.display()
        )),
        e => Failure(format!("{} refuses the setting: {e}", path.display())),
    })
}
