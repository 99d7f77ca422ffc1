//! How a recovery grows with the data: measured points, the lines through them, and what others have told, by
//! logarithmic scales.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 50.0;
/// What is shown at least: from 0.5 GB on, and from 1 s on.
const LEAST: (f64, f64) = (0.5, 1.0);
/// How finely a line is drawn.
const STEPS: u32 = 60;

/// One way to recover a broker.
struct Way {
    name: &'static str,
    class: &'static str,
    /// GB, and median, least and most of the seconds.
    points: Vec<(f64, [f64; 3])>,
    /// Seconds, and seconds for each GB.
    line: Option<(f64, f64)>,
    /// What others have told: GB and seconds.
    told: Vec<(f64, f64)>,
}

/// The picture, of figures that have points.
///
/// # Errors
/// They have points that are none.
pub(super) fn picture(figures: &Value) -> Result<Option<String>> {
    if !figures["points"].is_array() {
        return Ok(None);
    }
    let ways = [
        way(figures, ("takeover, shared log dirs", "shared"), "takeover_s", ("takeover", "shared_s"))?,
        way(figures, ("rebuild on an empty disk", "rebuild"), "rebuild_s", ("rebuild", "rebuild_s"))?,
    ];
    let all = || {
        let measured =
            |way: &Way| way.points.iter().map(|(gb, [_, _, most])| (*gb, *most)).collect::<Vec<_>>();
        ways.iter().flat_map(move |way| measured(way).into_iter().chain(way.told.iter().copied()))
    };
    let most = all().fold(LEAST, |most, point| (most.0.max(point.0), most.1.max(point.1)));
    let scale = Scale { most: (most.0 * 1.6, most.1 * 1.6) };
    let mut svg = frame(&scale)?;
    for (place, way) in (0_u32..).zip(&ways) {
        draw(&mut svg, &scale, way)?;
        legend(&mut svg, way, TOP - 30.0 + 18.0 * f64::from(place))?;
    }
    writeln!(svg, "</svg>")?;
    Ok(Some(svg))
}

fn way(
    figures: &Value,
    (name, class): (&'static str, &'static str),
    measured: &str,
    (line, told): (&str, &str),
) -> Result<Way> {
    let number =
        |value: &Value, key: &str| value[key].as_f64().with_context(|| format!("no {key} in {value}"));
    let mut points = Vec::new();
    for point in figures["points"].as_array().into_iter().flatten() {
        if point[measured].is_null() {
            continue;
        }
        let seconds = &point[measured];
        let range = [number(seconds, "median")?, number(seconds, "min")?, number(seconds, "max")?];
        let gb = number(point, "gb")?;
        ensure!(gb > 0.0 && range.iter().all(|seconds| *seconds > 0.0), "a point that is none: {point}");
        points.push((gb, range));
    }
    let line = &figures["lines"][line];
    let line = if line.is_null() { None } else { Some((number(line, "from")?, number(line, "slope")?)) };
    let of = |entry: &Value| Ok((number(entry, "gb")?, number(entry, told)?));
    let told = figures["told"].as_array().into_iter().flatten().map(of).collect::<Result<_>>()?;
    Ok(Way { name, class, points, line, told })
}

/// Logarithmic, both ways.
struct Scale {
    most: (f64, f64),
}

impl Scale {
    fn x(&self, gb: f64) -> f64 {
        LEFT + (gb / LEAST.0).ln() / (self.most.0 / LEAST.0).ln() * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, seconds: f64) -> f64 {
        let share = (seconds / LEAST.1).ln() / (self.most.1 / LEAST.1).ln();
        HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }
}

