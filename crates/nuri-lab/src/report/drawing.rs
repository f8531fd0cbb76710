//! The drawing of one metric alone, for a document.

use super::{Chapter, plot};
use crate::{LabError, Result};

/// The only panel of the chapters as a drawing.
///
/// # Errors
/// Where they have several, or nothing was measured.
pub fn render(chapters: &[Chapter]) -> Result<String> {
    let panels: Vec<_> = chapters.iter().flat_map(|chapter| &chapter.panels).collect();
    let [panel] = panels[..] else {
        let names: Vec<&str> = panels.iter().map(|panel| panel.metric.as_str()).collect();
        return Err(LabError(format!(
            "a drawing shows one metric, and the runs have {}: {}; a page (.html) shows them all",
            names.len(),
            names.join(", ")
        )));
    };
    let drawn = plot::svg(panel)?.ok_or_else(|| LabError::new("nothing was measured"))?;
    // A document may be shown on dark ground, and knows nothing of the drawing's colours.
    Ok(drawn.replacen('>', "><rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>", 1))
}

#[cfg(test)]
mod tests {
    use crate::record::Record;
    use crate::record::tests::sample;
    use crate::report::chapters;

    #[test]
    fn one_metric_is_drawn_and_several_are_named() {
        let write = || sample("parallel-io", &[("np", "1")], &[3.0]);
        let drawn = super::render(&chapters(vec![write()]).unwrap()).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains("fill=\"#ffffff\""), "{drawn}");
        let read = Record { metric: "read".into(), ..write() };
        let refused = super::render(&chapters(vec![write(), read]).unwrap()).unwrap_err();
        assert!(refused.to_string().contains("have 2: write, read"), "{refused}");
    }
}
