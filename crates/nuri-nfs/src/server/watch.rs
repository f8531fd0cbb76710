//! Watches clients that stand still, and frees what is held for them.

use std::sync::Arc;
use std::time::Duration;

use super::Server;
use super::connection::Connection;

const LOOK: Duration = Duration::from_millis(500);

/// Runs as long as the server.
pub(super) fn run(server: &Server) {
    while !server.is_stopping() {
        std::thread::sleep(LOOK);
        look(server);
    }
}

fn look(server: &Server) {
    let all: Vec<(u64, Arc<Connection>)> =
        server.connections.lock().iter().map(|(number, one)| (*number, one.clone())).collect();
    let mut holders = Vec::new();
    for (number, connection) in all {
        if connection.is_stuck() {
            end(server, number, &connection, "it stands still in the middle of a message");
        } else {
            holders.push((connection.held(), number, connection));
        }
    }
    let mut held: usize = holders.iter().map(|(held, ..)| held).sum();
    holders.sort_by_key(|(held, ..)| *held);
    while held > server.limits.held {
        let Some((most, number, connection)) = holders.pop() else { return };
        held -= most;
        end(server, number, &connection, "too much is held for slow clients, most for this one");
    }
}

fn end(server: &Server, number: u64, connection: &Connection, why: &str) {
    tracing::warn!("nfs: {}: its connection ends: {why}", connection.peer.address);
    server.end(number);
}
