//! `nuri lab report`: writes what runs measured as a page, as Markdown, or as a drawing.

use std::path::Path;

use nuri_lab::report::{Chapter, chapters, drawing, html, markdown};
use nuri_lab::{LabError, Result, at};

use crate::cli::Report;

pub(super) fn run(args: &Report) -> Result<()> {
    let mut kinds = Vec::new();
    for path in &args.output {
        kinds.push((path, renderer(path)?));
    }
    let mut records = Vec::new();
    for run in &args.runs {
        records.extend(nuri_lab::record::read(run)?);
    }
    let chapters = chapters(records)?;
    if kinds.is_empty() {
        print!("{}", markdown::render(&chapters));
    }
    for (path, render) in kinds {
        let text = render(&chapters)?;
        std::fs::write(path, text).map_err(at(path.display()))?;
        println!("written: {}", path.display());
    }
    Ok(())
}

type Renderer = fn(&[Chapter]) -> Result<String>;

/// By the end of the file's name.
fn renderer(path: &Path) -> Result<Renderer> {
    match path.extension().and_then(|end| end.to_str()) {
        Some("html") => Ok(html::render),
        Some("svg") => Ok(drawing::render),
        Some("md") => Ok(|chapters| Ok(markdown::render(chapters))),
        _ => Err(LabError(format!("{}: a report ends in .html, .md or .svg", path.display()))),
    }
}
