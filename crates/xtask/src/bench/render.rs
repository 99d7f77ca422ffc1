//! Measured figures as a table and as a picture. Whatever has a `table` can be shown.

mod growth;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The picture's width, in pixels.
const WIDTH: f64 = 900.0;
/// Room for the names.
const LEFT: f64 = 350.0;
/// Room for the figures.
const RIGHT: f64 = 190.0;
/// Room for the title.
const TOP: f64 = 40.0;
/// The height of a row.
const ROW: f64 = 30.0;

/// The page of all figures.
const PAGE: &str = "figures.md";

/// One line of a table.
struct Row {
    what: String,
    unit: String,
    median: f64,
    min: f64,
    max: f64,
    runs: u64,
    /// What it should be.
    aim: Option<Aim>,
}

#[derive(Clone, Copy)]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

impl Aim {
    fn value(self) -> f64 {
        match self {
            Self::AtMost(value) | Self::AtLeast(value) => value,
        }
    }
}

/// Draws every `NAME.json` of `dir` that has a table as `NAME.svg`, and writes all of them into [`PAGE`].
///
/// # Errors
/// A file cannot be read, is not what a benchmark writes, or cannot be written.
pub(super) fn all(dir: &Path) -> Result<()> {
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".json").map(str::to_owned));
    }
    names.sort();
    let mut page = String::from(
        "# Figures\n\nMade by `cargo xtask bench suite`, not by hand; what they mean is in [performance.md](../performance.md). \
         Each is a median, with its range where there is more than one run.\n",
    );
    for name in names {
        let path = dir.join(format!("{name}.json"));
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let figures: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let Some(rows) = rows(&figures).with_context(|| path.display().to_string())? else { continue };
        write(&dir.join(format!("{name}.svg")), &picture(&name, &rows)?)?;
        let growth = growth::picture(&figures).with_context(|| path.display().to_string())?;
        if let Some(picture) = &growth {
            write(&dir.join(format!("{name}-lines.svg")), picture)?;
        }
        section(&mut page, &name, &figures, &rows, growth.is_some())?;
    }
    write(&dir.join(PAGE), &page)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The table, if there is one.
fn rows(figures: &Value) -> Result<Option<Vec<Row>>> {
    let Some(table) = figures["table"].as_array() else { return Ok(None) };
    let row = |row: &Value| {
        let number = |key: &str| row[key].as_f64().with_context(|| format!("no {key} in {row}"));
        let text =
            |key: &str| row[key].as_str().map(str::to_owned).with_context(|| format!("no {key} in {row}"));
        let (what, unit) = (text("what")?, text("unit")?);
        let (median, min, max) = (number("median")?, number("min")?, number("max")?);
        ensure!(0.0 <= min && min <= median && median <= max, "a range that is none in {row}");
        let runs = row["runs"].as_u64().with_context(|| format!("no runs in {row}"))?;
        let at_least = || row["aim_at_least"].as_f64().map(Aim::AtLeast);
        let aim = row["aim"].as_f64().map(Aim::AtMost).or_else(at_least);
        Ok(Row { what, unit, median, min, max, runs, aim })
    };
    table.iter().map(row).collect::<Result<_>>().map(Some)
}

impl Row {
    fn figure(&self) -> String {
        let median = format!("{} {}", short(self.median), self.unit);
        if self.runs == 1 { median } else { format!("{median} ({} to {})", short(self.min), short(self.max)) }
    }

    fn reached(&self) -> Option<bool> {
        self.aim.map(|aim| match aim {
            Aim::AtMost(most) => self.median <= most,
            Aim::AtLeast(least) => self.median >= least,
        })
    }
}

/// Three digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn section(page: &mut String, name: &str, figures: &Value, rows: &[Row], lines: bool) -> Result<()> {
    writeln!(page, "\n## {name}\n\n![{name}]({name}.svg)")?;
    if lines {
        writeln!(page, "\n![{name}, by size]({name}-lines.svg)")?;
    }
    writeln!(page, "\n| | median (range) | runs | aim | |\n|---|---|---|---|---|")?;
    for row in rows {
        let aim = row.aim.map(|aim| match aim {
            Aim::AtMost(most) => format!("≤ {} {}", short(most), row.unit),
            Aim::AtLeast(least) => format!("≥ {} {}", short(least), row.unit),
        });
        let aim = aim.unwrap_or_default();
        let reached = row.reached().map_or("", |reached| if reached { "reached" } else { "**missed**" });
        writeln!(page, "| {} | {} | {} | {aim} | {reached} |", row.what, row.figure(), row.runs)?;
    }
    for left_out in figures["left_out"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        writeln!(page, "\nNot measured: {left_out}.")?;
    }
    let conditions =
        figures["conditions"].as_object().into_iter().flatten().map(|(key, value)| match value {
            Value::String(text) => format!("{key} {text}"),
            Value::Number(number) => format!("{key} {}", short(number.as_f64().unwrap_or_default())),
            other => format!("{key} {other}"),
        });
    writeln!(page, "\nConditions: {}.", conditions.collect::<Vec<_>>().join("; "))?;
    Ok(())
}

