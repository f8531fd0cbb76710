//! Simulated machines and their cables: network namespaces around a switch.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

/// What could not be made, entered or taken away, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NetworkError(String);

pub type Result<T> = std::result::Result<T, NetworkError>;

/// `map_err` helper: an error at a place.
fn at<E: std::fmt::Display>(place: impl std::fmt::Display) -> impl Fn(E) -> NetworkError {
    move |error| NetworkError(format!("{place}: {error}"))
}

/// Bytes that may pass at once, whatever the rate: one segment as large as they get.
const BURST: &str = "64kb";
/// So long may a packet wait for its turn before it is dropped.
const QUEUE: &str = "50ms";

/// A link's rate, the same both ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Link {
    pub bits_per_second: u64,
}

/// A text that is no rate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a rate: expected a number and a unit, as in 100mbit or 1gbit")]
pub struct UnknownRate(String);

impl std::str::FromStr for Link {
    type Err = UnknownRate;

    /// As `tc` writes rates: 100mbit, 10gbit, 500kbit.
    fn from_str(text: &str) -> std::result::Result<Link, UnknownRate> {
        let odd = || UnknownRate(text.into());
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "kbit" => 1_000,
            "mbit" => 1_000_000,
            "gbit" => 1_000_000_000,
            _ => return Err(odd()),
        };
        let number: u64 = digits.parse().map_err(|_| odd())?;
        let bits = number.checked_mul(unit).filter(|bits| *bits > 0).ok_or_else(odd)?;
        Ok(Link { bits_per_second: bits })
    }
}

/// Namespaces `nuri-lab-<id>-<n>` for machines, `nuri-lab-<id>-switch` for the switch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Network {
    pub id: u32,
    machines: u64,
}

/// The programs that it needs, and the right to use them.
pub fn check_tools() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(NetworkError("a testbed makes network namespaces: run it as root".into()));
    }
    for (program, package) in [("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")] {
        let found = Command::new(program).arg("-V").output();
        found.map_err(|e| NetworkError(format!("{program}: {e}; install {package}")))?;
    }
    Ok(())
}

/// Runs a command; its words are the error.
fn run(words: &[&str]) -> Result<String> {
    let out = Command::new(words[0]).args(&words[1..]).output().map_err(at(words[0]))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(NetworkError(format!("{}: {}", words.join(" "), said.trim())))
}

/// The same with words that have no spaces in them.
fn run_line(line: &str) -> Result<String> {
    run(&line.split_whitespace().collect::<Vec<_>>())
}

impl Network {
    /// Nothing is made yet. The id tells networks of one machine apart.
    pub fn named(id: u32, machines: u64) -> Network {
        Network { id, machines }
    }

    fn name(&self, machine: u64) -> String {
        format!("nuri-lab-{}-{machine}", self.id)
    }

    fn switch(&self) -> String {
        format!("nuri-lab-{}-switch", self.id)
    }

    /// Of a machine, in its own namespace: the same in each testbed.
    pub fn address(machine: u64) -> String {
        format!("10.79.0.{}", 10 + machine)
    }

