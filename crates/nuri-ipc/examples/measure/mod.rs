//! How messages between two processes are measured, whatever carries them: data is written before
//! and read after each transfer. `xtask/src/bench/ipc/mpi.c` does the same in C.

use std::hint::black_box;
use std::time::{Duration, Instant};

pub type Fault = Box<dyn std::error::Error>;

/// What the leading process asks for: nothing more of this size, or a number of round trips, or of
/// messages one way.
#[derive(Clone, Copy)]
enum Order {
    Next,
    Trips(u32),
    Stream(u32),
}

impl Order {
    fn to_bytes(self) -> [u8; 4] {
        match self {
            Self::Next => 0,
            Self::Trips(count) => count << 1,
            Self::Stream(count) => count << 1 | 1,
        }
        .to_le_bytes()
    }

    fn from_bytes(bytes: [u8; 4]) -> Self {
        match u32::from_le_bytes(bytes) {
            0 => Self::Next,
            word if word & 1 == 0 => Self::Trips(word >> 1),
            word => Self::Stream(word >> 1),
        }
    }
}

/// Something that carries messages both ways.
pub trait Channel {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Fault>;
    fn recv(&mut self, into: &mut [u8]) -> Result<(), Fault>;
}

pub fn pin(cpu: usize) -> Result<(), Fault> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

pub fn touch(bytes: &mut [u8]) {
    bytes.iter_mut().step_by(64).for_each(|b| *b = b.wrapping_add(1));
}

fn look(bytes: &[u8]) {
    black_box(bytes.iter().step_by(64).fold(0u8, |a, b| a ^ b));
}

/// Messages between two answers, when throughput is measured.
fn window(size: usize) -> u32 {
    if size <= 64 << 10 { 64 } else { 16 }
}

/// The other process: does what the leading one asks for, size after size.
pub fn follow(channel: &mut dyn Channel, sizes: &[usize]) -> Result<(), Fault> {
    for size in sizes {
        let (mut bytes, mut order) = (vec![1; *size], [0; 4]);
        loop {
            channel.recv(&mut order)?;
            match Order::from_bytes(order) {
                Order::Next => break,
                Order::Trips(count) => {
                    for _ in 0..count {
                        channel.recv(&mut bytes)?;
                        touch(&mut bytes);
                        channel.send(&bytes)?;
                    }
                }
                Order::Stream(count) => {
                    for _ in 0..count {
                        channel.recv(&mut bytes)?;
                        look(&bytes);
                    }
                    channel.send(&[0; 4])?;
                }
            }
        }
    }
    Ok(())
}

fn trips(channel: &mut dyn Channel, bytes: &mut [u8], count: u32) -> Result<Duration, Fault> {
    channel.send(&Order::Trips(count).to_bytes())?;
    let began = Instant::now();
    for _ in 0..count {
        touch(bytes);
        channel.send(bytes)?;
        channel.recv(bytes)?;
    }
    Ok(began.elapsed())
}

fn stream(channel: &mut dyn Channel, bytes: &mut [u8], count: u32) -> Result<Duration, Fault> {
    let began = Instant::now();
    channel.send(&Order::Stream(count).to_bytes())?;
    for _ in 0..count {
        touch(bytes);
        channel.send(bytes)?;
    }
    channel.recv(&mut [0; 4])?;
    Ok(began.elapsed())
}

/// Nanoseconds for each of `count`, as the median of batches.
pub fn batches(
    time: Duration,
    count: u32,
    mut batch: impl FnMut() -> Result<Duration, Fault>,
) -> Result<f64, Fault> {
    let (mut took, started) = (Vec::new(), Instant::now());
    while started.elapsed() < time || took.len() < 3 {
        took.push(batch()?.as_nanos() as f64 / f64::from(count));
    }
    took.sort_by(f64::total_cmp);
    Ok(took[took.len() / 2])
}

/// The leading process: prints a line for each size.
pub fn lead(channel: &mut dyn Channel, sizes: &[usize], time: Duration) -> Result<(), Fault> {
    for size in sizes {
        let mut bytes = vec![1; *size];
        trips(channel, &mut bytes, 2)?;
        let trip = trips(channel, &mut bytes, 2)?.as_nanos() / 2;
        let count = (time.as_nanos() / 8 / trip.max(1)).clamp(1, 200) as u32;
        let trip = batches(time, count, || trips(channel, &mut bytes, count))?;
        let count = window(*size);
        let message = batches(time, count, || stream(channel, &mut bytes, count))?;
        channel.send(&Order::Next.to_bytes())?;
        println!("{size} {:.4} {:.4}", trip / 2e3, *size as f64 / message);
    }
    Ok(())
}
