//! `nuri space`: what holds for a whole space.

use nuri_proto::Status;
use nuri_proto::op::cluster::SpaceSet;

use super::repair::connect;
use crate::Failure;
use crate::cli::SpaceSetting;
use crate::health::waits_for_targets;
use crate::space::{Settings, Space};

/// Sets what new files get where no directory says otherwise.
pub(crate) fn set(args: &SpaceSetting) -> Result<(), Failure> {
    let space = Space::at(&args.dir.dir);
    let (settings, shape) = (space.existing()?, args.shape);
    let refused = |status: Status| Failure(format!("the authority refuses: {status}"));
    let cluster = connect(&space)?;
    cluster.ask(&SpaceSet { shape }).map_err(refused)?;
    // The next start says the same.
    space.save(&Settings { shape, ..settings })?;
    let map = cluster.state().map_err(refused)?.map;
    match map.shape_now() == shape {
        true => println!("new files are kept as {shape}; those that are there stay as they are"),
        false => println!("{}", waits_for_targets(&map)),
    }
    Ok(())
}
