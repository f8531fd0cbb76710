//! Measures a cluster as the authors of five published studies did.
//!
//! Plans say what to vary, and many processes run a workload at once. Records hold each result with
//! facts about the host, and reports are made from records alone.

mod bed;
mod caches;
pub mod clock;
pub mod compare;
mod ground;
pub mod guard;
pub mod host;
pub mod hosts;
pub mod job;
pub mod limit;
mod machine;
pub mod measure;
mod output;
pub mod plan;
mod progress;
pub mod rank;
pub mod rank_group;
pub mod record;
pub mod report;
pub mod request;
pub mod results;
pub mod run;
mod score;
pub mod server;
pub mod single;
pub mod stats;
pub mod stop;
pub mod testbed;
mod tool;
pub mod tune;
pub mod watch;
pub mod work;
pub mod workload;

/// What went wrong and what to do, in one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LabError(pub String);

impl LabError {
    pub fn new(text: impl std::fmt::Display) -> LabError {
        LabError(text.to_string())
    }
}

/// `map_err` helper: a sentence from an error and where it happened.
pub fn at<E: std::fmt::Display>(place: impl std::fmt::Display) -> impl Fn(E) -> LabError {
    move |error| LabError(format!("{place}: {error}"))
}

/// `nuri` itself: it is installed beside this program.
pub fn nuri_program() -> Result<std::path::PathBuf> {
    let missing = "cannot find the program nuri: put nuri and nuri-lab into one directory, or nuri \
                   on the PATH";
    nuri_io::program::find("nuri").ok_or_else(|| LabError::new(missing))
}

impl From<nuri_netns::NetworkError> for LabError {
    fn from(error: nuri_netns::NetworkError) -> LabError {
        LabError::new(error)
    }
}

impl From<nuri_watch::HistoryError> for LabError {
    fn from(error: nuri_watch::HistoryError) -> LabError {
        LabError::new(error)
    }
}

pub type Result<T> = std::result::Result<T, LabError>;
