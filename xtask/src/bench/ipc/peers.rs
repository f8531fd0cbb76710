//! Who is measured, and how it is started.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use super::Sample;
use crate::shell::{cargo, root, run, script, target};

/// A library, or a setting of one.
pub(super) struct Peer {
    pub(super) name: &'static str,
    program: Program,
}

#[derive(Clone, Copy)]
enum Program {
    /// `ipc_bench` of nuri-ipc with this kind.
    Ours(&'static str),
    /// `mpi.c` with the compiler of this implementation, and how it is launched on two cores and
    /// beside that on one; with our library before it or not.
    Mpi { flavour: &'static str, launch: &'static str, one_core: &'static str, layer: bool },
    /// `ucx_perftest` over these transports.
    Ucx(&'static str),
    /// `iceoryx/`, a package of its own.
    Iceoryx,
}

const fn mpich(name: &'static str, layer: bool) -> Peer {
    let launch = "mpiexec.mpich -bind-to none -n 2";
    Peer { name, program: Program::Mpi { flavour: "mpich", launch, one_core: "", layer } }
}

const fn openmpi(name: &'static str, launch: &'static str, layer: bool) -> Peer {
    let one_core = "--mca mpi_yield_when_idle 1";
    Peer { name, program: Program::Mpi { flavour: "openmpi", launch, one_core, layer } }
}

const fn ours(name: &'static str) -> Peer {
    Peer { name, program: Program::Ours(name) }
}

macro_rules! mpirun {
    ($more:literal) => {
        concat!("mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n 2 ", $more)
    };
}

const VADER: &str = mpirun!("--mca pml ob1 --mca btl self,vader");
const VADER_WITHOUT_CMA: &str =
    mpirun!("--mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none");
const OMPI_UCX: &str = mpirun!("--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any");

/// In the order of the table's columns.
pub(super) const PEERS: &[Peer] = &[
    ours("nuri"),
    ours("single"),
    ours("cma"),
    mpich("mpich+nuri", true),
    openmpi("ompi+nuri", VADER, true),
    mpich("mpich", false),
    openmpi("ompi-cma", VADER, false),
    openmpi("ompi-nocma", VADER_WITHOUT_CMA, false),
    openmpi("ompi-ucx", OMPI_UCX, false),
    Peer { name: "ucx", program: Program::Ucx("posix,cma,self") },
    Peer { name: "iceoryx2", program: Program::Iceoryx },
    ours("unix"),
    ours("pipe"),
    ours("memcpy"),
];

/// Kinds of ours: they are compared with the others and not among them.
pub(super) const OWN: [&str; 5] = ["nuri", "single", "cma", "mpich+nuri", "ompi+nuri"];
/// No message passing: shown, and held against nothing.
pub(super) const BARE: &str = "memcpy";

/// Longest time for a build.
const BUILD: Duration = Duration::from_secs(900);
/// Longest time for one run.
const LIMIT: Duration = Duration::from_secs(10);

impl Peer {
    /// Whether it needs nothing installed.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.program, Program::Ours(_))
    }
}

/// Programs ready to run.
pub(super) struct Workshop {
    dir: tempfile::TempDir,
    ours: PathBuf,
    /// How its build ended.
    iceoryx: RefCell<Option<Result<(), String>>>,
}

impl Workshop {
    /// Builds our own program.
    pub(super) fn open() -> Result<Self, String> {
        let build = ["build", "--release", "-q", "-p", "nuri-ipc", "--example", "ipc_bench"];
        run(&mut cargo(&build), BUILD)?;
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let ours = target().join("release/examples/ipc_bench");
        Ok(Self { dir, ours, iceoryx: RefCell::default() })
    }

    /// Measures one peer at one size. The error says what to install, or what went wrong.
    pub(super) fn run(
        &self,
        peer: &Peer,
        cores: [usize; 2],
        seconds: f64,
        size: usize,
    ) -> Result<Sample, String> {
        let [here, there] = cores;
        let args = format!("{here} {there} {seconds} {size}");
        match peer.program {
            Program::Ours(kind) => {
                line(&script(&format!("{} {kind} {args}", self.ours.display()), LIMIT)?)
            }
            Program::Mpi { flavour, launch, one_core, layer } => {
                let program = self.compile(flavour)?;
                let before = if layer { self.layer(flavour)? } else { String::new() };
                let more = if here == there { one_core } else { "" };
                let text = format!("{launch} {more} {before} {} {args} 2>&1", program.display());
                line(&script(&text, LIMIT)?)
            }
            Program::Ucx(transports) => ucx(transports, cores, seconds, size),
            Program::Iceoryx => {
                let program = self.iceoryx()?;
                line(&script(&format!("{} {args}", program.display()), LIMIT)?)
            }
        }
    }

    /// The MPI program, compiled once for each implementation.
    fn compile(&self, flavour: &str) -> Result<PathBuf, String> {
        let program = self.dir.path().join(flavour);
        if !program.exists() {
            let compiler = format!("mpicc.{flavour}");
            need(&compiler)?;
            let source = root().join("xtask/src/bench/ipc/mpi.c");
            let (out, source) = (program.display(), source.display());
            script(&format!("{compiler} -O2 -Wall -Wextra -o {out} {source}"), LIMIT)?;
        }
        Ok(program)
    }

    /// The program with iceoryx2, built once.
    fn iceoryx(&self) -> Result<PathBuf, String> {
        let target = target().join("iceoryx");
        let program = target.join("release/iceoryx-bench");
        let mut built = self.iceoryx.borrow_mut();
        let outcome = built.get_or_insert_with(|| {
            let manifest = root().join("xtask/src/bench/ipc/iceoryx/Cargo.toml");
            let mut build = cargo(&["build", "--release", "-q", "--manifest-path"]);
            run(build.arg(manifest).env("CARGO_TARGET_DIR", &target), BUILD)
        });
        outcome.clone().map(|()| program)
    }

    /// What puts our library before an implementation.
    fn layer(&self, flavour: &str) -> Result<String, String> {
        let library = self.dir.path().join(format!("libnuri_mpi-{flavour}.so"));
        let shown = library.display();
        if !library.exists() {
            script(&format!("scripts/mpi-library mpicc.{flavour} {shown}"), BUILD)?;
        }
        Ok(format!("env LD_PRELOAD={shown}"))
    }
}

/// A pair of processes for each test. Their buffers are not written between messages: that flatters
/// them.
fn ucx(
    transports: &str,
    [here, there]: [usize; 2],
    seconds: f64,
    size: usize,
) -> Result<Sample, String> {
    need("ucx_perftest")?;
    let port = free_port()?;
    // About as long as others are measured, at a guess of 1 us and 5 bytes per ns.
    // It never gives its core away: on one core a message takes a time slice.
    let each = if here == there { 4e6 } else { 1000.0 + size as f64 / 5.0 };
    let count = ((seconds * 1e9 / each) as usize).max(20);
    let warm = (count / 10).max(2);
    let text = format!(
        "export UCX_TLS={transports}
         trap 'kill $server 2>/dev/null || true' EXIT
         for test in tag_lat tag_bw; do
             ucx_perftest -p {port} -c {there} >/dev/null 2>&1 & server=$!
             sleep 0.15
             ucx_perftest localhost -p {port} -c {here} -t $test -s {size} \
                 -n {count} -w {warm} -f -v | sed -n \"s/^ *[0-9]/$test,&/p\"
             wait $server
         done"
    );
    ucx_sample(&script(&text, LIMIT)?, size)
}

/// Refuses with the name of what to install.
fn need(program: &str) -> Result<(), String> {
    script(&format!("command -v {program}"), LIMIT)
        .map(|_| ())
        .map_err(|_| format!("{program} is not installed; scripts/setup --bench installs it"))
}

/// A port that nobody had a moment ago.
fn free_port() -> Result<u16, String> {
    let bound = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    bound.map(|at| at.port()).map_err(|e| e.to_string())
}

/// The line of `ipc_bench` and `mpi.c`: bytes, microseconds, bytes per nanosecond.
fn line(text: &str) -> Result<Sample, String> {
    let sample = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, micros, rate] = words[..] else { return None };
        Some(Sample { micros: micros.parse().ok()?, rate: rate.parse().ok()? })
    };
    text.lines().find_map(sample).ok_or_else(|| unexpected(text))
}

