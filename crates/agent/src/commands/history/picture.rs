//! A takeover as a picture (SVG): its steps as bars over time, and under them what a producer was
//! acknowledged, if that is given. Pure but for reading that file.

use std::fmt::{self, Write};
use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow};
use jiff::Timestamp;
use recovery::journal::EpochJournal;
use recovery::model::{Outcome, human};
use recovery::plan::Phase;

use super::spans::{Span, spans};

const WIDTH: f64 = 900.0;
/// Left of the bars are their names, right of them how long they took.
const LEFT: f64 = 150.0;
const RIGHT: f64 = 70.0;
const TOP: f64 = 56.0;
const ROW: f64 = 20.0;
/// The height of the producer's rate.
const PLOT: f64 = 90.0;

/// What is shown around the takeover, so that its begin and its end can be seen. Seconds.
const MARGIN: f64 = 1.0;

/// Acknowledged records a second, at moments in the order of time.
pub(super) type Rate = Vec<(Timestamp, f64)>;

/// Reads a producer's rate: a line for each moment, `SECONDS,RATE`, in seconds since 1970 and records a
/// second.
///
/// # Errors
/// The file cannot be read, or which line is not so.
pub(super) fn read_rate(path: &Path) -> anyhow::Result<Rate> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let mut rate = lines
        .map(|(index, line)| {
            sample(line).ok_or_else(|| {
                let line_number = index + 1;
                anyhow!(
                    "{}, line {line_number}: {line:?} is not `SECONDS,RATE`, in seconds since 1970 and records a second",
                    path.display()
                )
            })
        })
        .collect::<anyhow::Result<Rate>>()?;
    rate.sort_by_key(|(at, _)| *at);
    Ok(rate)
}

fn sample(line: &str) -> Option<(Timestamp, f64)> {
    let (seconds, rate) = line.split_once(',')?;
    let seconds: f64 = seconds.trim().parse().ok()?;
    let rate = rate.trim().parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0)?;
    let at = jiff::SignedDuration::try_from_secs_f64(seconds).ok()?;
    Some((Timestamp::UNIX_EPOCH.checked_add(at).ok()?, rate))
}

/// The picture of one takeover.
pub(super) struct Picture<'a> {
    journal: &'a EpochJournal,
    spans: Vec<Span>,
    rate: Rate,
    /// Where the picture ends, in seconds after the fault.
    end: f64,
}

impl<'a> Picture<'a> {
    pub(super) fn of(journal: &'a EpochJournal, rate: Rate) -> Self {
        let spans = spans(journal);
        let begun = journal.claim.plan.fault_at;
        let last = spans.iter().map(|span| seconds(begun, span.to)).fold(1.0, f64::max);
        Self { journal, spans, rate, end: last + MARGIN }
    }

    /// Where a moment is, from left to right.
    fn x(&self, at: Timestamp) -> f64 {
        self.x_of(seconds(self.journal.claim.plan.fault_at, at))
    }

