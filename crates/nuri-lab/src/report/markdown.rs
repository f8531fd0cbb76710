//! A report as Markdown: tables and words.

use std::fmt::Write;

use super::{Chapter, Panel, table, verdict};

/// The whole report.
pub fn render(chapters: &[Chapter]) -> String {
    let mut text = String::from("# Measured with nuri lab\n");
    for chapter in chapters {
        add(&mut text, chapter);
    }
    text
}

fn add(text: &mut String, chapter: &Chapter) {
    let _ = writeln!(text, "\n## {}\n", chapter.study);
    if let Some(plan) = &chapter.plan {
        let _ = writeln!(text, "**{}** {} *{}*\n", plan.question, plan.setup, plan.source);
    }
    for host in &chapter.hosts {
        let _ = writeln!(text, "- {host}");
    }
    if !chapter.scores.is_empty() {
        let _ = writeln!(text);
    }
    for score in &chapter.scores {
        let _ = writeln!(text, "- {score}.");
    }
    for panel in &chapter.panels {
        add_panel(text, panel);
    }
    if !chapter.warnings.is_empty() {
        let _ = writeln!(text, "\nBefore you trust it:\n");
    }
    for warning in &chapter.warnings {
        let _ = writeln!(text, "- {warning}");
    }
}

fn add_panel(text: &mut String, panel: &Panel) {
    let _ = writeln!(text, "\n### {}\n", panel.metric);
    let (head, rows) = table(panel);
    let _ = writeln!(text, "| {} |", head.join(" | "));
    let _ = writeln!(text, "|{}", "---|".repeat(head.len()));
    for row in rows {
        let cells: Vec<_> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    let _ = writeln!(text);
    for sentence in verdict::sentences(panel) {
        let _ = writeln!(text, "- {sentence}");
    }
}

#[cfg(test)]
mod tests {
    use crate::record::tests::sample;

    #[test]
    fn a_report_has_the_question_the_table_and_the_warnings() {
        let mut record = sample("metadata", &[("place", "space"), ("processes", "1")], &[7.0]);
        record.partial = Some("rank 2 ended".into());
        record.point.insert("odd".into(), "a|b".into());
        let text = super::render(&crate::report::chapters(vec![record]).unwrap());
        assert!(text.contains("**Do creates, stats and removes"), "{text}");
        assert!(text.contains("| 1 | a\\|b, space | 7.00 |"), "{text}");
        assert!(text.contains("not whole: rank 2 ended"), "{text}");
    }
}
