//! Messages between two processes, measured: an endpoint for many threads, one for a single one,
//! the kernel's copy wherever it can; a Unix socket, a pipe and `memcpy`. Data is written before
//! and read after each transfer. `cargo xtask bench-ipc` sets it beside other libraries, which are
//! measured in the same way by `xtask/src/bench/ipc/mpi.c`.
//!
//! `ipc_bench KIND CPU CPU SECONDS SIZE...` prints a line for each size: bytes, microseconds one
//! way, bytes per nanosecond.

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use measure::{Channel, Fault, batches, pin, touch};
use nuri_ipc::{Config, CrossMemory, Endpoint, Selector, SingleEndpoint};

mod measure;

struct Many(Endpoint, u32);

impl Channel for Many {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        Ok(self.0.send(self.1, 1, bytes)?)
    }
    fn recv(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        self.0.recv(Selector::exact(self.1, 1), into, None)?;
        Ok(())
    }
}

struct Single(SingleEndpoint, u32);

impl Channel for Single {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        Ok(self.0.send(self.1, 1, bytes)?)
    }
    fn recv(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        self.0.recv(Selector::exact(self.1, 1), into, None)?;
        Ok(())
    }
}

struct Stream<R, W>(R, W);

impl<R: Read, W: Write> Channel for Stream<R, W> {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        Ok(self.1.write_all(bytes)?)
    }
    fn recv(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        Ok(self.0.read_exact(into)?)
    }
}

/// What either process needs; descriptors are inherited by number.
struct Plan {
    kind: String,
    cpu: usize,
    fds: [i32; 2],
    dir: String,
    sizes: Vec<usize>,
}

impl Plan {
    fn open(&self, rank: u32) -> Result<Box<dyn Channel>, Fault> {
        let config = Config::new("bench", rank, 2).dir(&self.dir);
        Ok(match self.kind.as_str() {
            "nuri" => Box::new(Many(Endpoint::open(config)?, 1 - rank)),
            "single" => Box::new(Single(SingleEndpoint::open_single(config)?, 1 - rank)),
            "cma" => {
                let config = config.cross_memory(CrossMemory::From(2048));
                Box::new(Many(Endpoint::open(config)?, 1 - rank))
            }
            "unix" => {
                let stream = UnixStream::from(adopt(self.fds[0]));
                Box::new(Stream(stream.try_clone()?, stream))
            }
            "pipe" => {
                let [r, w] = self.fds.map(|fd| std::fs::File::from(adopt(fd)));
                Box::new(Stream(r, w))
            }
            kind => return Err(format!("no such kind: {kind}").into()),
        })
    }

    fn start_follower(&self, cpu: usize, fds: [i32; 2]) -> Result<Child, Fault> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["follow", &self.kind, &self.dir]);
        let numbers = [cpu, fds[0] as usize, fds[1] as usize];
        command.args(numbers.iter().chain(&self.sizes).map(ToString::to_string));
        Ok(command.spawn()?)
    }
}

#[allow(unsafe_code)]
fn adopt(fd: i32) -> OwnedFd {
    // SAFETY: the number was handed over to be owned here.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Descriptors that a child inherits.
fn pipes() -> Result<[[i32; 2]; 2], Fault> {
    let pipe = || -> Result<(i32, i32), Fault> {
        let (r, w) = std::io::pipe()?;
        rustix::io::fcntl_setfd(&r, rustix::io::FdFlags::empty())?;
        rustix::io::fcntl_setfd(&w, rustix::io::FdFlags::empty())?;
        Ok((r.into_raw_fd(), w.into_raw_fd()))
    };
    let ((r0, w0), (r1, w1)) = (pipe()?, pipe()?);
    Ok([[r0, w1], [r1, w0]])
}

fn sockets() -> Result<[[i32; 2]; 2], Fault> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (kind, flags) = (SocketType::STREAM, SocketFlags::empty());
    let (a, b) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
    Ok([[a.into_raw_fd(), 0], [b.into_raw_fd(), 0]])
}

fn between_processes(mut plan: Plan, cpu: usize, time: Duration) -> Result<(), Fault> {
    pin(plan.cpu)?;
    let fds = if plan.kind == "unix" { sockets()? } else { pipes()? };
    plan.fds = fds[0];
    let mut follower = plan.start_follower(cpu, fds[1])?;
    fds[1].into_iter().filter(|fd| *fd > 0).for_each(|fd| drop(adopt(fd)));
    measure::lead(plan.open(0)?.as_mut(), &plan.sizes, time)?;
    if follower.wait()?.success() { Ok(()) } else { Err("the other process failed".into()) }
}

fn memcpy(sizes: &[usize], time: Duration) -> Result<(), Fault> {
    for size in sizes {
        let (mut from, mut to) = (vec![1u8; *size], vec![0u8; *size]);
        let count = ((1 << 20) / size).clamp(4, 1000) as u32;
        let once = batches(time, count, || {
            let began = Instant::now();
            for _ in 0..count {
                touch(&mut from);
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
            }
            Ok(began.elapsed())
        })?;
        println!("{size} {:.4} {:.4}", once / 1e3, *size as f64 / once);
    }
    Ok(())
}

fn main() -> Result<(), Fault> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers = |args: &[String]| args.iter().map(|n| n.parse()).collect::<Result<Vec<_>, _>>();
    match args.as_slice() {
        [role, kind, dir, rest @ ..] if role == "follow" => {
            let numbers = numbers(rest)?;
            let [cpu, r, w, ref sizes @ ..] = numbers[..] else { return Err("usage".into()) };
            let (kind, dir, sizes) = (kind.clone(), dir.clone(), sizes.to_vec());
            pin(cpu)?;
            let plan = Plan { kind, cpu, fds: [r as i32, w as i32], dir, sizes };
            measure::follow(plan.open(1)?.as_mut(), &plan.sizes)
        }
        [kind, here, there, seconds, sizes @ ..] => {
            let (time, sizes) = (Duration::from_secs_f64(seconds.parse()?), numbers(sizes)?);
            if kind == "memcpy" {
                pin(here.parse()?)?;
                return memcpy(&sizes, time);
            }
            let dir = std::env::temp_dir().join(format!("ipc-bench-{}", std::process::id()));
            let dir = dir.to_string_lossy().into_owned();
            let plan = Plan { kind: kind.clone(), cpu: here.parse()?, fds: [0; 2], dir, sizes };
            between_processes(plan, there.parse()?, time)
        }
        _ => Err("usage: ipc_bench KIND CPU CPU SECONDS SIZE...".into()),
    }
}
