//! What was run, how it went and how long it took.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::suite::{self, Ran};

/// Tests of the table of the slowest.
const SLOWEST: usize = 25;

/// How many tests passed and failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests that ran and passed.
    pub(crate) passed: u64,
    /// Tests that ran and did not: failures, time-outs, tests that could not be started.
    pub(crate) failed: u64,
}

enum Outcome {
    Passed(Duration),
    Failed(Duration, String),
    Skipped(String),
}

/// The parts of a run, in order.
#[derive(Default)]
pub(crate) struct Report {
    parts: Vec<(&'static str, Tally, Outcome)>,
    tests: Vec<Ran>,
}

impl Report {
    /// Runs one part and returns what it made, or nothing if it failed. The part counts its tests itself, for
    /// a run with failures has counts too.
    pub(crate) fn part<T>(
        &mut self,
        name: &'static str,
        run: impl FnOnce(&mut Tally) -> Result<T>,
    ) -> Option<T> {
        eprintln!("\n=== {name}");
        let started = Instant::now();
        let mut tally = Tally::default();
        let result = run(&mut tally);
        let took = started.elapsed();
        let (outcome, made) = match result {
            Ok(made) => {
                eprintln!("=== {name}: ok after {:.1} s", took.as_secs_f64());
                (Outcome::Passed(took), Some(made))
            }
            Err(error) => {
                eprintln!("=== {name}: FAILED after {:.1} s: {error:#}", took.as_secs_f64());
                (Outcome::Failed(took, format!("{error:#}")), None)
            }
        };
        self.parts.push((name, tally, outcome));
        made
    }

    /// Records that a part was left out.
    pub(crate) fn skip(&mut self, name: &'static str, why: impl Into<String>) {
        let why = why.into();
        eprintln!("\n=== {name}: SKIPPED: {why}");
        self.parts.push((name, Tally::default(), Outcome::Skipped(why)));
    }

    /// Sums up. A part that failed without a test of its own to blame counts as one failure, so that "0
    /// failed" always means that all is well.
    pub(crate) fn total(&self) -> Tally {
        self.parts.iter().fold(Tally::default(), |sum, (_, tally, outcome)| {
            let failed = matches!(outcome, Outcome::Failed(..));
            let failed = if failed { tally.failed.max(1) } else { tally.failed };
            Tally { passed: sum.passed + tally.passed, failed: sum.failed + failed }
        })
    }

    /// Records tests that were run.
    pub(crate) fn ran(&mut self, tests: Vec<Ran>) {
        self.tests.extend(tests);
    }

    /// Prints which tests could not be run, and what each that passed at its second try had waited for at its first.
    pub(crate) fn print_unusual(&self) {
        for test in &self.tests {
            match &test.outcome {
                suite::Outcome::Flaky(first) => eprintln!("flaky: {} (first: {first:?})", test.name),
                suite::Outcome::NotRun(why) => eprintln!("not run: {}: {why}", test.name),
                suite::Outcome::Passed | suite::Outcome::Failed(_) => {}
            }
        }
    }

    /// Whether a test said that it cannot run here.
    pub(crate) fn has_not_run(&self) -> bool {
        self.tests.iter().any(|test| matches!(test.outcome, suite::Outcome::NotRun(_)))
    }

    /// Prints one line for each part, in order, and what took how long, the slowest first.
    pub(crate) fn print(&self) {
        self.print_times();
        self.print_parts();
        for test in &self.tests {
            if let suite::Outcome::Failed(why) = &test.outcome {
                eprintln!("failed: {}: {why}", test.name);
            }
        }
    }

    fn print_times(&self) {
        let parts = self.parts.iter().filter_map(|(name, _, outcome)| match outcome {
            Outcome::Passed(took) | Outcome::Failed(took, _) => Some((*took, *name)),
            Outcome::Skipped(_) => None,
        });
        let tests = self.tests.iter().map(|test| (test.took, test.name.as_str())).collect();
        for (what, mut rows, most) in
            [("parts", parts.collect::<Vec<_>>(), SLOWEST), ("tests", tests, SLOWEST)]
        {
            rows.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
            eprintln!("\n{what}, slowest first");
            for (took, name) in rows.into_iter().take(most) {
                eprintln!("  {:>7.1} s  {name}", took.as_secs_f64());
            }
        }
    }

    fn print_parts(&self) {
        eprintln!("\nsummary");
        for (name, tally, outcome) in &self.parts {
            let tests = match tally {
                Tally { passed: 0, failed: 0 } => String::new(),
                Tally { passed, failed } => format!("  {passed} passed, {failed} failed"),
            };
            match outcome {
                Outcome::Passed(took) => {
                    eprintln!("  ok       {name:<18}{:>7.1} s{tests}", took.as_secs_f64());
                }
                Outcome::Failed(took, why) => {
                    eprintln!("  FAILED   {name:<18}{:>7.1} s{tests}  {why}", took.as_secs_f64());
                }
                Outcome::Skipped(why) => eprintln!("  SKIPPED  {name:<18}           {why}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn tests_are_summed_and_a_failed_part_is_never_zero_failures() {
        let mut report = Report::default();
        report.part("format", |_| Ok(()));
        report.part("unit tests", |tally| {
            *tally = Tally { passed: 10, failed: 0 };
            Ok(())
        });
        assert_eq!(report.total(), Tally { passed: 10, failed: 0 });
        report.part("clippy", |_| -> Result<()> { bail!("warnings") });
        report.part("stories", |tally| -> Result<()> {
            *tally = Tally { passed: 5, failed: 2 };
            bail!("two stories")
        });
        report.skip("doc tests", "a filter was given");
        assert_eq!(report.total(), Tally { passed: 15, failed: 3 });
    }
}
