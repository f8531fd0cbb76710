//! Draws a panel (SVG), with units on the axes. Along numbers there is a line per series with error
//! bars. Along names there are bars beside each other.
//!
//! Colours are those of [`PALETTE`] and [`INK`]. In a dark page, rules that name these colours
//! replace them.

use plotters::coord::ranged1d::SegmentedCoord;
use plotters::coord::types::{RangedCoordf64, RangedCoordusize};
use plotters::prelude::*;

use super::{Panel, Series, figure};
use crate::{LabError, Result};

/// Colours that are told apart by people who see fewer of them (Okabe and Ito), on paper too; with
/// their counterparts on dark ground.
pub(super) const PALETTE: [(&str, &str); 6] = [
    ("#0072B2", "#56B4E9"),
    ("#D55E00", "#FF9A4D"),
    ("#009E73", "#3FCF9F"),
    ("#B0578D", "#E69AC6"),
    ("#7A5C00", "#E6C229"),
    ("#5B5B8C", "#A9A9E0"),
];
/// Axes and words; the grid.
pub(super) const INK: (&str, &str) = ("#222222", "#DDDDDD");
pub(super) const GRID: (&str, &str) = ("#D9D9D9", "#444444");

const SIZE: (u32, u32) = (760, 360);

fn color(hex: &str) -> RGBColor {
    let part = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap_or(0);
    RGBColor(part(1), part(3), part(5))
}

fn failed<E: std::error::Error>(error: E) -> LabError {
    LabError(format!("the plot: {error}"))
}

/// Draws a panel; `None` where nothing was measured.
pub(super) fn svg(panel: &Panel) -> Result<Option<String>> {
    let records = panel.series.iter().flat_map(Series::measured);
    let Some(top) = records.map(|(_, r)| r.interval.high).max_by(f64::total_cmp) else {
        return Ok(None);
    };
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(panel, top, &root)?;
        root.present().map_err(failed)?;
    }
    Ok(Some(scaled(&text)))
}

/// As wide as the page lets it.
fn scaled(text: &str) -> String {
    let (width, height) = SIZE;
    let fixed = format!("width=\"{width}\" height=\"{height}\" viewBox");
    text.replacen(&fixed, "width=\"100%\" viewBox", 1)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(panel: &Panel, top: f64, root: &Area<'_>) -> Result<()> {
    // A place for each value, whatever it is: sizes double, and shapes are no numbers. The last one
    // is part of the range here.
    let along = (0..panel.values.len().saturating_sub(1)).into_segmented();
    let up = if top > 0.0 { top * 1.08 } else { 1.0 };
    let mut chart = ChartBuilder::on(root)
        .margin(10)
        .x_label_area_size(44)
        .y_label_area_size(74)
        .build_cartesian_2d(along, 0.0..up)
        .map_err(failed)?;
    let ink = color(INK.0);
    let words = ("sans-serif", 14).into_font().color(&ink);
    let name = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(i) => panel.values.get(*i).cloned().unwrap_or_default(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(color(GRID.0))
        .axis_style(ink)
        .label_style(words.clone())
        .axis_desc_style(words.clone())
        .x_desc(&panel.x)
        .y_desc(format!("{}, {}", panel.metric, panel.unit.name()))
        .x_label_formatter(&name)
        .y_label_formatter(&|value| figure(*value))
        .draw()
        .map_err(failed)?;
    if has_names(panel) {
        draw_bars(panel, root, &mut chart)?;
        let corner = SeriesLabelPosition::UpperRight;
        return chart
            .configure_series_labels()
            .position(corner)
            .label_font(words)
            .draw()
            .map_err(failed);
    }
    for (i, series) in panel.series.iter().enumerate() {
        let own = color(PALETTE[i % PALETTE.len()].0);
        let points: Vec<_> =
            series.measured().map(|(i, r)| (SegmentValue::CenterOf(i), r.interval)).collect();
        let middle = points.iter().map(|(at, v)| (at.clone(), v.median));
        let line = LineSeries::new(middle, own.stroke_width(2));
        let name = if series.name.is_empty() { &panel.metric } else { &series.name };
        let key = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], own.stroke_width(2));
        chart.draw_series(line).map_err(failed)?.label(name).legend(key);
        let bars = points
            .into_iter()
            .map(|(at, v)| ErrorBar::new_vertical(at, v.low, v.median, v.high, own.filled(), 8));
        chart.draw_series(bars).map_err(failed)?;
    }
    let legend = SeriesLabelPosition::LowerRight;
    chart.configure_series_labels().position(legend).label_font(words).draw().map_err(failed)
}

type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<SegmentedCoord<RangedCoordusize>, RangedCoordf64>>;

/// Whether what the panel varies has names, and no order.
fn has_names(panel: &Panel) -> bool {
    let is_name = |value: &String| !value.starts_with(|first: char| first.is_ascii_digit());
    panel.values.len() > 1 && panel.series.len() > 1 && panel.values.iter().all(is_name)
}

fn draw_bars<'b>(panel: &Panel, root: &Area<'b>, chart: &mut Chart<'_, 'b>) -> Result<()> {
    let (along, _) = chart.plotting_area().get_pixel_range();
    let group = (along.end - along.start) * 8 / 10 / panel.values.len().max(1) as i32;
    let width = group / panel.series.len().max(1) as i32;
    for (i, series) in panel.series.iter().enumerate() {
        let own = color(PALETTE[i % PALETTE.len()].0).filled();
        let key = move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], own);
        let nothing = std::iter::empty::<(SegmentValue<usize>, f64)>();
        let line = LineSeries::new(nothing, own);
        chart.draw_series(line).map_err(failed)?.label(&series.name).legend(key);
        for (at, record) in series.measured() {
            let top = (SegmentValue::CenterOf(at), record.interval.median);
            let (center, top) = chart.backend_coord(&top);
            let (_, bottom) = chart.backend_coord(&(SegmentValue::CenterOf(at), 0.0));
            let left = center - group / 2 + width * i as i32;
            let bar = [(left, top), (left + width - 2, bottom)];
            root.draw(&Rectangle::new(bar, own)).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::record::tests::sample;
    use crate::report::chapters;

    #[test]
    fn a_plot_names_its_axes_lines_and_values() {
        let at = |place, np| sample("parallel-io", &[("place", place), ("processes", np)], &[3.0]);
        let chapters =
            chapters(vec![at("local", "1"), at("local", "4"), at("space", "4")]).unwrap();
        let svg = super::svg(&chapters[0].panels[0]).unwrap().unwrap();
        for word in ["processes", "write, MiB/s", "local", "space", "#0072B2", "#D55E00"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert!(svg.starts_with("<svg width=\"100%\" viewBox"), "{svg}");
    }

    #[test]
    fn what_has_names_is_drawn_as_bars() {
        let at = |system, work| sample("beside", &[("system", system), ("work", work)], &[0.5]);
        let records = vec![at("one", "write"), at("one", "read"), at("two", "write")];
        let chapters = chapters([records, vec![at("three", "write")]].concat()).unwrap();
        let svg = super::svg(&chapters[0].panels[0]).unwrap().unwrap();
        let bars = |color: &str| svg.matches(&format!("fill=\"{color}\"")).count();
        assert_eq!(bars("#0072B2") + bars("#D55E00"), 4 + 2, "and a key of each: {svg}");
        assert!(["one", "two", "three", "write", "read"].iter().all(|word| svg.contains(word)));
    }
}
