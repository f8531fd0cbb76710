//! `nuri volume attach|detach|attached`: volumes as devices of this machine.

use nuri_nbd::attach::{self, Keeper};
use serde::Serialize;

use crate::Failure;
use crate::cli::{VolumeAttach, VolumeDetach};
use crate::show::{human, print_json};

/// Stays until the volume is detached.
pub(super) fn attach(args: &VolumeAttach) -> Result<(), Failure> {
    let mut keeper = Keeper::attach(&args.name, &args.servers).map_err(Failure::new)?;
    println!("{}", keeper.device().display());
    keeper.keep();
    tracing::info!("nbd: {} is detached", args.name);
    Ok(())
}

pub(super) fn detach(args: &VolumeDetach) -> Result<(), Failure> {
    let gone = attach::detach(&args.name, args.force).map_err(Failure::new)?;
    println!("{}: {} is no device any more", gone.device, gone.volume);
    Ok(())
}

/// `nuri volume attached --json`.
#[derive(Serialize)]
struct List {
    format: u32,
    devices: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    device: String,
    volume: String,
    size: u64,
    /// What uses it; null where nothing does.
    used: Option<String>,
}

pub(super) fn attached(json: bool) -> Result<(), Failure> {
    let found = attach::attached();
    if json {
        let listed =
            |attach::Attached { device, volume, size, used }| Listed { device, volume, size, used };
        return print_json(&List { format: 1, devices: found.into_iter().map(listed).collect() });
    }
    println!("{:<12} {:<24} {:>10} USED BY", "DEVICE", "VOLUME", "SIZE");
    for one in found {
        let used = one.used.as_deref().unwrap_or("-");
        println!("{:<12} {:<24} {:>10} {used}", one.device, one.volume, human(one.size));
    }
    Ok(())
}
