//! One file per noun or verb.

mod attach;
mod client;
mod disk;
mod doctor;
mod down;
mod fs;
pub(crate) mod helper;
mod lab;
mod list;
mod moving;
mod nbd;
mod nfs;
mod node;
mod repair;
mod scrub;
mod signals;
mod space;
mod status;
mod target;
mod tune;
mod up;
mod volume;

use std::process::ExitCode;

use nuri_io::{daemon, program};
use rustix::fs::Mode;

use crate::cli::{Cli, Command, Disk, Fs, Nfs, Node, SpaceVerb, Target, Volume};
use crate::space::Space;
use crate::{Failure, logs, supervisor};

/// Runs a command.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, Failure> {
    match process_name(&cli.command) {
        Some(name) => logs::begin(&name, cli.log),
        None => logs::begin_command(cli.log),
    }
    let stays = match &cli.command {
        Command::Node(Node::Run(_)) | Command::Supervise(_) => true,
        Command::Fs(Fs::Mount(args)) => args.foreground,
        Command::Volume(Volume::Serve(_)) | Command::Disk(Disk::Serve(_)) => true,
        Command::Nfs(Nfs::Serve(_)) => true,
        _ => false,
    };
    if stays || matches!(&cli.command, Command::Up(_) | Command::Fs(Fs::Mount(_))) {
        daemon::pass_on_nothing();
        daemon::raise_limits().map_err(Failure::new)?;
    }
    if stays {
        program::end_at_panics();
        match &cli.command {
            Command::Supervise(_) => daemon::is_spared_by_oom(),
            _ => daemon::is_as_others_to_oom(),
        }
        // Its files are for nobody else.
        rustix::process::umask(Mode::from_raw_mode(0o077));
    }
    match cli.command {
        Command::Up(args) => up::run(args),
        Command::Down(args) => down::run(&args).map(done),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => status::top(&args).map(done),
        Command::Space(SpaceVerb::Set(args)) => space::set(&args).map(done),
        Command::Doctor(args) => doctor::run(&args),
        Command::Node(Node::Run(args)) => {
            let _role = supervisor::enter_role()?;
            node::run(args)
        }
        Command::Node(Node::List(args)) => list::nodes(&args),
        Command::Volume(verb) => volume::run(&verb).map(done),
        Command::Disk(verb) => disk::run(&verb).map(done),
        Command::Nfs(verb) => nfs::run(&verb).map(done),
        Command::Target(Target::List(args)) => list::targets(&args),
        Command::Target(Target::Check(args)) => target::check(&args),
        Command::Target(Target::Replace(args)) => repair::replace(&args).map(done),
        Command::Target(Target::Remove(args)) => moving::remove(&args).map(done),
        Command::Target(Target::Drain(args)) => moving::drain(&args).map(done),
        Command::Target(Target::Rebalance(args)) => moving::rebalance(&args).map(done),
        Command::Target(Target::Resync(args)) => repair::set_pace(&args).map(done),
        Command::Target(Target::Scrub(args)) => scrub::run(&args),
        Command::Fs(args) => fs::run(args),
        Command::Lab { args } => lab::run(&args),
        Command::Supervise(args) => supervisor::run(&Space::at(&args.dir)).map(done),
    }
}

/// Of a process that stays: what it is in its space.
fn process_name(command: &Command) -> Option<String> {
    let given = std::env::var(supervisor::ROLE).ok();
    match command {
        Command::Supervise(_) => Some("supervisor".into()),
        Command::Node(Node::Run(_)) => Some(given.unwrap_or("node".into())),
        Command::Fs(Fs::Mount(args)) if args.foreground => Some(given.unwrap_or("mount".into())),
        _ => None,
    }
}

fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}
