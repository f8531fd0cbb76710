//! A report as one self-contained page: light and dark, readable on a phone and on paper.

use std::fmt::Write;

use super::plot::{self, GRID, INK, PALETTE};
use super::{Chapter, Panel, table, verdict};
use crate::Result;

const STYLE: &str = include_str!("page.css");

/// The whole page.
pub fn render(chapters: &[Chapter]) -> Result<String> {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Measured with nuri lab</title>\n<style>\n",
    );
    let _ = write!(page, "{STYLE}{}</style>\n</head>\n<body>\n", colours());
    page.push_str("<h1>Measured with nuri lab</h1>\n");
    if chapters.len() > 1 {
        contents(&mut page, chapters);
    }
    for chapter in chapters {
        add(&mut page, chapter)?;
    }
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

/// Drawings name their colours in the light; these rules replace them in the dark.
fn colours() -> String {
    let mut rules = String::from("@media screen and (prefers-color-scheme: dark) {\n");
    for (light, dark) in PALETTE.iter().chain([&INK, &GRID]) {
        let _ = writeln!(rules, "  svg [stroke=\"{light}\"] {{ stroke: {dark}; }}");
        let _ = writeln!(rules, "  svg [fill=\"{light}\"] {{ fill: {dark}; }}");
    }
    rules + "}\n"
}

fn contents(page: &mut String, chapters: &[Chapter]) {
    page.push_str("<nav>\n");
    for chapter in chapters {
        let name = escape(&chapter.study);
        let _ = writeln!(page, "<a href=\"#{name}\">{name}</a>");
    }
    page.push_str("</nav>\n");
}

fn add(page: &mut String, chapter: &Chapter) -> Result<()> {
    let name = escape(&chapter.study);
    let _ = writeln!(page, "<section id=\"{name}\">\n<h2>{name}</h2>");
    if let Some(plan) = &chapter.plan {
        let [question, setup, source] =
            [&plan.question, &plan.setup, &plan.source].map(|text| escape(text));
        let _ = writeln!(page, "<p class=\"question\">{question}</p>");
        let _ = writeln!(page, "<p>{setup} <cite>{source}</cite></p>");
    }
    list(page, "hosts", &chapter.hosts);
    if !chapter.scores.is_empty() {
        list(page, "scores", &chapter.scores);
    }
    for panel in &chapter.panels {
        add_panel(page, panel)?;
    }
    if !chapter.warnings.is_empty() {
        page.push_str("<p>Before you trust it:</p>\n");
        list(page, "warnings", &chapter.warnings);
    }
    page.push_str("</section>\n");
    Ok(())
}

fn list(page: &mut String, class: &str, lines: &[String]) {
    let _ = writeln!(page, "<ul class=\"{class}\">");
    for line in lines {
        let _ = writeln!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul>\n");
}

fn add_panel(page: &mut String, panel: &Panel) -> Result<()> {
    let _ = writeln!(page, "<h3>{}</h3>", escape(&panel.metric));
    list(page, "verdict", &verdict::sentences(panel));
    if let Some(drawing) = plot::svg(panel)? {
        let _ = writeln!(page, "<figure>\n{drawing}\n</figure>");
    }
    let (head, rows) = table(panel);
    page.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for cell in head {
        let _ = write!(page, "<th>{}</th>", escape(&cell));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        page.push_str("<tr>");
        for cell in row {
            let _ = write!(page, "<td>{}</td>", escape(&cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
    Ok(())
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use crate::record::tests::sample;
    use crate::report::chapters;

    #[test]
    fn a_page_needs_nothing_beside_itself() {
        let one = sample("transfer-size", &[("place", "space"), ("transfer", "16k")], &[5.0]);
        let two = sample("metadata", &[("place", "space"), ("processes", "1")], &[5.0]);
        let page = super::render(&chapters(vec![one, two]).unwrap()).unwrap();
        for part in ["<svg", "<a href=\"#metadata\">", "How much faster", "prefers-color-scheme"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        for outside in ["src=", "@import", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn words_of_records_are_words() {
        let odd = sample("<b>own</b>", &[("x", "\"><script>")], &[5.0]);
        let page = super::render(&chapters(vec![odd]).unwrap()).unwrap();
        assert!(!page.contains("<script>") && !page.contains("<b>own"), "{page}");
    }
}