/// Lines of `ucx_perftest -v` after the test's name: count, percentile, average and overall
/// microseconds, average and overall MB/s, average and overall messages/s.
fn ucx_sample(text: &str, size: usize) -> Result<Sample, String> {
    let field = |test: &str, at: usize| -> Option<f64> {
        let line = text.lines().find_map(|l| l.strip_prefix(test))?;
        line.split(',').nth(at)?.trim().parse().ok()
    };
    let sample = || {
        let messages = field("tag_bw,", 7)?;
        Some(Sample { micros: field("tag_lat,", 1)?, rate: messages * size as f64 / 1e9 })
    };
    sample().ok_or_else(|| unexpected(text))
}

fn unexpected(text: &str) -> String {
    format!("unexpected words: {}", text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_programs_print_is_read_and_gaps_are_refused() {
        let found = line("hello\n64 0.5 1.5\n").expect("complete");
        assert_eq!((found.micros, found.rate), (0.5, 1.5));
        assert!(line("64 fast 1.5\n").is_err());
        let text = "tag_lat,100,0.17,0.18,0.19,20,21,5000000,5100000\n\
                    tag_bw,100,0.1,0.1,0.1,30,31,9000000,10000000\n";
        let found = ucx_sample(text, 4).expect("complete");
        assert_eq!((found.micros, found.rate), (0.17, 0.04));
        assert!(ucx_sample("tag_lat,100,0.17\n", 4).is_err());
    }

    #[test]
    fn names_are_distinct_and_known() {
        let mut names: Vec<_> = PEERS.iter().map(|p| p.name).collect();
        assert!(OWN.iter().chain([&BARE]).all(|name| names.contains(name)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PEERS.len());
    }
}
