//! One line for each thing that happened: when, how bad, in which process, what.
//!
//! ```text
//! 2026-11-26T05:12:03.418205Z  WARN node0[4711] node 2 at 10.0.0.2:7000 is not heard from
//! ```

use std::fmt::{self, Debug, Write};
use std::path::PathBuf;

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

/// How a line begins.
enum Style {
    /// Of a process that stays: time, level, process.
    Log(String),
    /// Of a command: who says it.
    Command,
}

/// From now on this process, a node or a mount perhaps, logs in lines.
pub(crate) fn begin(process: &str) {
    let style = Style::Log(format!("{process}[{}]", std::process::id()));
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
pub(super) fn error_in(line: &str) -> Option<&str> {
    let (before, said) = line.split_once("] ")?;
    before.contains(" ERROR ").then_some(said)
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
        match self {
            Style::Log(process) => {
                SystemTime.format_time(&mut line)?;
                write!(line, " {:>5} {process} ", event.metadata().level())?;
            }
            Style::Command => line.write_str("nuri: ")?,
        }
        let mut said = Said::default();
        event.record(&mut said);
        // Names of files are in it, and words of others.
        writeln!(line, "{}", plain(&said.0))
    }
}