    fn x_of(&self, seconds: f64) -> f64 {
        let share = (seconds + MARGIN) / (self.end + MARGIN);
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn below_bars(&self) -> f64 {
        TOP + ROW * f64::from(u32::try_from(self.spans.len()).unwrap_or(u32::MAX))
    }

    fn height(&self) -> f64 {
        let plot = if self.rate.is_empty() { 0.0 } else { PLOT + 24.0 };
        self.below_bars() + plot + 26.0
    }

    fn title(&self) -> String {
        let (journal, plan) = (self.journal, &self.journal.claim.plan);
        let end = match journal.outcome() {
            None => "not ended yet".to_owned(),
            Some(Outcome::Recovered { time_to_isr, .. }) => format!("time-to-ISR {}", human(*time_to_isr)),
            Some(outcome) => outcome.to_string(),
        };
        format!("Broker {}: {} → {}, epoch {}: {end}", plan.broker, plan.from, plan.to, journal.epoch)
    }

    /// Lines at whole numbers of seconds, about eight of them.
    fn grid(&self, svg: &mut String) -> fmt::Result {
        let steps = [0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 300.0, 600.0, 3600.0];
        let step = steps.into_iter().find(|step| self.end / step <= 9.0).unwrap_or(86_400.0);
        let bottom = self.height() - 22.0;
        let mut at = 0.0;
        while at <= self.end {
            let x = self.x_of(at);
            writeln!(svg, r#"<line class="grid" x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom:.1}"/>"#)?;
            writeln!(svg, r#"<text class="tick" x="{x:.1}" y="{:.1}">{at} s</text>"#, bottom + 15.0)?;
            at += step;
        }
        Ok(())
    }

    fn bars(&self, svg: &mut String) -> fmt::Result {
        let mut y = TOP;
        for span in &self.spans {
            let (from, to) = (self.x(span.from), self.x(span.to));
            // What took no time is still to be seen.
            let (width, middle) = ((to - from).max(1.5), y + ROW * 0.7);
            let class = match (span.failed, span.bounds) {
                (true, _) => "failed",
                (false, true) => "bar",
                (false, false) => "beside",
            };
            let (took, color) = (human(span.took()), color(span.phase));
            writeln!(
                svg,
                r#"<text class="name" x="{:.1}" y="{middle:.1}">{}</text>"#,
                LEFT - 8.0,
                escaped(&span.what)
            )?;
            writeln!(
                svg,
                r#"<rect class="{class}" x="{from:.1}" y="{:.1}" width="{width:.1}" height="{:.1}" fill="{color}"><title>{}, {took}</title></rect>"#,
                y + 3.0,
                ROW - 6.0,
                span.phase
            )?;
            writeln!(
                svg,
                r#"<text class="took" x="{:.1}" y="{middle:.1}">{took}</text>"#,
                from + width + 5.0
            )?;
            y += ROW;
        }
        Ok(())
    }

    /// The producer's rate, as an area: where it is flat at the bottom, nothing was acknowledged.
    fn plot(&self, svg: &mut String) -> fmt::Result {
        let begun = self.journal.claim.plan.fault_at;
        let shown = |at: &Timestamp| (-MARGIN..=self.end).contains(&seconds(begun, *at));
        let shown: Vec<_> = self.rate.iter().filter(|(at, _)| shown(at)).collect();
        let (Some(first), Some(last)) = (shown.first(), shown.last()) else { return Ok(()) };
        let most = shown.iter().map(|(_, rate)| *rate).fold(1.0, f64::max);
        let (top, bottom) = (self.below_bars() + 24.0, self.below_bars() + 24.0 + PLOT);
        write!(svg, r#"<path class="rate" d="M{:.1},{bottom:.1}"#, self.x(first.0))?;
        for (at, rate) in &shown {
            write!(svg, " L{:.1},{:.1}", self.x(*at), bottom - rate / most * PLOT)?;
        }
        writeln!(svg, r#" L{:.1},{bottom:.1} Z"/>"#, self.x(last.0))?;
        let name = LEFT - 8.0;
        writeln!(svg, r#"<text class="name" x="{name:.1}" y="{:.1}">acknowledged</text>"#, top + 10.0)?;
        writeln!(
            svg,
            r#"<text class="name" x="{name:.1}" y="{:.1}">≤ {most:.0} records/s</text>"#,
            top + 26.0
        )
    }

    fn draw(&self, svg: &mut String) -> fmt::Result {
        let height = self.height();
        writeln!(
            svg,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">"#
        )?;
        writeln!(svg, "<style>{STYLE}</style>")?;
        writeln!(svg, r#"<rect class="paper" width="100%" height="100%"/>"#)?;
        writeln!(svg, r#"<text class="title" x="12" y="24">{}</text>"#, escaped(&self.title()))?;
        let hint = "seconds since the broker was last seen well; pale: did not bound the whole";
        writeln!(svg, r#"<text class="hint" x="12" y="42">{hint}</text>"#)?;
        self.grid(svg)?;
        self.bars(svg)?;
        self.plot(svg)?;
        writeln!(svg, "</svg>")
    }
}

impl fmt::Display for Picture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut svg = String::new();
        self.draw(&mut svg)?;
        f.write_str(&svg)
    }
}

const STYLE: &str = "text{fill:#24292f}.paper{fill:#fff}.title{font-size:15px;font-weight:600}.hint,.tick,.took{fill:#57606a}\
                     .tick{text-anchor:middle;font-size:11px}.took{font-size:11px}.name{text-anchor:end}.grid{stroke:#d0d7de}\
                     .beside{opacity:.45}.failed{stroke:#cf222e;stroke-width:2}.rate{fill:#54aeff;opacity:.7}";

/// Colours that a colour-blind eye tells apart (Okabe and Ito).
fn color(phase: Phase) -> &'static str {
    match phase {
        Phase::Detect => "#999999",
        Phase::Claim => "#f0e442",
        Phase::Fence => "#d55e00",
        Phase::Prove => "#e69f00",
        Phase::Prepare => "#56b4e9",
        Phase::Verify => "#0072b2",
        Phase::Start => "#cc79a7",
        Phase::Rejoin => "#009e73",
        Phase::Settle => "#77aa99",
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests;
