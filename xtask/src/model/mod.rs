//! Random calls that change or show data, against a model in memory.
//!
//! A round draws calls from its seed and plays them one after the other in a directory of its own,
//! on one mount or in turn on two; whatever a call shows must be what the model says. After some
//! rounds the mounts are made anew and all files are compared once more. A round that fails is
//! played again with fewer calls, as long as it fails, and what is left is printed.

mod call;
mod expected;
mod hand;
mod play;
mod shrink;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nuri_io::rng::Rng;
use rustix::fs::XattrFlags;

use self::call::Call;
use self::hand::Hand;
use self::play::{Failure, Files};
use crate::apps::{Another, Mounted};
use crate::shell::Build;

/// Calls of a round.
const CALLS: usize = 80;
/// Rounds between two remounts.
const ROUNDS: u64 = 25;
/// Time to find the fewest calls that fail.
const SHRINKING: Duration = Duration::from_secs(120);

/// What is played on: shape, targets, mounts.
struct Setting {
    shape: &'static str,
    mounts: u64,
    /// One node is frozen once the space has begun.
    degraded: bool,
}

const SETTINGS: &[Setting] = &[
    Setting { shape: "parity:3+1", mounts: 2, degraded: false },
    Setting { shape: "stripe", mounts: 1, degraded: false },
    Setting { shape: "mirror:2", mounts: 2, degraded: false },
    Setting { shape: "parity:3+1", mounts: 1, degraded: true },
    Setting { shape: "stripe", mounts: 2, degraded: false },
    Setting { shape: "mirror:2", mounts: 1, degraded: true },
    Setting { shape: "parity:3+1", mounts: 1, degraded: false },
];

/// Which settings are played: all by default.
#[derive(Clone, Copy, Default)]
pub(crate) struct Only<'a> {
    /// Those of which the shape begins so.
    pub(crate) shape: &'a str,
    /// Those with so many mounts; 0 for all.
    pub(crate) mounts: u64,
}

/// Plays rounds for so long, all settings in turn.
pub(crate) fn run(time: Duration, seed: Option<u64>, only: Only<'_>) -> Result<(), String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut seed = seed.unwrap_or(now.as_secs() * 1000);
    let fits = |s: &&Setting| {
        s.shape.starts_with(only.shape) && (only.mounts == 0 || s.mounts == only.mounts)
    };
    let settings: Vec<_> = SETTINGS.iter().filter(fits).collect();
    let start = Instant::now();
    println!("seed {seed}");
    for (i, setting) in settings.iter().enumerate() {
        // Of the time that is left each has its share.
        let share = time.saturating_sub(start.elapsed()) / (settings.len() - i) as u32;
        let mut stage = Stage::up(setting)?;
        let (began, first) = (Instant::now(), seed);
        while began.elapsed() < share || seed == first {
            stage.batch(seed)?;
            seed += ROUNDS;
        }
        let Setting { shape, mounts, degraded } = setting;
        let state = if *degraded { ", degraded" } else { "" };
        println!("  {shape}, {mounts} mounts{state}: {} rounds", seed - first);
        stage.down_clean()?;
    }
    Ok(())
}

/// A space and its mounts.
struct Stage {
    setting: &'static Setting,
    hand: Hand,
    // In this order they end.
    another: Option<Another>,
    frozen: Option<u32>,
    mounted: Mounted,
    played: u64,
}

impl Stage {
    fn up(setting: &'static Setting) -> Result<Stage, String> {
        let more = format!("--nodes 4 --targets 4 --target-size 4G --shape {}", setting.shape);
        let mounted = Mounted::up(Build::Tests, Path::new("/var/tmp"), &more)?;
        let another = if setting.mounts > 1 { Some(mounted.another()?) } else { None };
        let (hand, played) = (Hand::start()?, 0);
        let mut stage = Stage { setting, hand, another, frozen: None, mounted, played };
        if setting.degraded {
            stage.freeze()?;
        }
        Ok(stage)
    }

    /// Stops the last node; its groups go on without it.
    fn freeze(&mut self) -> Result<(), String> {
        let path = self.mounted.space.join("run/node3.lock");
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let pid: u32 = text.trim().parse().map_err(|e| format!("{}: {e}", path.display()))?;
        signal(pid, rustix::process::Signal::STOP)?;
        self.frozen = Some(pid);
        Ok(())
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let first = [self.mounted.mnt.clone()];
        first.into_iter().chain(self.another.as_ref().map(|another| another.mnt.clone())).collect()
    }

