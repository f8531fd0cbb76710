//! Messages through iceoryx2: copied into a loan, and out of what arrives.
//!
//! `iceoryx-bench CPU CPU SECONDS SIZE...`

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use iceoryx2::config::Config;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use measure::{Channel, Fault, pin};

#[path = "../../../../../../crates/nuri-ipc/examples/measure/mod.rs"]
mod measure;

/// Messages that may wait: as many as lie between two answers.
const WAITING: usize = 64;

struct Ports {
    _node: Node<ipc::Service>,
    to: Publisher<ipc::Service, [u8], ()>,
    from: Subscriber<ipc::Service, [u8], ()>,
}

impl Ports {
    fn open(session: &str, rank: usize, largest: usize) -> Result<Ports, Fault> {
        // Files of its own, which go with it.
        let mut config = Config::global_config().clone();
        config.global.set_root_path(&root(session).to_string_lossy().as_ref().try_into()?);
        let node = NodeBuilder::new().config(&config).create::<ipc::Service>()?;
        let service = |to: usize| {
            let name = format!("{session}/{to}");
            node.service_builder(&name.as_str().try_into()?)
                .publish_subscribe::<[u8]>()
                .max_publishers(1)
                .max_subscribers(1)
                .subscriber_max_buffer_size(WAITING)
                .enable_safe_overflow(false)
                .open_or_create()
                .map_err(Fault::from)
        };
        let to = service(1 - rank)?
            .publisher_builder()
            .initial_max_slice_len(largest)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()?;
        let from = service(rank)?.subscriber_builder().create()?;
        Ok(Ports { _node: node, to, from })
    }
}

fn root(session: &str) -> PathBuf {
    std::env::temp_dir().join(session)
}

impl Channel for Ports {
    fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let sample = self.to.loan_slice_uninit(bytes.len())?;
        sample.write_from_slice(bytes).send()?;
        Ok(())
    }

    fn recv(&mut self, into: &mut [u8]) -> Result<(), Fault> {
        for tries in 0u32.. {
            if let Some(sample) = self.from.receive()? {
                into.copy_from_slice(&sample);
                return Ok(());
            }
            // On one core the other one must run.
            if tries % 64 == 63 {
                std::thread::yield_now();
            }
        }
        Err("nobody sends".into())
    }
}

fn main() -> Result<(), Fault> {
    set_log_level(LogLevel::Error);
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers =
        |words: &[String]| words.iter().map(|n| n.parse()).collect::<Result<Vec<usize>, _>>();
    match args.as_slice() {
        [role, session, core, sizes @ ..] if role == "follow" => {
            pin(core.parse()?)?;
            let sizes = numbers(sizes)?;
            let mut ports = Ports::open(session, 1, *sizes.iter().max().ok_or("no sizes")?)?;
            // Tells that it is there: who sends to nobody is not waited for.
            println!("ready");
            let mut go = String::new();
            std::io::stdin().read_line(&mut go)?;
            measure::follow(&mut ports, &sizes)
        }
        [here, there, seconds, sizes @ ..] => {
            pin(here.parse()?)?;
            let (time, sizes) = (Duration::from_secs_f64(seconds.parse()?), numbers(sizes)?);
            lead(there, time, &sizes)
        }
        _ => Err("usage: iceoryx-bench CPU CPU SECONDS SIZE...".into()),
    }
}

fn lead(there: &str, time: Duration, sizes: &[usize]) -> Result<(), Fault> {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;
    let session = format!("nuri-bench-{}", std::process::id());
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["follow", &session, there]).args(sizes.iter().map(ToString::to_string));
    let mut follower = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut ports = Ports::open(&session, 0, *sizes.iter().max().ok_or("no sizes")?)?;
    let mut line = String::new();
    BufReader::new(follower.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    follower.stdin.take().ok_or("no input")?.write_all(b"go\n")?;
    measure::lead(&mut ports, sizes, time)?;
    drop(ports);
    let ended = follower.wait()?;
    let _ = std::fs::remove_dir_all(root(&session));
    if ended.success() { Ok(()) } else { Err("the other process failed".into()) }
}
