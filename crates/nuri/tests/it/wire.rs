//! Two machines and a wire between them, as network namespaces.

use std::process::{Command, Stdio};

use crate::support::{NURI, run};

/// Two namespaces joined by a veth pair; gone with the value.
pub struct Wire {
    names: [String; 2],
}

impl Wire {
    pub fn new(name: &str) -> Wire {
        let id = std::process::id();
        let names = [format!("nuri-{name}-a{id}"), format!("nuri-{name}-b{id}")];
        for name in &names {
            run("ip", &["netns", "add", name]);
        }
        let (a, b) = (&names[0], &names[1]);
        run(
            "ip",
            &["-n", a, "link", "add", "w0", "type", "veth", "peer", "name", "w1", "netns", b],
        );
        for (name, device, address) in [(a, "w0", "10.77.0.1/24"), (b, "w1", "10.77.0.2/24")] {
            run("ip", &["-n", name, "addr", "add", address, "dev", device]);
            run("ip", &["-n", name, "link", "set", device, "up"]);
            run("ip", &["-n", name, "link", "set", "lo", "up"]);
        }
        Wire { names }
    }

    /// Pulls the plug, or puts it in again.
    pub fn set(&self, state: &str) {
        run("ip", &["-n", &self.names[1], "link", "set", "w1", state]);
    }

    /// Sets up more on one of the machines.
    pub fn ip(&self, side: usize, args: &[&str]) {
        run("ip", &[&["-n", &self.names[side]][..], args].concat());
    }

    /// Nuri on one of the machines.
    pub fn command(&self, side: usize, args: &[&str]) -> Command {
        // Not `ip netns exec`: that would hide the mount in a name space of its own.
        let mut command = Command::new("nsenter");
        let net = format!("--net=/var/run/netns/{}", self.names[side]);
        command.arg(net).arg(NURI).args(args);
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}
