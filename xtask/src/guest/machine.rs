//! A guest that runs: its console, line by line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::image::Image;

/// Longer than any story says nothing, on two processors that emulate and do more beside that.
const SILENCE: Duration = Duration::from_secs(240);

/// Its power is cut when dropped.
pub(super) struct Guest {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
    story: String,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The emulator of a machine, started in the network that `enter` enters.
fn qemu(enter: &[String]) -> Command {
    let words: Vec<_> = enter.iter().map(String::as_str).chain(["qemu-system-x86_64"]).collect();
    let mut qemu = Command::new(words[0]);
    qemu.args(&words[1..]);
    qemu.args(["-accel", "tcg", "-m", "1024", "-no-reboot"]);
    qemu.args(["-netdev", "user,id=n", "-device", "virtio-net-pci,netdev=n"]);
    qemu
}

/// The kernel's command line for a guest that plays a story with these words.
pub(super) fn append(story: &str, words: &str) -> String {
    format!("console=ttyS0 quiet panic=-1 story={story} {words}")
}

impl Guest {
    /// Boots a guest that plays a story, with these words; after `enter`, the words that enter the
    /// machine whose network it has.
    pub(super) fn boot(
        image: &Image,
        story: &str,
        words: &str,
        enter: &[String],
    ) -> Result<Guest, String> {
        let mut qemu = qemu(enter);
        qemu.args(["-nographic", "-append", &append(story, words)]);
        qemu.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initrd);
        Guest::start(qemu, story)
    }

    /// A guest whose disk is a volume. It boots from there, or goes on where another one is that
    /// moves to the socket `comes_by`. Its emulator takes commands at the socket `monitor`.
    pub(super) fn of_volume(
        story: &str,
        uri: &str,
        monitor: &Path,
        comes_by: Option<&Path>,
    ) -> Result<Guest, String> {
        let mut qemu = qemu(&[]);
        qemu.args(["-display", "none", "-serial", "stdio"]);
        qemu.args(["-monitor", &format!("unix:{},server=on,wait=off", monitor.display())]);
        qemu.args(["-drive", &format!("file={uri},format=raw,if=virtio,cache=none")]);
        if let Some(socket) = comes_by {
            qemu.args(["-incoming", &format!("unix:{}", socket.display())]);
        }
        Guest::start(qemu, story)
    }

    fn start(mut qemu: Command, story: &str) -> Result<Guest, String> {
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = qemu.spawn().map_err(|e| format!("qemu: {e}"))?;
        let out = child.stdout.take().ok_or("qemu has no console")?;
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(out).split(b'\n').map_while(Result::ok);
            let text = |line: Vec<u8>| String::from_utf8_lossy(&line).trim_end().to_owned();
            lines.map(text).map_while(|line| tell.send(line).ok()).for_each(drop);
        });
        Ok(Guest { child, lines, said: Vec::new(), story: story.into() })
    }

    /// Types a line at its console.
    pub(super) fn type_line(&mut self, line: &str) -> Result<(), String> {
        let console = self.child.stdin.as_mut().ok_or("qemu has no console")?;
        writeln!(console, "{line}").map_err(|e| format!("qemu's console: {e}"))
    }

    /// Waits for a line; fails with what the guest said where it does not come.
    pub(super) fn hears(&mut self, words: &str) -> Result<(), String> {
        loop {
            match self.lines.recv_timeout(SILENCE) {
                Ok(line) => {
                    let is_it = line.contains(words);
                    let is_over = line.contains(&format!("story {}: ", self.story));
                    self.said.push(line);
                    match (is_it, is_over) {
                        (true, _) => return Ok(()),
                        (false, true) => return Err(self.told(words)),
                        (false, false) => {}
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(self.told(words));
                }
            }
        }
    }

    fn told(&self, words: &str) -> String {
        let last = self.said.len().saturating_sub(40);
        format!("{}: never said {words:?}, but\n{}", self.story, self.said[last..].join("\n"))
    }

    /// Waits until the story was told to its end.
    pub(super) fn ends_well(mut self) -> Result<(), String> {
        let words = format!("story {}: told", self.story);
        self.hears(&words)
    }
}