    /// Not `ip netns exec`: that would hide mounts in a name space of its own.
    pub fn enter(&self, machine: u64) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/run/netns/{}", self.name(machine))]
    }

    /// Makes machines, switch and cables. What a failure leaves is for [`Network::remove`].
    pub fn make(&self, link: Option<Link>) -> Result<()> {
        let switch = self.switch();
        run_line(&format!("ip netns add {switch}"))?;
        run_line(&format!("ip -n {switch} link add name br0 type bridge"))?;
        run_line(&format!("ip -n {switch} link set br0 up"))?;
        for machine in 0..self.machines {
            self.attach(machine, link)?;
        }
        Ok(())
    }

    fn attach(&self, machine: u64, link: Option<Link>) -> Result<()> {
        let (name, switch) = (self.name(machine), self.switch());
        let (port, address) = (format!("p{machine}"), Network::address(machine));
        run_line(&format!("ip netns add {name}"))?;
        run_line(&format!("ip -n {name} link set lo up"))?;
        let cable = format!("eth0 type veth peer name {port} netns {switch}");
        run_line(&format!("ip -n {name} link add {cable}"))?;
        run_line(&format!("ip -n {name} addr add {address}/24 dev eth0"))?;
        run_line(&format!("ip -n {name} link set eth0 up"))?;
        run_line(&format!("ip -n {switch} link set {port} master br0 up"))?;
        let Some(link) = link else { return Ok(()) };
        let rate = format!("tbf rate {}bit burst {BURST} latency {QUEUE}", link.bits_per_second);
        run_line(&format!("tc -n {name} qdisc add dev eth0 root {rate}"))?;
        run_line(&format!("tc -n {switch} qdisc add dev {port} root {rate}")).map(drop)
    }

    /// A listener on the second machine, and a connection to it from the first.
    pub fn connection(&self) -> Result<(TcpListener, TcpStream)> {
        let address = || (Network::address(1), 0);
        let listener = inside(&self.name(1), || TcpListener::bind(address()))?;
        let whole = listener.local_addr().map_err(at("the network"))?;
        let out = inside(&self.name(0), || TcpStream::connect(whole))?;
        Ok((listener, out))
    }

    /// Whether somebody listens there, as seen from a machine.
    pub fn reaches(&self, machine: u64, address: &(String, u16)) -> Result<bool> {
        let (host, port) = (address.0.as_str(), address.1);
        inside(&self.name(machine), || Ok(TcpStream::connect((host, port)).is_ok()))
    }

    /// Bytes that the switch received so far.
    pub fn carried(&self) -> Result<u64> {
        let devices =
            inside(&self.switch(), || std::fs::read_to_string("/proc/thread-self/net/dev"))?;
        Ok(received_by_ports(&devices))
    }

    /// Pulls a machine's cable, or puts it in again.
    pub fn cable(&self, machine: u64, state: &str) -> Result<()> {
        run_line(&format!("ip -n {} link set eth0 {state}", self.name(machine))).map(drop)
    }

    /// All processes of a machine; none where it is gone.
    pub fn processes(&self, machine: u64) -> Result<Vec<Pid>> {
        let name = self.name(machine);
        if !std::path::Path::new("/run/netns").join(&name).exists() {
            return Ok(Vec::new());
        }
        let text = run_line(&format!("ip netns pids {name}"))?;
        Ok(text.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect())
    }

    /// To all processes of a machine, until those that are to die have.
    pub fn signal(&self, machine: u64, signal: Signal) -> Result<()> {
        loop {
            let processes = self.processes(machine)?;
            for pid in &processes {
                match kill_process(*pid, signal) {
                    Err(e) if e != rustix::io::Errno::SRCH => return Err(at("a signal")(e)),
                    _ => {}
                }
            }
            // What is killed may have started others in between.
            if signal != Signal::KILL || processes.is_empty() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Takes all namespaces away that are there.
    pub fn remove(&self) -> Result<()> {
        let machines = (0..self.machines).map(|machine| self.name(machine));
        for name in machines.chain([self.switch()]) {
            if std::path::Path::new("/run/netns").join(&name).exists() {
                run_line(&format!("ip netns del {name}"))?;
            }
        }
        Ok(())
    }
}

/// Does it in a network name space.
fn inside<T: Send>(name: &str, act: impl FnOnce() -> std::io::Result<T> + Send) -> Result<T> {
    let body = || {
        let space = std::fs::File::open(format!("/run/netns/{name}"))?;
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
        act()
    };
    // A thread of its own, which ends there.
    let done = std::thread::scope(|scope| scope.spawn(body).join());
    done.map_err(|_| NetworkError("a thread panicked".into()))?.map_err(at(name))
}

fn received_by_ports(devices: &str) -> u64 {
    let received = |line: &str| {
        let (device, counts) = line.split_once(':')?;
        device.trim().strip_prefix('p')?.parse::<u64>().ok()?;
        counts.split_whitespace().next()?.parse::<u64>().ok()
    };
    devices.lines().filter_map(received).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_switch_receives_comes_by_its_ports() {
        let devices = "Inter-|   Receive\n face |bytes    packets\n    lo:  7 1 0 0 0 0 0 0 7 1\n\
                       \x20  br0: 500 5 0 0 0 0 0 0 9 9\n    p0: 100 1 0 0 0 0 0 0 40 1\n\
                       \x20  p12: 40 1 0 0 0 0 0 0 100 1\n";
        assert_eq!(received_by_ports(devices), 140);
    }

    #[test]
    fn rates_are_read_as_tc_writes_them() {
        let bits = |text: &str| text.parse::<Link>().map(|link| link.bits_per_second);
        assert_eq!(bits("100mbit"), Ok(100_000_000));
        assert_eq!(bits("10Gbit"), Ok(10_000_000_000));
        for odd in ["", "100", "fast", "0mbit", "-1mbit", "mbit", "99999999999999gbit", "1.5gbit"] {
            assert!(bits(odd).unwrap_err().to_string().contains("100mbit"), "{odd}");
        }
    }
}
