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
pub use metrics::Metrics;

use crate::cli::LogFormat;

/// Our own crates that log, by the names that their lines have.
const OURS: [&str; 5] = ["understudy", "recovery", "drivers", "kafka", "ontap"];

/// Starts writing log lines to standard error.
///
/// Lines of the libraries underneath (librdkafka above all) appear from `warn` on, whatever `level` is:
/// they repeat themselves while a broker is down.
pub fn init(format: LogFormat, level: LevelFilter) {
    let libraries = level.min(LevelFilter::WARN);
    let ours: String = OURS.iter().map(|name| format!(",{name}={level}")).collect();
    let filter = EnvFilter::new(format!("{libraries}{ours}"))
        .add_directive(quiet("librdkafka"))
        .add_directive(quiet("rdkafka"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    // Only the first call in a process counts: tests start several agents.
    let _ = match format {
        LogFormat::Human => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
    };
}

/// librdkafka reports every failed reconnect as an error; the signals say the same once.
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
