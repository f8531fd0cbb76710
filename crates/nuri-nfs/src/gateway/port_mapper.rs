//! The port mapper, version 2 (RFC 1833): tells at which port a program is. All are at one.

use super::Gateway;
use crate::protocol::{MOUNT, MOUNT_VERSION, NFS, NFS_VERSION, PORT_MAPPER, PORT_MAPPER_VERSION};
use crate::rpc::message::{self, Call, Refusal};
use crate::rpc::xdr::{Garbage, Reader, Writer};

const TCP: u32 = 6;
/// Programs and their versions.
const PROGRAMS: [(u32, u32); 3] =
    [(NFS, NFS_VERSION), (MOUNT, MOUNT_VERSION), (PORT_MAPPER, PORT_MAPPER_VERSION)];

impl Gateway {
    pub(super) fn port_mapper(
        &self,
        call: &Call,
        mut input: Reader<'_>,
    ) -> Result<Writer, Refusal> {
        let mut out = message::accepted(call.xid);
        match call.procedure {
            0 => {}
            // Nobody may add or remove programs.
            1 | 2 => out.boolean(false),
            3 => {
                let (program, version, protocol) =
                    asked(&mut input).map_err(|_: Garbage| Refusal::Arguments)?;
                let is_here = PROGRAMS.contains(&(program, version)) && protocol == TCP;
                out.number(if is_here { self.port.into() } else { 0 });
            }
            4 => {
                for (program, version) in PROGRAMS {
                    out.boolean(true);
                    let words = [program, version, TCP, self.port.into()];
                    words.into_iter().for_each(|word| out.number(word));
                }
                out.boolean(false);
            }
            _ => return Err(Refusal::Procedure),
        }
        Ok(out)
    }
}

fn asked(input: &mut Reader<'_>) -> Result<(u32, u32, u32), Garbage> {
    let asked = (input.number()?, input.number()?, input.number()?);
    input.number()?;
    Ok(asked)
}
