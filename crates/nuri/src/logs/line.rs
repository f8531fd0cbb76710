//! One line for each thing that happened: when, how bad, in which process, what.
//!
//! ```text
//! 2026-11-26T05:12:03.418205Z  WARN node0[4711] node 2 at 10.0.0.2:7000 is not heard from
//! ```
//!
//! For programs, with `NURI_LOG_FORMAT=json`:
//!
//! ```text
//! {"time":"2026-11-26T05:12:03.4182Z","level":"WARN","process":"node0[4711]","said":"node 2 ..."}
//! ```

use std::borrow::Cow;
use std::fmt::{self, Debug, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::plain;
use super::rotation::Rotation;

/// Says to a process which file its output goes to.
pub(crate) const LOG: &str = "NURI_LOG";

/// Chooses how lines look.
const FORMAT: &str = "NURI_LOG_FORMAT";

/// How a line looks.
enum Style {
    /// Of a process that stays: time, level, process.
    Log(String),
    /// The same as an object.
    Json(String),
    /// Of a command: who says it.
    Command,
}

/// From now on this process, a node or a mount perhaps, logs in lines.
pub(crate) fn begin(process: &str) {
    let process = format!("{process}[{}]", std::process::id());
    let style = match std::env::var_os(FORMAT).is_some_and(|format| format == "json") {
        true => Style::Json(process),
        false => Style::Log(process),
    };
    let rotation = Rotation::of(std::env::var_os(LOG).map(PathBuf::from));
    let _ = tracing_subscriber::fmt()
        .event_format(style)
        .with_writer(move || rotation.clone())
        .try_init();
}

/// What a command meets on its way is said as its errors are.
pub(crate) fn begin_command() {
    let _ = tracing_subscriber::fmt()
        .event_format(Style::Command)
        .with_writer(std::io::stderr)
        .try_init();
}

/// What a line of a log says, where it tells of an error.
pub(super) fn error_in(line: &str) -> Option<String> {
    if let Ok(row) = serde_json::from_str::<Row<'_>>(line) {
        return (row.level == "ERROR").then(|| row.said.into_owned());
    }
    let (before, said) = line.split_once("] ")?;
    before.contains(" ERROR ").then(|| said.to_owned())
}

/// A line for programs.
#[derive(Serialize, Deserialize)]
struct Row<'l> {
    time: Cow<'l, str>,
    level: Cow<'l, str>,
    process: Cow<'l, str>,
    said: Cow<'l, str>,
}

/// What an event says.
#[derive(Default)]
struct Said(String);

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl<S, N> FormatEvent<S, N> for Style
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut said = Said::default();
        event.record(&mut said);
        // Names of files are in it, and words of others.
        let said = plain(&said.0);
        let level = event.metadata().level().as_str();
        match self {
            Style::Log(process) => {
                SystemTime.format_time(&mut line)?;
                writeln!(line, " {level:>5} {process} {said}")
            }
            Style::Json(process) => {
                let mut time = String::new();
                SystemTime.format_time(&mut Writer::new(&mut time))?;
                let (time, level, process) = (time.into(), level.into(), process.into());
                let row = serde_json::to_string(&Row { time, level, process, said });
                writeln!(line, "{}", row.map_err(|_| fmt::Error)?)
            }
            Style::Command => writeln!(line, "nuri: {said}"),
        }
    }
}
