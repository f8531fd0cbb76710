//! The port mapper (RFC 1833): tells at which port a program is. All programs of this server are at
//! one port. Version 2 speaks of ports, versions 3 and 4 of addresses as text: port 2049 of
//! 192.0.2.1 is `192.0.2.1.8.1`.

use std::net::IpAddr;

use super::Gateway;
use crate::protocol::{MOUNT, MOUNT_VERSION, NFS, NFS_VERSION, PORT_MAPPER, PORT_MAPPER_VERSIONS};
use crate::rpc::message::{self, Call, Refusal};
use crate::rpc::xdr::{Garbage, Reader, Writer};
use crate::server::Peer;

const TCP: u32 = 6;
/// Programs and their versions.
const PROGRAMS: [(u32, u32); 3] =
    [(NFS, NFS_VERSION), (MOUNT, MOUNT_VERSION), (PORT_MAPPER, *PORT_MAPPER_VERSIONS.start())];
/// Bytes of a text that a client sends.
const LONGEST: usize = 256;

impl Gateway {
    pub(super) fn port_mapper(
        &self,
        call: &Call,
        mut input: Reader<'_>,
        peer: &Peer,
    ) -> Result<Writer, Refusal> {
        let mut out = message::accepted(call.xid, Vec::new());
        let speaks_of_ports = call.version == *PORT_MAPPER_VERSIONS.start();
        match (call.procedure, speaks_of_ports) {
            (0, _) => {}
            // Nobody may add or remove programs.
            (1 | 2, _) => out.boolean(false),
            (3, true) => {
                let (program, version, protocol) =
                    asked(&mut input).map_err(|_| Refusal::Arguments)?;
                let is_here = PROGRAMS.contains(&(program, version)) && protocol == TCP;
                out.number(if is_here { self.port.into() } else { 0 });
            }
            (3, false) => {
                let (program, network) =
                    asked_by_text(&mut input).map_err(|_| Refusal::Arguments)?;
                let is_here = PROGRAMS.contains(&program) && network == network_of(peer.local);
                let address = if is_here { self.address(peer) } else { String::new() };
                out.bytes_of(address.as_bytes());
            }
            (4, _) => self.tell_programs(speaks_of_ports, peer, &mut out),
            _ => return Err(Refusal::Procedure),
        }
        Ok(out)
    }

    fn address(&self, peer: &Peer) -> String {
        format!("{}.{}.{}", peer.local, self.port >> 8, self.port & 0xff)
    }

    fn tell_programs(&self, speaks_of_ports: bool, peer: &Peer, out: &mut Writer) {
        for (program, version) in PROGRAMS {
            out.boolean(true);
            out.number(program);
            out.number(version);
            if speaks_of_ports {
                out.number(TCP);
                out.number(self.port.into());
            } else {
                out.bytes_of(network_of(peer.local).as_bytes());
                out.bytes_of(self.address(peer).as_bytes());
                out.bytes_of(b"superuser");
            }
        }
        out.boolean(false);
    }
}

/// TCP over which protocol.
fn network_of(local: IpAddr) -> &'static str {
    if local.is_ipv4() { "tcp" } else { "tcp6" }
}

fn asked(input: &mut Reader<'_>) -> Result<(u32, u32, u32), Garbage> {
    let asked = (input.number()?, input.number()?, input.number()?);
    input.number()?;
    Ok(asked)
}

/// Program, version and network. The client's address and whose it is do not matter.
fn asked_by_text<'a>(input: &mut Reader<'a>) -> Result<((u32, u32), &'a str), Garbage> {
    let (program, version) = (input.number()?, input.number()?);
    let network = std::str::from_utf8(input.bytes(LONGEST)?).map_err(|_| Garbage)?;
    input.bytes(LONGEST)?;
    input.bytes(LONGEST)?;
    Ok(((program, version), network))
}
