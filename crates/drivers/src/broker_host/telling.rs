//! Of what Kafka printed last, the lines that tell why it ended.

/// Lines that are kept of its end.
pub(super) const LAST: usize = 12;

/// Lines before those that are kept because they tell of an error.
const TELLING: usize = 4;

/// The last lines of `text`, without the frames of stack traces, after those lines before them that tell of
/// an error: Kafka stops for a while after it said why, and a trace of Java is longer than anybody reads.
pub(super) fn telling(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty() && !is_frame(line)).collect();
    let (before, last) = lines.split_at(lines.len().saturating_sub(LAST));
    // What the last lines say as well, such as the same exception once more, is said once.
    let mut told: Vec<&str> = Vec::new();
    for line in before.iter().rev().filter(|line| tells(line)) {
        if told.len() < TELLING && !told.contains(line) && !last.contains(line) {
            told.push(line);
        }
    }
    told.into_iter().rev().chain(last.iter().copied()).collect::<Vec<_>>().join("\n")
}

/// Indented, `at kafka.log.LogManager.lock(...)` or `... 12 more`.
fn is_frame(line: &str) -> bool {
    let trimmed = line.trim_start();
    trimmed.len() < line.len()
        && (trimmed.starts_with("at ") || (trimmed.starts_with("... ") && trimmed.ends_with(" more")))
}

fn tells(line: &str) -> bool {
    ["ERROR", "FATAL", "Exception: ", "Error: ", "Caused by: "].iter().any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_names_the_lock_is_not_lost_in_a_stack_trace() {
        let frames = |count: usize| -> String {
            (0..count).map(|n| format!("\tat kafka.log.LogManager.f{n}(LogManager.scala:{n})\n")).collect()
        };
        let lock = "org.apache.kafka.common.KafkaException: Failed to acquire lock on file .lock in /mnt/a. A Kafka instance in \
                    another process or thread is using this directory.";
        let mut text: String =
            (0..50).map(|n| format!("[2026-11-23] INFO start {n} (kafka.Kafka)\n")).collect();
        text += &format!(
            "[2026-11-23] ERROR [BrokerServer id=1] Fatal error during broker startup.\n{lock}\n{}",
            frames(40)
        );
        text += "\t... 12 more\n";
        text += &(0..30).map(|n| format!("[2026-11-23] INFO stop {n} (kafka.Kafka)\n")).collect::<String>();
        let told = telling(&text);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 2 + LAST, "{told}");
        assert_eq!(lines[1], lock);
        assert!(
            lines[0].contains("Fatal error") && lines.last().is_some_and(|line| line.contains("stop 29"))
        );
        assert!(!told.contains("\tat ") && !told.contains("more"), "{told}");
    }

    #[test]
    fn a_short_end_is_told_whole() {
        assert_eq!(telling("one\n\ntwo\n"), "one\ntwo");
        assert_eq!(telling(""), "");
        // Words that only look like a frame.
        assert_eq!(telling("at the end\n... and 3 more"), "at the end\n... and 3 more");
    }
}
