//! `nuri lab testbed`: makes a cluster on this machine, and removes it.

use nuri_lab::testbed::{Harm, Settings, Testbed, list};

use nuri_lab::{LabError, Result, at, nuri_program};
use nuri_proto::layout::Shape;

use crate::cli::{self, Action, Make, OneNode, Which};

pub(super) fn run(args: cli::Testbed) -> Result<()> {
    match args.action {
        None => up(args.make),
        Some(Action::Down(which)) => down(&which),
        Some(Action::Clean) => clean(),
        Some(Action::List) => show_all(),
        Some(Action::Kill(node)) => harm(&node, Harm::Kill),
        Some(Action::Start(node)) => harm(&node, Harm::Start),
        Some(Action::Pause(node)) => harm(&node, Harm::Pause),
        Some(Action::Resume(node)) => harm(&node, Harm::Resume),
        Some(Action::Cut(node)) => harm(&node, Harm::Cut),
        Some(Action::Plug(node)) => harm(&node, Harm::Plug),
    }
}

fn up(make: Make) -> Result<()> {
    let shape = Shape::for_targets(make.shape, make.nodes as usize).map_err(LabError::new)?;
    let settings = Settings {
        program: nuri_program()?,
        dir: std::path::absolute(&make.dir).map_err(at(make.dir.display()))?,
        nodes: make.nodes,
        mounts: make.mounts,
        link: make.link,
        target_size: make.target_size,
        shape: shape.to_string(),
        serve: make.serve,
    };
    let testbed = Testbed::up(settings, &|step| eprintln!("{step}"))?;
    println!("{} nodes run", testbed.settings.nodes);
    for node in 0..testbed.settings.mounts {
        println!("mounted by node {node}: {}", testbed.mount_point(node).display());
    }
    for (node, view) in testbed.views().iter().enumerate() {
        if *view != testbed.mount_point(node as u64) {
            println!("file system of node {node}: {}", view.display());
        }
    }
    for (node, server) in testbed.servers().iter().enumerate() {
        println!("served to node {node}: {server}");
    }
    let space = testbed.space();
    println!("status:   {} nuri status --dir {}", testbed.enter(0), space.display());
    println!("stop:     nuri lab testbed down --dir {}", testbed.settings.dir.display());
    Ok(())
}

fn open(which: &Which) -> Result<Testbed> {
    let whole = which.dir.as_ref().map(std::path::absolute).transpose().map_err(at("--dir"))?;
    Testbed::open(whole.as_deref())
}

fn down(which: &Which) -> Result<()> {
    let testbed = open(which)?;
    testbed.down()?;
    println!("taken away: {}", testbed.settings.dir.display());
    Ok(())
}

fn clean() -> Result<()> {
    let all = list()?;
    for testbed in &all {
        testbed.down()?;
        println!("taken away: {}", testbed.settings.dir.display());
    }
    if all.is_empty() {
        println!("no testbed is there");
    }
    Ok(())
}

fn show_all() -> Result<()> {
    for Testbed { settings, .. } in list()? {
        println!("{}: {} nodes", settings.dir.display(), settings.nodes);
    }
    Ok(())
}

fn harm(one: &OneNode, harm: Harm) -> Result<()> {
    open(&one.which)?.harm(one.node, harm)
}
