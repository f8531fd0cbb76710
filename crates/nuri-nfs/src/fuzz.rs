//! Turns the bytes of a fuzzer into a connection's bytes, in pieces of the size that the first byte
//! says.

use crate::protocol::call::{LAST_PROCEDURE, Request};
use crate::rpc::message::{self, Call};
use crate::rpc::record::Records;
use crate::rpc::xdr::Reader;

/// Of one message, as a server takes them.
const MOST: usize = 1 << 16;

/// Nothing may panic, hang or hold more than came, whatever the bytes are.
pub fn fuzz(bytes: &[u8]) {
    let Some((piece, mut left)) = bytes.split_first() else { return };
    let (piece, mut records, mut messages) = (usize::from(*piece) + 1, Records::new(MOST), 0);
    while !left.is_empty() {
        let room = records.room(Vec::new);
        let len = room.len().min(piece).min(left.len());
        room[..len].copy_from_slice(&left[..len]);
        records.received(len);
        left = &left[len..];
        loop {
            match records.take() {
                Ok(Some(record)) => {
                    messages += record.bytes().len();
                    look(record.bytes());
                }
                Ok(None) => break,
                // The connection ends.
                Err(_) => return,
            }
        }
        assert!(messages + records.held() <= bytes.len(), "more than came");
    }
}

fn look(message: &[u8]) {
    let mut input = Reader::new(message);
    match Call::read(&mut input) {
        Ok(call) => {
            // As every procedure's, whichever is named.
            for procedure in (0..=LAST_PROCEDURE).chain([call.procedure]) {
                let mut input = input;
                let _ = Request::read(procedure, &mut input);
                assert!(input.rest().len() <= message.len());
            }
        }
        Err(no) => drop(message::answer_to(no)),
    }
}
