//! `nuri-lab`: the laboratory. `nuri lab ...` runs this program.

mod cli;
mod compare;
mod report;
mod testbed;

use std::process::ExitCode;

use clap::Parser;
use nuri_io::program::end_when_nobody_reads;
use nuri_lab::guard::guarded;
use nuri_lab::plan::{Plan, built_in};
use nuri_lab::single::Where;
use nuri_lab::workload::Workload;
use nuri_lab::{LabError, Result, at, rank, run, single};
use serde::Serialize;

use cli::{Cli, Lab};

fn main() -> ExitCode {
    end_when_nobody_reads();
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(LabError(text)) => {
            eprintln!("nuri lab: {text}");
            ExitCode::FAILURE
        }
    }
}

fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

/// Prints any view as JSON.
fn print_json<T: Serialize>(value: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(at("cannot print JSON"))?;
    println!("{text}");
    Ok(())
}

fn run(lab: Lab) -> Result<ExitCode> {
    match lab {
        Lab::List { json } => list(json),
        Lab::Show { study } => show(&study),
        Lab::Run(request) => {
            let dirs = request.dirs();
            guarded(&dirs, |stop| run::run(&request, stop).map(done))
        }
        Lab::Ior(args) => once(&Workload::Ior(args.options), &args.place),
        Lab::Mdtest(args) => once(&Workload::Mdtest(args.options), &args.place),
        Lab::Bonnie(args) => once(&Workload::Bonnie(args.options), &args.place),
        Lab::Block(args) => once(&Workload::Block(args.options), &args.place),
        Lab::DbStress(args) => once(&Workload::DbStress(args.options), &args.place),
        Lab::Io500(args) => once(&Workload::Io500(args.options), &args.place),
        Lab::Ipc(args) => {
            let (workload, dirs) = (Workload::Ipc(args.options), [std::env::temp_dir()]);
            guarded(&dirs, |stop| single::run(&workload, &dirs, &args.how, stop).map(done))
        }
        Lab::Watch(watch) => guarded(&watch.dirs, |stop| watch.run(&stop)),
        Lab::Tune(tune) => {
            let dirs = [tune.dir.clone()];
            guarded(&dirs, |stop| tune.run(stop).map(done))
        }
        Lab::Report(args) => report::run(&args).map(done),
        Lab::Compare(args) => compare::run(&args),
        Lab::Testbed(args) => testbed::run(args).map(done),
        Lab::Rank => rank::serve().map(done),
    }
}

fn once(workload: &Workload, place: &Where) -> Result<ExitCode> {
    let dirs = place.dirs(workload)?;
    let work = |stop| single::run(workload, &dirs, &place.how, stop).map(done);
    let guarded_dirs: Vec<_> = dirs.iter().cloned().chain([std::env::temp_dir()]).collect();
    guarded(&guarded_dirs, work)
}

#[derive(Serialize)]
struct Study {
    study: String,
    question: String,
    source: String,
    /// It makes its clusters (`--testbed`).
    testbed: bool,
}

fn list(json: bool) -> Result<ExitCode> {
    let study = |plan: Plan| Study {
        testbed: plan.testbed.is_some(),
        study: plan.study,
        question: plan.question,
        source: plan.source,
    };
    let studies: Vec<_> = built_in()?.into_iter().map(study).collect();
    if json {
        print_json(&studies)?;
    } else {
        for Study { study, question, source, testbed } in &studies {
            let clusters = if *testbed { "; makes its clusters (--testbed)" } else { "" };
            println!("{study:<16} {question}\n{:<16} {source}{clusters}", "");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(study: &str) -> Result<ExitCode> {
    print!("{}", Plan::text(study)?);
    Ok(ExitCode::SUCCESS)
}
