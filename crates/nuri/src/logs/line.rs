//! The form of a log line: when, how bad, in which process, and what happened.
//!
//! ```text
//! 2026-11-26T05:12:03.418205Z  WARN node0[4711] node 2 at 10.0.0.2:7000 is not heard from
//! ```
//!
//! For programs, with `--log-format json`:
//!
//! ```text
//! {"time":"2026-11-26T05:12:03.4182Z","level":"WARN","process":"node0[4711]","said":"node 2 ..."}
//! ```

use std::borrow::Cow;
use std::fmt::{self, Debug, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::plain;
use super::rotation::Rotation;

/// Says to a process which file its output goes to.
const LOG_FILE: &str = "NURI_LOG_FILE";
/// The level and the format of a process's log, and of those that it starts.
const LEVEL: &str = "NURI_LOG";
const FORMAT: &str = "NURI_LOG_FORMAT";

/// How much is logged, and how lines look.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LogOptions {
    /// Log this level and more severe ones
    #[arg(long, global = true, env = LEVEL, value_name = "LEVEL", default_value = "info")]
    #[arg(hide_env = true, help_heading = "Logs")]
    log_level: Level,
    /// Form of log lines: text for people, json for programs
    #[arg(long, global = true, env = FORMAT, value_name = "FORMAT", default_value = "text")]
    #[arg(hide_env = true, help_heading = "Logs")]
    log_format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl LogOptions {
    fn most(self) -> LevelFilter {
        match self.log_level {
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
        }
    }
}

/// Those of this process.
static OWN: OnceLock<LogOptions> = OnceLock::new();

/// A process that is started logs in the same way, to this file.
pub(crate) fn pass_on(command: &mut Command, file: &Path) {
    command.env(LOG_FILE, file);
    let name = |value: Option<PossibleValue>| value.map(|v| v.get_name().to_string());
    if let Some(own) = OWN.get() {
        command.env(LEVEL, name(own.log_level.to_possible_value()).unwrap_or_default());
        command.env(FORMAT, name(own.log_format.to_possible_value()).unwrap_or_default());
    }
}

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
pub(crate) fn begin(process: &str, options: LogOptions) {
    let _ = OWN.set(options);
    let process = format!("{process}[{}]", std::process::id());
    let style = match options.log_format {
        Format::Json => Style::Json(process),
        Format::Text => Style::Log(process),
    };
    let rotation = Rotation::of(std::env::var_os(LOG_FILE).map(PathBuf::from));
    let _ = tracing_subscriber::fmt()
        .event_format(style)
        .with_max_level(options.most())
        .with_writer(move || rotation.clone())
        .try_init();
}

/// What a command meets on its way is said as its errors are.
pub(crate) fn begin_command(options: LogOptions) {
    let _ = OWN.set(options);
    let _ = tracing_subscriber::fmt()
        .event_format(Style::Command)
        .with_max_level(options.most())
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
