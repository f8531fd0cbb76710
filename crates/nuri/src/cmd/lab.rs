//! `nuri lab`.

mod compare;
mod report;
mod testbed;

use std::process::ExitCode;

use nuri_lab::guard::guarded;
use nuri_lab::plan::{Plan, built_in};
use nuri_lab::single::Where;
use nuri_lab::workload::Workload;
use nuri_lab::{LabError, rank, run, single};
use serde::Serialize;

use super::done;
use crate::Failure;
use crate::cli::lab::Lab;
use crate::show::print_json;

impl From<LabError> for Failure {
    fn from(LabError(text): LabError) -> Failure {
        Failure(text)
    }
}

pub(crate) fn run(lab: Lab) -> Result<ExitCode, Failure> {
    match lab {
        Lab::List { json } => list(json),
        Lab::Show { study } => show(&study),
        Lab::Run(request) => {
            let dirs = request.dirs();
            Ok(guarded(&dirs, |stop| run::run(&request, stop).map(done))?)
        }
        Lab::Ior(args) => once(&Workload::Ior(args.options), &args.place),
        Lab::Mdtest(args) => once(&Workload::Mdtest(args.options), &args.place),
        Lab::Bonnie(args) => once(&Workload::Bonnie(args.options), &args.place),
        Lab::DbStress(args) => once(&Workload::DbStress(args.options), &args.place),
        Lab::Io500(args) => once(&Workload::Io500(args.options), &args.place),
        Lab::Ipc(args) => {
            let (workload, dirs) = (Workload::Ipc(args.options), [std::env::temp_dir()]);
            Ok(guarded(&dirs, |stop| single::run(&workload, &dirs, &args.how, stop).map(done))?)
        }
        Lab::Watch(watch) => Ok(guarded(&watch.dirs, |stop| watch.run(&stop))?),
        Lab::Tune(tune) => {
            let dirs = [tune.dir.clone()];
            Ok(guarded(&dirs, |stop| tune.run(stop).map(done))?)
        }
        Lab::Report(args) => report::run(&args).map(done),
        Lab::Compare(args) => compare::run(&args),
        Lab::Testbed(args) => testbed::run(args).map(done),
        Lab::Rank => Ok(rank::serve().map(|()| ExitCode::SUCCESS)?),
    }
}

fn once(workload: &Workload, place: &Where) -> Result<ExitCode, Failure> {
    let work = |stop| single::run(workload, &place.dirs, &place.how, stop).map(done);
    let dirs: Vec<_> = place.dirs.iter().cloned().chain([std::env::temp_dir()]).collect();
    Ok(guarded(&dirs, work)?)
}

#[derive(Serialize)]
struct Study {
    study: String,
    question: String,
    source: String,
    /// It makes its clusters (`--testbed`).
    testbed: bool,
}

fn list(json: bool) -> Result<ExitCode, Failure> {
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

fn show(study: &str) -> Result<ExitCode, Failure> {
    print!("{}", Plan::text(study)?);
    Ok(ExitCode::SUCCESS)
}
