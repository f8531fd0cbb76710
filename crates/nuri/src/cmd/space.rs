//! `nuri space`: what holds for a whole space.

use nuri_proto::Status;
use nuri_proto::op::cluster::SpaceSet;

use super::repair::connect;
use crate::Failure;
use crate::cli::SpaceSetting;
use crate::space::{Settings, Space};

/// Sets what new files get where no directory says otherwise.
pub(crate) fn set(args: &SpaceSetting) -> Result<(), Failure> {
    let space = Space::at(&args.dir.dir);
    let (settings, shape) = (space.existing()?, args.shape);
    connect(&space)?.ask(&SpaceSet { shape }).map_err(|status| match status {
        Status::INVAL | Status::NOSPC => {
            let members = shape.members();
            Failure(format!("{shape} needs {members} targets that are up: nuri target list"))
        }
        status => Failure(format!("the authority refuses: {status}")),
    })?;
    // The next start says the same.
    space.save(&Settings { shape, ..settings })?;
    println!("new files are kept as {shape}; those that are there stay as they are");
    Ok(())
}
