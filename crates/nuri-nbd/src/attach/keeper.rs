//! Keeps the channels of an attached volume: connects to the servers, and connects anew to servers
//! that were lost.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::device::{ANSWER, AttachError, Device, Wanted, attached};
use crate::peer::{DialError, Dialed, Speaks, dial};
use crate::socket::Socket;

/// How often channels are looked at.
const LOOK: Duration = Duration::from_millis(500);

struct Channel {
    server: String,
    /// The kernel has it too; `None` where the server was lost.
    socket: Option<Arc<Socket>>,
}

/// A volume that is attached, with a channel to each server.
pub struct Keeper {
    volume: String,
    device: Device,
    channels: Vec<Channel>,
}

impl Keeper {
    /// Makes a device of the volume, with those servers that can be reached now.
    ///
    /// # Errors
    /// Why there is none.
    pub fn attach(volume: &str, servers: &[String]) -> Result<Keeper, AttachError> {
        if let Some(there) = attached().into_iter().find(|one| one.volume == volume) {
            return Err(AttachError::Attached(volume.into(), there.device));
        }
        let (mut why, mut first) = (String::new(), None);
        let connect = |server: &String| {
            let socket = match call(server, volume) {
                Ok(dialed) => {
                    first.get_or_insert((dialed.size, dialed.flags));
                    Some(dialed.socket)
                }
                Err(error) => {
                    tracing::warn!("nbd: {server}: {error}");
                    why = format!("{server}: {error}");
                    None
                }
            };
            Channel { server: server.clone(), socket }
        };
        let channels: Vec<_> = servers.iter().map(connect).collect();
        let Some((size, flags)) = first else {
            return Err(AttachError::NoServer { name: volume.into(), why });
        };
        // The kernel takes no more channels later: one that is dead keeps the place.
        let (place, _) = UnixStream::pair().map_err(AttachError::Kernel)?;
        let wanted = Wanted { volume, size, flags };
        let mut sockets: Vec<&dyn AsFd> = Vec::new();
        for channel in &channels {
            match &channel.socket {
                Some(socket) => sockets.push(&**socket),
                None => sockets.push(&place),
            }
        }
        let device = Device::make(&wanted, sockets.into_iter())?;
        Ok(Keeper { volume: volume.into(), device, channels })
    }

    pub fn device(&self) -> PathBuf {
        self.device.path()
    }

    /// Puts channels back until the device is detached.
    pub fn keep(&mut self) {
        while self.device.is_there() {
            std::thread::sleep(LOOK);
            for channel in &mut self.channels {
                look_after(channel, &self.volume, &mut self.device);
            }
        }
    }
}

fn look_after(channel: &mut Channel, volume: &str, device: &mut Device) {
    if channel.socket.as_ref().is_some_and(|socket| socket.is_left()) {
        tracing::warn!("nbd: {}: the channel to {} is lost", volume, channel.server);
        channel.socket = None;
    }
    if channel.socket.is_some() {
        return;
    }
    let Ok(dialed) = call(&channel.server, volume) else { return };
    // The kernel may not have noticed yet that the old one is dead: then the next time.
    if device.put_back(volume, &*dialed.socket).is_ok() {
        tracing::info!("nbd: {}: the channel to {} is back", volume, channel.server);
        channel.socket = Some(dialed.socket);
    }
}

fn call(server: &str, volume: &str) -> Result<Dialed, DialError> {
    let dialed = dial(server, volume, Speaks::AsKernels)?;
    // A server whose machine does not take what it is sent for so long is left.
    dialed.socket.hand_over(ANSWER)?;
    Ok(dialed)
}
