//! What a developer runs again and again between two runs of CI.

pub(crate) mod check;
pub(crate) mod flaky;
pub(crate) mod test;
