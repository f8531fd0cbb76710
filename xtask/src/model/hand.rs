//! Calls by which programs change files that need unsafe code here: a helper in Python makes them.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::call::Fill;

const PROGRAM: &str = include_str!("hand.py");

/// The helper; ends with the value.
pub(super) struct Hand {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Hand {
    pub(super) fn start() -> Result<Hand, String> {
        let mut command = Command::new("python3");
        command.args(["-u", "-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("python3: {e}; run scripts/setup"))?;
        let pipes = child.stdin.take().zip(child.stdout.take()).ok_or("python3 has no pipes")?;
        let (asks, answers) = (pipes.0, BufReader::new(pipes.1));
        Ok(Hand { child, asks, answers })
    }

    /// Stores through a shared mapping, then `msync`.
    pub(super) fn store(&mut self, file: &File, fill: Fill) -> Result<(), String> {
        self.ask("store", file, fill)
    }

    /// Writes with `io_submit` and `O_DIRECT`.
    pub(super) fn submit(&mut self, file: &File, fill: Fill) -> Result<(), String> {
        self.ask("submit", file, fill)
    }

    /// Writes by io_uring, through the page cache.
    pub(super) fn ring(&mut self, file: &File, fill: Fill) -> Result<(), String> {
        self.ask("ring", file, fill)
    }

    fn ask(&mut self, what: &str, file: &File, fill: Fill) -> Result<(), String> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let Fill { at, len, value } = fill;
        let gone = |e: std::io::Error| format!("the helper: {e}");
        writeln!(self.asks, "{what} {path} {at} {len} {value}").map_err(gone)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).map_err(gone)?;
        match answer.trim() {
            "ok" => Ok(()),
            "" => Err(format!("the helper ended at: {what} {at} {len}")),
            words => Err(words.to_owned()),
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
