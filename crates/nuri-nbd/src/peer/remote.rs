//! A device of another server, by a link to that server.

use std::sync::Arc;

use super::link::{Link, Lost};
use crate::export::{About, Asked, Export, Extent, Kept, Zeroing};
use crate::order::Order;
use crate::protocol::request::Request;
use crate::protocol::{Errno, command, command_flag, reply};

/// See the module's text.
pub struct Remote {
    link: Arc<Link>,
    about: About,
    /// The other server keeps the order; that of the clients here is kept by who forwards.
    order: Order,
}

impl Remote {
    pub fn new(link: Arc<Link>, about: About) -> Remote {
        Remote { link, about, order: Order::default() }
    }

    fn call(
        &self,
        asked: Asked<'_>,
        (command, flags): (u16, u16),
        (offset, len): (u64, u64),
        data: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        if asked.is_too_old() {
            return Err(Errno::Shutdown);
        }
        let len = u32::try_from(len).map_err(|_| Errno::Invalid)?;
        let request = Request { flags, command, cookie: 0, offset, len };
        let sent = asked.client.send(asked.deadline).ok_or(Errno::Shutdown)?;
        let answer = self.link.call(self.link.until(asked.deadline), request, data);
        // Without an answer it may still be served.
        let answer = answer.map_err(|Lost| Errno::Shutdown)?;
        asked.client.answered(sent);
        answer
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.link.end();
    }
}

impl Export for Remote {
    fn about(&self) -> About {
        About { size: self.link.size, ..self.about.clone() }
    }

    fn order(&self) -> &Order {
        &self.order
    }

    fn read(&self, asked: Asked<'_>, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        if out.is_empty() {
            return Ok(());
        }
        let found = self.call(asked, (command::READ, 0), (offset, out.len() as u64), &[])?;
        if found.len() != out.len() {
            return Err(Errno::Io);
        }
        out.copy_from_slice(&found);
        Ok(())
    }

    fn write(&self, asked: Asked<'_>, offset: u64, data: &[u8], kept: Kept) -> Result<(), Errno> {
        let flags = if kept == Kept::Durably { command_flag::FUA } else { 0 };
        let range = (offset, data.len() as u64);
        self.call(asked, (command::WRITE, flags), range, data).map(drop)
    }

    fn flush(&self, asked: Asked<'_>) -> Result<(), Errno> {
        self.call(asked, (command::FLUSH, 0), (0, 0), &[]).map(drop)
    }

    fn trim(&self, asked: Asked<'_>, offset: u64, len: u64) -> Result<(), Errno> {
        self.call(asked, (command::TRIM, 0), (offset, len), &[]).map(drop)
    }

    fn write_zeroes(
        &self,
        asked: Asked<'_>,
        offset: u64,
        len: u64,
        how: Zeroing,
    ) -> Result<(), Errno> {
        let no_hole = if how.keeps_room { command_flag::NO_HOLE } else { 0 };
        let fast = if how.is_fast { command_flag::FAST_ZERO } else { 0 };
        let flags = no_hole | fast;
        self.call(asked, (command::WRITE_ZEROES, flags), (offset, len), &[]).map(drop)
    }

    fn extents(
        &self,
        asked: Asked<'_>,
        offset: u64,
        len: u32,
        most: usize,
    ) -> Result<Vec<Extent>, Errno> {
        let flags = if most == 1 { command_flag::REQ_ONE } else { 0 };
        let range = (offset, u64::from(len));
        let found = self.call(asked, (command::BLOCK_STATUS, flags), range, &[])?;
        let mut extents = reply::extents(&found);
        extents.truncate(most);
        Ok(extents)
    }
}
