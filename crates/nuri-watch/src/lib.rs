//! Figures that were measured again and again: what is normal for each figure, and since when it is
//! slow.
//!
//! `nuri lab watch` keeps the history, and `nuri status` reads it.

pub mod calendar;
pub mod history;
pub mod normal;
pub mod unit;

/// File of the history in a space's directory.
pub const FILE: &str = "watch.jsonl";

/// A history that cannot be read or written, and why.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {cause}")]
pub struct HistoryError {
    place: String,
    cause: String,
}

/// `map_err` helper: an error at a place.
fn at<E: std::fmt::Display>(place: impl std::fmt::Display) -> impl Fn(E) -> HistoryError {
    move |cause| HistoryError { place: place.to_string(), cause: cause.to_string() }
}

pub type Result<T> = std::result::Result<T, HistoryError>;
