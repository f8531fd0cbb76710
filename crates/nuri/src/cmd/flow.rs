//! `nuri fs flow`: a mount's flow buffers.

use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::Serialize;

use super::fs::{attribute, fields};
use crate::Failure;
use crate::cli::{Flow, Wish};
use crate::show::{human, print_json};

const FLOW_ATTRIBUTE: &str = "nuri.flow";
const AUTO: &str = "auto";

/// As the mount shows it.
#[derive(Serialize)]
struct View {
    /// Bytes and count that are forced.
    forced_buffer: Option<u64>,
    forced_streams: Option<u64>,
    streams: Option<u64>,
    /// Bytes of a flow buffer.
    write_buffer: Option<u64>,
    read_buffer: Option<u64>,
    /// Bytes per second.
    write_rate: Option<u64>,
    read_rate: Option<u64>,
}

pub(crate) fn run(flow: Flow) -> Result<(), Failure> {
    match flow {
        Flow::Get { path, json } => get(&path, json),
        Flow::Set { path, buffer, streams } => set(&path, buffer, streams),
    }
}

fn view(path: &Path) -> Result<View, Failure> {
    let text = attribute(path, FLOW_ATTRIBUTE)?;
    let fields = fields(&text);
    let field = |key| fields.get(key).and_then(|value| value.parse().ok());
    Ok(View {
        forced_buffer: field("buffer"),
        forced_streams: field("streams"),
        streams: field("streams_now"),
        write_buffer: field("write_buffer"),
        read_buffer: field("read_buffer"),
        write_rate: field("write_rate"),
        read_rate: field("read_rate"),
    })
}

fn get(path: &Path, json: bool) -> Result<(), Failure> {
    let view = view(path)?;
    if json {
        return print_json(&view);
    }
    let forced = |wish: Option<u64>| if wish.is_some() { "forced" } else { AUTO };
    let buffers = forced(view.forced_buffer);
    let ways =
        [("write", view.write_buffer, view.write_rate), ("read", view.read_buffer, view.read_rate)];
    for (name, buffer, rate) in ways {
        let rate = rate.map_or("not measured yet".into(), |rate| format!("{}/s", human(rate)));
        println!("{name:<8} {:>9} {buffers:<7} {rate}", human(buffer.unwrap_or(0)));
    }
    println!("streams  {:>9} {}", view.streams.unwrap_or(0), forced(view.forced_streams));
    Ok(())
}

fn set(path: &Path, buffer: Option<Wish>, streams: Option<Wish>) -> Result<(), Failure> {
    if buffer.is_none() && streams.is_none() {
        return Err(Failure("say what to set: --buffer or --streams".into()));
    }
    let old = view(path)?;
    let word = |wish: Option<Wish>, old: Option<u64>| {
        let forced = wish.map_or(old, |wish| wish.0);
        forced.map_or(AUTO.to_string(), |n| n.to_string())
    };
    let (buffer, streams) = (word(buffer, old.forced_buffer), word(streams, old.forced_streams));
    let text = format!("buffer={buffer} streams={streams}");
    let set = rustix::fs::setxattr(path, FLOW_ATTRIBUTE, text.as_bytes(), XattrFlags::empty());
    set.map_err(|e| match e {
        Errno::PERM | Errno::ACCESS => {
            Failure(format!("only root and whoever mounted {} may set it", path.display()))
        }
        e => Failure(format!("{} refuses the setting: {e}", path.display())),
    })
}
