//! Why a command or a node cannot go on.

/// What went wrong and what to do, in one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

impl Failure {
    pub fn new(text: impl std::fmt::Display) -> Failure {
        Failure(text.to_string())
    }
}

/// `map_err` helper: a sentence from an error and where it happened.
pub fn at<E: std::fmt::Display>(place: impl std::fmt::Display) -> impl Fn(E) -> Failure {
    move |error| Failure(format!("{place}: {error}"))
}
