//! Ends the Kafka of a broker on a host that is proven unable to write to its log dirs, whoever started it.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use super::common::Common;
use super::problem::Problem;
use super::proc::{self, ProcessId};
use super::verify;
use recovery::model::BrokerId;
use recovery::ports::Note;

/// How often the processes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Sends SIGKILL to the very processes that are seen, until none is left. Named by number and start, so that
/// no later process is meant.
pub(super) fn end_fenced(common: &Common, broker: BrokerId, limit: Duration) -> Result<Note, Problem> {
    let begun = Instant::now();
    let mut ended: Vec<String> = Vec::new();
    loop {
        let found = seen(common, broker)?;
        if found.is_empty() {
            break;
        }
        for (id, text) in &found {
            if proc::kill(*id)? && !ended.contains(text) {
                ended.push(text.clone());
            }
        }
        if begun.elapsed() >= limit {
            let left: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
            let what =
                format!("this was sent SIGKILL and still runs: {}; its storage may hang", left.join("; "));
            return Err(Problem::Unconfirmed { what, limit });
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(Note::new(if ended.is_empty() {
        format!("no Kafka of broker {broker} runs on this host")
    } else {
        format!("killed: {}", ended.join("; "))
    }))
}

/// Whoever runs the broker: a Kafka that works on its log dirs, and whatever an agent started as this broker.
fn seen(common: &Common, broker: BrokerId) -> Result<Vec<(ProcessId, String)>, Problem> {
    let log_dirs = &common.broker(broker)?.log_dirs;
    // By the links in `/proc` first: a storage that is denied, or dead, may not answer for its own files.
    let mut holders = proc::holders(&BTreeSet::new(), log_dirs)?;
    if holders.is_empty() {
        holders = verify::holders(log_dirs)?;
    }
    let mut found: Vec<(ProcessId, String)> = holders
        .into_iter()
        .filter_map(|holder| Some((holder.id?, holder.text)))
        .filter(|(id, _)| proc::looks_like_kafka(id.pid, true))
        .collect();
    for marked in common.marker(broker).find()? {
        if !found.iter().any(|(id, _)| *id == marked.id) {
            found.push((marked.id, format!("{} (started for epoch {})", marked.id.pid, marked.epoch)));
        }
    }
    Ok(found)
}
