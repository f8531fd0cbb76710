//! Reports and comparisons of runs, the page as a real browser shows it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{nuri, refused, text};

/// A result as `nuri lab run` writes it.
fn record(metric: &str, place: &str, transfer: &str, middle: f64) -> Value {
    json!({
        "format": 1, "version": "0.1.0", "run": "r", "study": "transfer-size",
        "at": "2026-11-22T12:00:00Z", "point": {"place": place, "transfer": transfer},
        "metric": metric, "unit": "MiB/s", "samples": [middle - 1.0, middle, middle + 1.0],
        "interval": {"low": middle - 1.0, "median": middle, "high": middle + 1.0},
        "limit": {"name": "disk write", "value": 1000.0}, "host": {"name": "a <machine>"},
    })
}

fn run_file(dir: &Path, name: &str, speed: f64) -> PathBuf {
    let mut lines = String::new();
    for metric in ["write", "read"] {
        for (transfer, rate) in [("16k", 100.0), ("2m", 400.0)] {
            for (place, share) in [("local", 1.0), ("space", 0.5)] {
                let record = record(metric, place, transfer, rate * share * speed);
                lines.push_str(&format!("{record}\n"));
            }
        }
    }
    let path = dir.join(name);
    std::fs::write(&path, lines).unwrap();
    path
}

/// What a browser makes of the page: the words that a script writes, which is added to a copy.
fn shown(page: &Path, more: &[&str]) -> String {
    const MEASURE: &str = "<script>
        const style = (of, name) => getComputedStyle(document.querySelector(of))[name];
        const plots = [...document.querySelectorAll('figure svg')];
        const tall = plots.filter(plot => plot.getBoundingClientRect().height > 150).length;
        const fits = document.documentElement.scrollWidth <= window.innerWidth;
        const ground = style('body', 'backgroundColor');
        document.title = `${tall} plots; fits: ${fits}; ground ${ground}; \
         line ${style('polyline[stroke-width=\"2\"]', 'stroke')}`;
        </script></body>";
    let copy = page.with_extension("measured.html");
    let whole = std::fs::read_to_string(page).unwrap();
    std::fs::write(&copy, whole.replace("</body>", MEASURE)).unwrap();
    let home = page.with_extension("browser");
    let out = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=500,900"])
        .arg(format!("--user-data-dir={}", home.display()))
        .args(more)
        .arg("--dump-dom")
        .arg(format!("file://{}", copy.display()))
        .output()
        .expect("chromium; run scripts/setup --test");
    let dom = text(&out.stdout);
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
    title.unwrap_or_else(|| panic!("{dom}{}", text(&out.stderr))).to_string()
}

#[test]
fn a_report_is_a_page_for_the_day_the_night_and_the_phone() {
    let tmp = tempfile::tempdir().unwrap();
    let run = run_file(tmp.path(), "run.jsonl", 1.0);
    let (page, words) = (tmp.path().join("r.html"), tmp.path().join("r.md"));
    let [run, html, md] = [&run, &page, &words].map(|path| path.display().to_string());
    let out = nuri(&["lab", "report", &run, "-o", &html, "-o", &md]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(
        shown(&page, &[]),
        "2 plots; fits: true; ground rgb(255, 255, 255); line rgb(0, 114, 178)"
    );
    assert_eq!(
        shown(&page, &["--blink-settings=preferredColorScheme=0"]),
        "2 plots; fits: true; ground rgb(21, 21, 21); line rgb(86, 180, 233)"
    );
    let words = std::fs::read_to_string(words).unwrap();
    assert!(words.contains("| 16k | space | 50.0 | 49.0 to 51.0 | 0.05 disk write |"), "{words}");
    assert!(words.contains("write of space is 0.50"), "{words}");

    refused(&["lab", "report", &run, "-o", "r.pdf"], "ends in .html, .md or .svg");
    refused(&["lab", "report", &md], "line 1: ");
    refused(&["lab", "report", "/nowhere.jsonl"], "/nowhere.jsonl: No such file");
}

#[test]
fn a_regression_is_told_from_noise_by_the_exit_status() {
    let tmp = tempfile::tempdir().unwrap();
    let at_speed = |name, speed| run_file(tmp.path(), name, speed).display().to_string();
    let (base, same) = (at_speed("base", 1.0), at_speed("same", 1.01));
    let slow = at_speed("slow", 0.5);
    let out = nuri(&["lab", "compare", &base, &same]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stdout));
    let out = nuri(&["lab", "compare", &base, &slow]);
    assert_eq!(out.status.code(), Some(1));
    let told = "slower   0.50 x  transfer-size write: place local, transfer 16k: 100.00 to 50.00";
    assert!(text(&out.stdout).contains(told), "{}", text(&out.stdout));
    assert_eq!(nuri(&["lab", "compare", &slow, &base]).status.code(), Some(0));
    let out = nuri(&["lab", "compare", &base, &slow, "--json"]);
    let told: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(told["changes"].as_array().unwrap().len(), 8);
    assert_eq!(told["changes"][0]["verdict"], "slower");

    let other = tmp.path().join("other");
    let odd = record("create", "space", "16k", 5.0);
    std::fs::write(&other, format!("{odd}\n")).unwrap();
    refused(&["lab", "compare", &base, &other.display().to_string()], "no result in common");
}
