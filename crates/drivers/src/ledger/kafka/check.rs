//! Whether the topic is set up so that it can be relied on. Pure.

use std::collections::BTreeMap;

/// A topic as the cluster describes it.
#[derive(Debug, Clone)]
pub(super) struct TopicSeen {
    pub(super) partitions: usize,
    /// Of the partition with the fewest.
    pub(super) replicas: usize,
    /// Its settings, those that the brokers' defaults give it included.
    pub(super) settings: BTreeMap<String, String>,
}

/// The smallest `max.message.bytes` that is enough: Kafka's default is just above it.
const RECORD_BYTES: i64 = 1_000_000;

impl TopicSeen {
    /// Everything that is wrong, each with what to do.
    pub(super) fn problems(&self) -> Vec<String> {
        let setting = |name: &str| self.settings.get(name).map_or("", String::as_str);
        let number = |name: &str| setting(name).parse::<i64>().unwrap_or_default();
        let mut problems = Vec::new();
        if self.partitions != 1 {
            problems.push(format!(
                "it has {} partitions: only one gives all hosts the same order, make the topic anew",
                self.partitions
            ));
        }
        if self.replicas < 3 {
            problems.push(format!(
                "it has {} replicas: with fewer than 3 it does not outlive a broker, add some with \
                 kafka-reassign-partitions.sh",
                self.replicas
            ));
        }
        let min_isr = number("min.insync.replicas");
        if min_isr < 2 {
            problems.push(format!(
                "min.insync.replicas is {min_isr}: a claim that only one broker has may be lost, set it to 2"
            ));
        } else if self.replicas >= 3 && min_isr >= i64::try_from(self.replicas).unwrap_or(i64::MAX) {
            problems.push(format!(
                "min.insync.replicas is {min_isr} of {} replicas: no claim could be written while the dead broker is \
                 missing, set it to 2",
                self.replicas
            ));
        }
        if setting("cleanup.policy") != "compact" {
            let policy = setting("cleanup.policy");
            problems
                .push(format!("cleanup.policy is `{policy}`: owners would be forgotten, set it to compact"));
        }
        if setting("unclean.leader.election.enable") != "false" {
            problems.push(
                "unclean.leader.election.enable is not false: claims could be lost, set it to false"
                    .to_owned(),
            );
        }
        let bytes = number("max.message.bytes");
        if bytes < RECORD_BYTES {
            problems.push(format!(
                "max.message.bytes is {bytes}: a plan may not fit, set it to {RECORD_BYTES} or more"
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> TopicSeen {
        let settings = [
            ("min.insync.replicas", "2"),
            ("cleanup.policy", "compact"),
            ("unclean.leader.election.enable", "false"),
            ("max.message.bytes", "1048588"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        TopicSeen { partitions: 1, replicas: 3, settings: settings.into() }
    }

    #[test]
    fn a_topic_made_as_documented_is_fine() {
        assert_eq!(good().problems(), [""; 0]);
    }

    #[test]
    fn every_setting_that_could_lose_a_claim_is_refused() {
        let with = |name: &str, value: &str| {
            let mut seen = good();
            seen.settings.insert(name.to_owned(), value.to_owned());
            seen
        };
        let bad = [
            (TopicSeen { partitions: 6, ..good() }, "6 partitions"),
            (TopicSeen { replicas: 2, ..good() }, "2 replicas"),
            (with("min.insync.replicas", "1"), "only one broker has"),
            (with("min.insync.replicas", "3"), "while the dead broker is missing"),
            (with("cleanup.policy", "compact,delete"), "`compact,delete`"),
            (with("cleanup.policy", "delete"), "set it to compact"),
            (with("unclean.leader.election.enable", "true"), "unclean.leader.election.enable"),
            (with("max.message.bytes", "1000"), "max.message.bytes is 1000"),
        ];
        for (seen, why) in bad {
            let problems = seen.problems();
            assert!(problems.len() == 1 && problems[0].contains(why), "{why}: {problems:?}");
        }
        let all = TopicSeen { partitions: 0, replicas: 0, settings: BTreeMap::new() }.problems();
        assert_eq!(all.len(), 6, "all at once: {all:?}");
    }
}
