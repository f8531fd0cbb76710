//! The cluster that a study makes for its points, as its plan describes it. A plan may vary the
//! cluster itself.

use std::path::Path;

use nuri_netns::Link;
use nuri_proto::size;
use serde::{Deserialize, Serialize};

use crate::plan::{Point, filled};
use crate::server::Served;
use crate::testbed::{Settings, Testbed};
use crate::{LabError, Result, nuri_program};

/// The word of a plan for cables without a limit.
const UNLIMITED: &str = "none";

/// As `nuri lab testbed` takes it; `{name}` stands for a swept value.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bed {
    pub nodes: String,
    /// How many of the first nodes mount the space.
    pub mounts: String,
    /// A rate, or `none`.
    pub link: String,
    pub shape: String,
    pub target_size: String,
    /// What is served beside the mounts: `nfs`, `volume`, `disk` or `filesystem`; nothing by any
    /// other word.
    pub serve: String,
}

impl Default for Bed {
    fn default() -> Bed {
        let [nodes, mounts, link] = ["4", "1", UNLIMITED].map(String::from);
        let [shape, target_size] = ["stripe", "4g"].map(String::from);
        Bed { nodes, mounts, link, shape, target_size, serve: String::new() }
    }
}

/// For values that are not understood.
fn odd<E: std::fmt::Display>(name: &'static str) -> impl Fn(E) -> LabError {
    move |error| LabError(format!("testbed.{name}: {error}"))
}

/// A cluster to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cluster {
    nodes: u64,
    mounts: u64,
    link: Option<Link>,
    shape: String,
    target_size: u64,
    pub(crate) serve: Option<Served>,
}

impl Bed {
    fn fields(&self) -> [(&'static str, &str); 6] {
        [
            ("nodes", &self.nodes),
            ("mounts", &self.mounts),
            ("link", &self.link),
            ("shape", &self.shape),
            ("target_size", &self.target_size),
            ("serve", &self.serve),
        ]
    }

    /// Whether the cluster differs with what is swept under that name.
    pub(crate) fn names(&self, axis: &str) -> bool {
        let word = format!("{{{axis}}}");
        self.fields().iter().any(|(_, text)| text.contains(&word))
    }

    /// The cluster of a point.
    pub(crate) fn at(&self, point: &Point) -> Result<Cluster> {
        let [nodes, mounts, link, shape, target_size, serve] = self.fields().map(|(name, text)| {
            filled(text, point)
                .map_err(|unswept| LabError(format!("testbed.{name} names {unswept}")))
        });
        let number = |name, text: String| {
            text.parse().map_err(|_| odd(name)(format!("'{text}' is no number")))
        };
        let link = Some(link?).filter(|link| link != UNLIMITED);
        let (nodes, mounts) = (number("nodes", nodes?)?, number("mounts", mounts?)?);
        if !(1..=64).contains(&nodes) || !(1..=nodes).contains(&mounts) {
            let text = format!("{nodes} nodes, {mounts} mounts: 1 to 64 nodes, a mount on each");
            return Err(LabError(format!("testbed: {text} at most")));
        }
        Ok(Cluster {
            nodes,
            mounts,
            link: link.map(|link| link.parse().map_err(odd("link"))).transpose()?,
            shape: shape?,
            target_size: size::parse(&target_size?).map_err(odd("target_size"))?,
            serve: Served::named(&serve?),
        })
    }
}

impl Cluster {
    /// Seconds until it stands, by guess.
    pub(crate) fn guess(&self) -> f64 {
        1.0 + self.nodes as f64
    }

    /// MiB/s that the cables of all mounts let through.
    pub(crate) fn rate(&self) -> Option<f64> {
        let rate = |link: Link| link.bits_per_second as f64 / 8.0 / f64::from(1 << 20);
        self.link.map(|link| rate(link) * self.mounts as f64)
    }

    /// Makes it in a new directory.
    pub(crate) fn make(&self, dir: &Path) -> Result<Testbed> {
        let settings = Settings {
            program: nuri_program()?,
            dir: dir.into(),
            nodes: self.nodes,
            mounts: self.mounts,
            link: self.link,
            target_size: self.target_size,
            shape: self.shape.clone(),
            serve: self.serve,
        };
        Testbed::up(settings, &|_| ())
    }
}

impl std::fmt::Display for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Cluster { nodes, mounts, shape, .. } = self;
        write!(f, "{nodes} nodes, {mounts} mounts, {shape}")?;
        if let Some(serve) = self.serve {
            write!(f, ", {serve}")?;
        }
        match self.link {
            Some(link) => write!(f, ", cables of {} Mbit/s", link.bits_per_second as f64 / 1e6),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(values: &[(&str, &str)]) -> Point {
        values.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn a_cluster_is_what_the_plan_says_at_the_point() {
        let bed = Bed { nodes: "{n}".into(), link: "{link}".into(), ..Bed::default() };
        let slow = bed.at(&point(&[("n", "16"), ("link", "80mbit")])).unwrap();
        assert_eq!(slow.to_string(), "16 nodes, 1 mounts, stripe, cables of 80 Mbit/s");
        assert_eq!(slow.rate(), Some(1e7 / f64::from(1 << 20)));
        let fast = bed.at(&point(&[("n", "2"), ("link", "none")])).unwrap();
        assert_eq!((fast.nodes, fast.rate()), (2, None));
        assert!(bed.names("link") && !bed.names("lin"));
    }

    #[test]
    fn nonsense_is_one_clear_sentence() {
        let told = |bed: &Bed, values: &[(&str, &str)]| bed.at(&point(values)).unwrap_err().0;
        let bed = Bed { nodes: "{n}".into(), ..Bed::default() };
        assert_eq!(told(&bed, &[]), "testbed.nodes names {n}, which nothing sweeps");
        assert_eq!(told(&bed, &[("n", "x")]), "testbed.nodes: 'x' is no number");
        assert!(told(&bed, &[("n", "65")]).contains("1 to 64 nodes"));
        let bed = Bed { mounts: "5".into(), ..Bed::default() };
        assert!(told(&bed, &[]).contains("a mount on each at most"));
        let bed = Bed { link: "fast".into(), ..Bed::default() };
        assert!(told(&bed, &[]).contains("testbed.link: \"fast\" is not a rate"));
    }
}