/// Bars of the medians with their ranges, each unit by a scale of its own; what should not be passed is a
/// dashed line.
fn picture(name: &str, rows: &[Row]) -> Result<String> {
    let height = TOP + ROW * f64::from(u32::try_from(rows.len())?) + 12.0;
    let mut svg = String::new();
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">"#
    )?;
    writeln!(
        svg,
        "<style>text{{fill:#24292f}}.paper{{fill:#fff}}.name{{text-anchor:end}}.bar{{fill:#56b4e9}}.missed{{fill:#e69f00}}\
         .range{{stroke:#24292f;stroke-width:1.5}}.aim{{stroke:#d55e00;stroke-dasharray:4 3}}.title{{font-size:15px;font-weight:600}}</style>"
    )?;
    writeln!(svg, r#"<rect class="paper" width="100%" height="100%"/>"#)?;
    writeln!(svg, r#"<text class="title" x="12" y="24">{}</text>"#, escaped(name))?;
    for (index, row) in (0_u32..).zip(rows) {
        let scale = rows.iter().filter(|other| other.unit == row.unit);
        let scale = scale
            .map(|other| other.max.max(other.aim.map_or(0.0, Aim::value)))
            .fold(f64::MIN_POSITIVE, f64::max);
        let x = |value: f64| LEFT + value / scale * (WIDTH - LEFT - RIGHT);
        let (y, class) =
            (TOP + ROW * f64::from(index), if row.reached() == Some(false) { "missed" } else { "bar" });
        let (top, middle, bottom) = (y + 6.0, y + ROW / 2.0, y + ROW - 6.0);
        writeln!(
            svg,
            r#"<text class="name" x="{:.1}" y="{:.1}">{}</text>"#,
            LEFT - 8.0,
            middle + 4.0,
            escaped(&row.what)
        )?;
        writeln!(
            svg,
            r#"<rect class="{class}" x="{LEFT}" y="{top:.1}" width="{:.1}" height="{:.1}"/>"#,
            (x(row.median) - LEFT).max(1.0),
            bottom - top
        )?;
        if row.runs > 1 {
            let (from, to) = (x(row.min), x(row.max));
            writeln!(
                svg,
                r#"<line class="range" x1="{from:.1}" y1="{middle:.1}" x2="{to:.1}" y2="{middle:.1}"/>"#
            )?;
        }
        if let Some(aim) = row.aim.map(|aim| x(aim.value())) {
            writeln!(
                svg,
                r#"<line class="aim" x1="{aim:.1}" y1="{:.1}" x2="{aim:.1}" y2="{:.1}"/>"#,
                top - 3.0,
                bottom + 3.0
            )?;
        }
        let after =
            [Some(row.max), row.aim.map(Aim::value)].into_iter().flatten().map(x).fold(LEFT, f64::max);
        writeln!(
            svg,
            r#"<text x="{:.1}" y="{:.1}">{}</text>"#,
            after + 8.0,
            middle + 4.0,
            escaped(&row.figure())
        )?;
    }
    writeln!(svg, "</svg>")?;
    Ok(svg)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_measured_is_shown_with_range_conditions_and_aim() {
        let dir = tempfile::tempdir().unwrap();
        let row = |what: &str, median: f64, aim: f64| json!({ "what": what, "unit": "s", "median": median, "min": 1.0, "max": 9.5, "runs": 3, "aim": aim });
        let figures = json!({
            "conditions": { "cpus": 2, "kernel": "6.1" },
            "table": [row("time <1>", 5.25, 6.0), row("stall", 4.5, 4.0)],
        });
        fs::write(dir.path().join("takeover.json"), figures.to_string()).unwrap();
        fs::write(dir.path().join("other.json"), r#"{"shape": "another"}"#).unwrap();
        all(dir.path()).unwrap();
        let page = fs::read_to_string(dir.path().join(PAGE)).unwrap();
        assert!(page.contains("| time <1> | 5.25 s (1.00 to 9.50) | 3 | ≤ 6.00 s | reached |"), "{page}");
        assert!(page.contains("| stall | 4.50 s (1.00 to 9.50) | 3 | ≤ 4.00 s | **missed** |"), "{page}");
        assert!(page.contains("cpus 2.00; kernel 6.1") && !page.contains("other"), "{page}");
        let svg = fs::read_to_string(dir.path().join("takeover.svg")).unwrap();
        assert!(svg.contains("time &lt;1&gt;") && svg.contains(r#"class="missed""#), "{svg}");
        assert!(!dir.path().join("other.svg").exists());
    }

    #[test]
    fn what_should_be_at_least_so_much_is_judged_so_and_what_was_left_out_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let row = |what: &str, ratio: f64| json!({ "what": what, "unit": "×", "median": ratio, "min": ratio, "max": ratio, "runs": 1, "aim_at_least": 5.0 });
        let figures =
            json!({ "table": [row("more", 6.0), row("less", 4.0)], "left_out": ["the rebuild of 40 GB"] });
        fs::write(dir.path().join("growth.json"), figures.to_string()).unwrap();
        all(dir.path()).unwrap();
        let page = fs::read_to_string(dir.path().join(PAGE)).unwrap();
        assert!(page.contains("| more | 6.00 × | 1 | ≥ 5.00 × | reached |"), "{page}");
        assert!(page.contains("| less | 4.00 × | 1 | ≥ 5.00 × | **missed** |"), "{page}");
        assert!(page.contains("Not measured: the rebuild of 40 GB."), "{page}");
        assert!(!dir.path().join("growth-lines.svg").exists());
    }

    #[test]
    fn a_table_that_was_not_measured_is_refused() {
        let figures = json!({ "table": [{ "what": "a", "unit": "s", "median": 1.0, "min": 2.0, "max": 3.0, "runs": 1 }] });
        assert!(rows(&figures).is_err());
        assert!(rows(&json!({ "table": [{ "what": "a" }] })).is_err());
        assert!(rows(&json!({})).unwrap().is_none());
    }
}