    /// A fresh directory, as each mount shows it.
    fn dirs(&mut self) -> Result<Vec<PathBuf>, String> {
        self.played += 1;
        let name = format!("d{}", self.played);
        let dirs: Vec<_> = self.mounts().iter().map(|mount| mount.join(&name)).collect();
        std::fs::create_dir(&dirs[0]).map_err(|e| format!("{}: {e}", dirs[0].display()))?;
        let layout = format!("shape={} chunk_size={} width=0", self.setting.shape, call::CHUNK);
        rustix::fs::setxattr(&dirs[0], "nuri.layout", layout.as_bytes(), XattrFlags::empty())
            .map_err(|e| format!("the layout {layout}: {e}"))?;
        Ok(dirs)
    }

    fn play(&mut self, calls: &[Call]) -> Result<(Vec<PathBuf>, Files), Failure> {
        let dirs = self.dirs().map_err(|words| Failure { at: 0, words })?;
        let files = play::play(calls, &dirs, &mut self.hand)?;
        Ok((dirs, files))
    }

    /// Some rounds, then all mounts anew.
    fn batch(&mut self, seed: u64) -> Result<(), String> {
        let mut kept = Vec::new();
        for seed in seed..seed + ROUNDS {
            let calls = call::draw(&mut Rng::new(seed), self.setting.mounts, CALLS);
            match self.play(&calls) {
                Ok((dirs, files)) => kept.push((seed, calls, dirs, files)),
                Err(failure) => return Err(self.explain(seed, &calls, failure)),
            }
        }
        self.remount()?;
        for (seed, calls, dirs, files) in kept {
            let looked = dirs.iter().try_for_each(|dir| play::compare(dir, &files));
            if let Err(words) = looked {
                return Err(self.explain_remount(seed, &calls, &words));
            }
            std::fs::remove_dir_all(&dirs[0]).map_err(|e| format!("removal: {e}"))?;
        }
        Ok(())
    }

    fn remount(&mut self) -> Result<(), String> {
        if let Some(another) = self.another.take() {
            another.end_clean(&self.mounted)?;
        }
        self.mounted.cold()?;
        if self.setting.mounts > 1 {
            self.another = Some(self.mounted.another()?);
        }
        Ok(())
    }

    /// The words of a failure, with the fewest calls that lead to one.
    fn explain(&mut self, seed: u64, calls: &[Call], failure: Failure) -> String {
        let Failure { at, mut words } = failure;
        let prefix = &calls[..calls.len().min(at + 1)];
        println!("seed {seed} fails at call {at}: {words}; looking for fewer calls");
        let fewest = shrink::shrink(prefix, SHRINKING, |calls| match self.play(calls) {
            Ok(_) => false,
            Err(failure) => {
                words = failure.words;
                true
            }
        });
        self.tell(seed, &fewest, &words)
    }

    fn explain_remount(&mut self, seed: u64, calls: &[Call], words: &str) -> String {
        println!("seed {seed} fails after a remount: {words}; looking for fewer calls");
        let fewest = shrink::shrink(calls, SHRINKING, |calls| {
            let Ok((dirs, files)) = self.play(calls) else { return false };
            let again = self.remount();
            again.is_err() || dirs.iter().any(|dir| play::compare(dir, &files).is_err())
        });
        self.tell(seed, &fewest, &format!("after a remount: {words}"))
    }

    fn tell(&self, seed: u64, calls: &[Call], words: &str) -> String {
        let lines: Vec<_> = calls.iter().map(|call| format!("    {call:?}")).collect();
        let Setting { shape, mounts, .. } = self.setting;
        let lines = lines.join("\n");
        format!("{shape}, {mounts} mounts, seed {seed}: {words}\n{lines}")
    }

    fn thaw(&mut self) {
        if let Some(pid) = self.frozen.take() {
            let _ = signal(pid, rustix::process::Signal::CONT);
        }
    }

    fn down_clean(mut self) -> Result<(), String> {
        if let Some(another) = self.another.take() {
            another.end_clean(&self.mounted)?;
        }
        self.thaw();
        self.mounted.down_clean()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.thaw();
    }
}

fn signal(pid: u32, signal: rustix::process::Signal) -> Result<(), String> {
    let pid = rustix::process::Pid::from_raw(pid as i32).ok_or("no process")?;
    rustix::process::kill_process(pid, signal).map_err(|e| format!("{signal:?}: {e}"))
}
