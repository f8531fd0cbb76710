//! Files and devices of servers, reached by the servers' own protocols, because the kernel of this
//! machine may have no client for them.
//!
//! [`RankFile`] is a rank's file, at a server or in a directory. A client here does what a kernel's
//! client would: it sends ahead ([`stream`]). So a rank that reads or writes one piece after the
//! other does not wait for each.

mod nbd;
mod nfs;
mod rank_file;
mod stream;

use std::io::{Error, ErrorKind, Result as IoResult};
use std::net::TcpStream;
use std::time::Duration;

pub(super) use rank_file::RankFile;

use super::opened::Opened;
use crate::server::Server;

/// A server that says nothing for so long is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which bytes of a server are a rank's own.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// Of the ranks that have the same server.
    rank: usize,
    len: u64,
    /// Whether what is there may be lost.
    overwrites: bool,
}

/// What it means that no answer comes.
fn unanswered(error: Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            Error::new(error.kind(), "the server ended the connection")
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            let seconds = PATIENCE.as_secs();
            Error::new(ErrorKind::TimedOut, format!("the server said nothing for {seconds} s"))
        }
        _ => error,
    }
}

fn connect(server: &Server) -> IoResult<TcpStream> {
    let stream = TcpStream::connect((server.host.as_str(), server.port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
