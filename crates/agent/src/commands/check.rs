//! `understudy check`: would a takeover by this host work? Looks at everything one needs; changes nothing.

use std::fmt;
use std::sync::Arc;

use recovery::model::Verdict;
use serde::Serialize;

use crate::checks::{Found, Item, go_through};
use crate::cli::Global;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::print;
use crate::telemetry::LogSink;
use crate::world::World;

#[derive(Debug, Serialize)]
struct Report {
    items: Vec<Found>,
}

pub(super) async fn run(global: &Global, config: &Config) -> anyhow::Result<Exit> {
    let world = Arc::new(World::build(config, Arc::new(LogSink::default()))?);
    let report = Report { items: go_through(&world, config).await };
    print(&report, global.output)?;
    let failed = report.count(Verdict::Fail) > 0;
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

impl Report {
    fn count(&self, verdict: Verdict) -> usize {
        self.items.iter().filter(|found| found.item.verdict == verdict).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Found { item: Item { item, verdict, says, remedy }, .. } in &self.items {
            let word = match verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            writeln!(f, "{word:<4}  {item}: {says}")?;
            if !remedy.is_empty() {
                writeln!(f, "      do: {remedy}")?;
            }
        }
        let [ok, warned, failed] =
            [Verdict::Ok, Verdict::Warn, Verdict::Fail].map(|verdict| self.count(verdict));
        write!(f, "{ok} ok, {warned} warnings, {failed} failed")
    }
}