/// Paper, title, axes.
fn frame(scale: &Scale) -> Result<String> {
    let mut svg = String::new();
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">"#
    )?;
    writeln!(
        svg,
        "<style>text{{fill:#24292f}}.paper{{fill:#fff}}.title{{font-size:15px;font-weight:600}}.grid{{stroke:#d0d7de;stroke-width:1}}\
         .shared{{stroke:#0072b2;fill:#0072b2}}.rebuild{{stroke:#d55e00;fill:#d55e00}}.fit{{fill:none;stroke-width:1.5}}\
         .beyond{{stroke-dasharray:5 4}}.told{{fill:#fff;stroke-width:2}}.range{{stroke-width:2}}.x{{text-anchor:middle}}.y{{text-anchor:end}}</style>"
    )?;
    writeln!(svg, r#"<rect class="paper" width="100%" height="100%"/>"#)?;
    writeln!(svg, r#"<text class="title" x="12" y="22">time-to-ISR by data on the broker</text>"#)?;
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for seconds in [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0_f64] {
        if seconds <= scale.most.1 {
            let (y, below) = (scale.y(seconds), scale.y(seconds) + 4.0);
            writeln!(svg, r#"<line class="grid" x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}"/>"#)?;
            writeln!(svg, r#"<text class="y" x="{:.1}" y="{below:.1}">{seconds} s</text>"#, LEFT - 8.0)?;
        }
    }
    for gb in [1.0, 5.0, 10.0, 20.0, 40.0, 110.0, 1000.0_f64] {
        if gb <= scale.most.0 {
            let x = scale.x(gb);
            writeln!(svg, r#"<line class="grid" x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom}"/>"#)?;
            writeln!(svg, r#"<text class="x" x="{x:.1}" y="{:.1}">{gb}</text>"#, bottom + 18.0)?;
        }
    }
    let (middle, under) = (f64::midpoint(LEFT, right), bottom + 38.0);
    writeln!(svg, r#"<text class="x" x="{middle}" y="{under}">GB on the broker</text>"#)?;
    Ok(svg)
}

fn draw(svg: &mut String, scale: &Scale, way: &Way) -> Result<()> {
    let class = way.class;
    let last = way.points.iter().map(|(gb, _)| *gb).fold(LEAST.0, f64::max);
    if let Some((from, slope)) = way.line {
        // What was measured is drawn through, what would follow from it dashed.
        for (begin, end, beyond) in [(LEAST.0, last, ""), (last, scale.most.0, " beyond")] {
            let at = |step: u32| begin * (end / begin).powf(f64::from(step) / f64::from(STEPS));
            let spots = (0..=STEPS).map(at).map(|gb| (gb, from + slope * gb));
            let spots = spots.filter(|(_, s)| (LEAST.1..=scale.most.1).contains(s));
            let spots = spots.map(|(gb, s)| format!("{:.1},{:.1}", scale.x(gb), scale.y(s)));
            let spots = spots.collect::<Vec<_>>().join(" ");
            writeln!(svg, r#"<polyline class="{class} fit{beyond}" points="{spots}" style="fill:none"/>"#)?;
        }
    }
    for (gb, [median, least, most]) in &way.points {
        let (x, y) = (scale.x(*gb), scale.y(*median));
        let (low, high) = (scale.y(*least), scale.y(*most));
        writeln!(
            svg,
            r#"<line class="{class} range" x1="{x:.1}" y1="{low:.1}" x2="{x:.1}" y2="{high:.1}"/>"#
        )?;
        writeln!(svg, r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="4.5"/>"#)?;
    }
    for (gb, seconds) in &way.told {
        let (x, y) = (scale.x(*gb) - 5.0, scale.y(*seconds) - 5.0);
        writeln!(
            svg,
            r#"<rect class="{class} told" x="{x:.1}" y="{y:.1}" width="10" height="10" style="fill:#fff"/>"#
        )?;
    }
    Ok(())
}

fn legend(svg: &mut String, way: &Way, y: f64) -> Result<()> {
    let line = way.line.map_or_else(
        || "too few sizes for a line".to_owned(),
        |(from, slope)| {
            format!("{from:.1} s {} {:.3} s for each GB", if slope < 0.0 { "−" } else { "+" }, slope.abs())
        },
    );
    let told = if way.told.is_empty() { "" } else { "; squares: NetApp TR-4947" };
    let (class, name) = (way.class, way.name);
    writeln!(svg, r#"<circle class="{class}" cx="{:.1}" cy="{:.1}" r="4.5"/>"#, LEFT + 6.0, y - 4.0)?;
    writeln!(svg, r#"<text x="{:.1}" y="{y:.1}">{name}: {line}{told}</text>"#, LEFT + 18.0)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn figure(median: f64) -> Value {
        json!({ "median": median, "min": median, "max": median * 1.1, "runs": 2 })
    }

    #[test]
    fn what_was_measured_and_what_was_told_are_shown_apart() {
        let figures = json!({
            "points": [
                { "gb": 1.0, "takeover_s": figure(5.0), "rebuild_s": figure(15.0) },
                { "gb": 10.0, "takeover_s": figure(5.1), "rebuild_s": figure(60.0) },
                { "gb": 40.0, "takeover_s": figure(5.2), "rebuild_s": null },
            ],
            "lines": { "takeover": { "from": 5.0, "slope": 0.005 }, "rebuild": { "from": 10.0, "slope": 5.0 } },
            "told": [{ "gb": 1000.0, "shared_s": 300.0, "rebuild_s": 2880.0 }],
        });
        let svg = picture(&figures).unwrap().unwrap();
        let measured = |class: &str| svg.matches(&format!(r#"<line class="{class} range""#)).count();
        assert_eq!((measured("shared"), measured("rebuild")), (3, 2), "{svg}");
        assert_eq!(svg.matches(" told\"").count(), 2, "{svg}");
        assert!(svg.contains("10.0 s + 5.000 s for each GB; squares: NetApp TR-4947"), "{svg}");
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn one_size_has_no_line_and_what_is_no_point_is_refused() {
        let one = |seconds: f64| json!({ "points": [{ "gb": 1.0, "takeover_s": figure(seconds), "rebuild_s": null }], "lines": { "takeover": null, "rebuild": null } });
        assert!(picture(&one(5.0)).unwrap().unwrap().contains("too few sizes for a line"));
        assert!(picture(&one(-1.0)).is_err());
        assert!(picture(&json!({ "points": [{ "gb": 1.0, "takeover_s": {} }] })).is_err());
        assert_eq!(picture(&json!({ "table": [] })).unwrap(), None);
    }
}
