//! Units of measured figures.

use serde::{Deserialize, Serialize};

/// What a figure counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Unit {
    #[serde(rename = "MiB/s")]
    MibPerSecond,
    #[serde(rename = "op/s")]
    OpsPerSecond,
    #[serde(rename = "us")]
    Microseconds,
    #[serde(rename = "s")]
    Seconds,
    /// A part of what the local file system did with the same work.
    #[serde(rename = "of the local disk")]
    OfLocal,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::MibPerSecond => "MiB/s",
            Unit::OpsPerSecond => "op/s",
            Unit::Microseconds => "us",
            Unit::Seconds => "s",
            Unit::OfLocal => "of the local disk",
        }
    }

    /// Whether more is better: rates, not times.
    pub fn is_rate(self) -> bool {
        matches!(self, Unit::MibPerSecond | Unit::OpsPerSecond | Unit::OfLocal)
    }
}
