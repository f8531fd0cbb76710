//! Measures a cluster as the authors of five published studies did: plans that say what to vary,
//! workloads that many processes run at once, records with host facts, reports from records alone.

mod bed;
mod caches;
pub mod clock;
pub mod compare;
pub mod crew;
mod ground;
pub mod guard;
pub mod host;
pub mod hosts;
pub mod limit;
mod machine;
pub mod measure;
mod output;
pub mod plan;
mod progress;
pub mod rank;
pub mod record;
pub mod report;
pub mod request;
pub mod results;
pub mod run;
mod score;
pub mod single;
pub mod size;
pub mod stats;
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

pub type Result<T> = std::result::Result<T, LabError>;
