//! What leaves the agent: log lines, metrics, and the stream of events they are made of.

mod log;
mod metrics;

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use recovery::event::Event;
use recovery::ports::EventSink;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

pub use log::LogSink;
pub use metrics::{Described, Metrics};

use crate::cli::LogFormat;

/// Our own crates that log, by the names that their lines have. The client of ONTAP is a library like others.
const OURS: [&str; 4] = ["understudy", "recovery", "drivers", "kubernetes"];

/// Starts writing log lines to standard error.
///
/// Lines of the libraries underneath (librdkafka above all) appear from `warn` on, whatever `level` is:
/// they repeat themselves while a broker is down.
pub fn init(format: LogFormat, level: LevelFilter) {
    let libraries = level.min(LevelFilter::WARN);
    let ours: String = OURS.iter().map(|name| format!(",{name}={level}")).collect();
    let filter = EnvFilter::new(format!("{libraries}{ours}"))
        .add_directive(quiet("librdkafka"))
        .add_directive(quiet("rdkafka"))
        .add_directive(quiet("kube_client"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    // Only the first call in a process counts: tests start several agents.
    let _ = match format {
        LogFormat::Human => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
    };
}

/// librdkafka reports every failed reconnect as an error, and kube every request that fails; the signals say the same
/// once.
fn quiet(target: &str) -> tracing_subscriber::filter::Directive {
    let quiet = format!("{target}=off").parse();
    quiet.unwrap_or_else(|_| LevelFilter::OFF.into())
}

/// Hands every event to several sinks, in order.
pub struct Fanout(pub Vec<Arc<dyn EventSink>>);

impl EventSink for Fanout {
    fn emit(&self, event: &Event) {
        self.0.iter().for_each(|sink| sink.emit(event));
    }

    fn ticked(&self, took: Duration) {
        self.0.iter().for_each(|sink| sink.ticked(took));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Else its lines are nowhere, whatever the level is.
    #[test]
    fn every_crate_of_ours_that_logs_is_known_by_its_name() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut seen = 0;
        for folder in fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
            let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
            let name = manifest.split("[lib]\nname = \"").nth(1).and_then(|rest| rest.split('"').next());
            if manifest.lines().any(|line| line == "tracing.workspace = true")
                && !folder.ends_with("ontap-client")
            {
                assert!(name.is_some_and(|name| OURS.contains(&name)), "{} is not in OURS", folder.display());
                seen += 1;
            }
        }
        assert_eq!(seen, OURS.len());
    }
}
