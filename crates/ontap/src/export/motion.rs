//! Whether ONTAP's list of connected clients is written anew while one looks at it. Where it is not, which is
//! what the vendor's own model says (every 1 to 8 hours), silence in it is none.

use std::collections::BTreeMap;
use std::time::Duration;

use ontap_client::NfsClient;
use tokio::time::Instant;

/// Idle times are whole seconds.
const ROUNDING: Duration = Duration::from_secs(2);

/// Node, client, volume.
type Row = (Option<String>, Option<String>, Option<String>);

/// What was last seen of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    idle: Option<Duration>,
    requests: Option<u64>,
    at: Instant,
}

/// The rows from look to look.
#[derive(Debug, Clone, Default)]
pub(super) struct Motion {
    rows: BTreeMap<Row, Seen>,
    /// The nodes of rows that were seen to move, and since when they must have been written at the latest.
    moved: BTreeMap<String, Instant>,
}

fn row(entry: &NfsClient) -> Row {
    (entry.node.name.clone(), entry.client_ip.clone(), entry.volume.name.clone())
}

impl Motion {
    /// Takes a look in. A row has moved when its client was counted to do something since the look before.
    pub(super) fn see(&mut self, entries: &[NfsClient], at: Instant) {
        for entry in entries {
            let requests =
                entry.local_requests.zip(entry.remote_requests).map(|(local, remote)| local + remote);
            let now = Seen { idle: entry.idle, requests, at };
            if let Some(before) = self.rows.insert(row(entry), now.clone())
                && moved(&before, &now)
            {
                self.moved.insert(node(entry), before.at);
            }
        }
    }

    /// Those of the nodes whose rows were not seen to be written since then.
    pub(super) fn still(&self, nodes: impl IntoIterator<Item = String>, since: Instant) -> Vec<String> {
        let moved = |node: &String| self.moved.get(node).is_some_and(|at| *at >= since);
        nodes.into_iter().filter(|node| !moved(node)).collect()
    }
}

/// The node of a row.
pub(super) fn node(entry: &NfsClient) -> String {
    entry.node.name.clone().unwrap_or_else(|| "a node without a name".to_owned())
}

fn moved(before: &Seen, now: &Seen) -> bool {
    let counted = before.requests.zip(now.requests).is_some_and(|(before, now)| now > before);
    // A list that stands still ages, or shows the same age again.
    let younger = before.idle.zip(now.idle).is_some_and(|(before_idle, idle)| {
        let would_be = before_idle + now.at.saturating_duration_since(before.at);
        idle < before_idle || (idle > before_idle && idle + ROUNDING < would_be)
    });
    counted || younger
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(requests: u64) -> Vec<NfsClient> {
        let row = serde_json::json!({
            "node": { "name": "node-01" }, "client_ip": "10.0.0.77", "volume": { "name": "v" },
            "idle_duration": "PT0S", "local_request_count": requests, "remote_request_count": 0,
        });
        vec![serde_json::from_value(row).unwrap()]
    }

    /// The list may have been written right after the look before it was seen to be.
    #[tokio::test]
    async fn what_moved_once_has_been_written_no_later_than_that() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let still = |motion: &Motion, since| motion.still(["node-01".to_owned()], at(since));
        let mut motion = Motion::default();
        motion.see(&rows(1), at(0));
        assert_eq!(still(&motion, 0), ["node-01"]);
        motion.see(&rows(2), at(4));
        assert!(still(&motion, 0).is_empty());
        assert_eq!(still(&motion, 1), ["node-01"], "it may have been written at 0");
        motion.see(&rows(2), at(8));
        assert_eq!(still(&motion, 4), ["node-01"]);
        motion.see(&rows(3), at(12));
        assert!(still(&motion, 8).is_empty() && !still(&motion, 9).is_empty());
    }
}
