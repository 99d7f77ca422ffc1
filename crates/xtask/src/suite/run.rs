//! Running tests and telling how each went.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Test;
use crate::bed::Bed;
use crate::{ec2_bed, kubernetes_bed, terraform_bed};

/// Most tests wait for a clock or a socket: on two cores, six at once take half the time of two.
const AT_ONCE: usize = 6;
/// What the cases of property tests come from, so that a run is the same twice.
const PROPERTIES: u64 = 1;
/// What repeats a finding when a person sets it, and must not change what a gate runs.
const CHOSEN_BY_HAND: [&str; 5] =
    ["UNDERSTUDY_SEED", "UNDERSTUDY_BOOTS", "PROPTEST_CASES", "FUZZ_INPUT", "FUZZ_NUMBER"];
/// How often a test is looked at.
const TICK: Duration = Duration::from_millis(5);
/// Lines of a failed test's output that are printed; the rest is in its file.
const SHOWN: usize = 80;

/// How a test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// At the first try.
    Passed,
    /// At the second: the first waited in vain for this, or its set-up failed.
    Flaky(String),
    /// It said that it cannot run here, and judged nothing.
    NotRun(String),
    /// With the lines that say why.
    Failed(String),
}

/// A test that was run.
#[derive(Debug, Clone)]
pub(crate) struct Ran {
    /// Its name, without its path.
    pub(crate) name: String,
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// All that it said.
    pub(crate) output: PathBuf,
    /// How long that took, all tries together.
    pub(crate) took: Duration,
}

/// What tests are given, and where they leave what they say.
pub(crate) struct Place<'a> {
    /// The checkout.
    pub(crate) root: &'a Path,
    /// For stories: Kafka, the agent, a place for evidence.
    pub(crate) bed: Option<&'a Bed>,
    /// For tests against EC2: the Python of the simulator.
    pub(crate) ec2: Option<PathBuf>,
    /// For tests on a Kubernetes: its programs.
    pub(crate) kubernetes: Option<PathBuf>,
    /// For tests of Terraform's configurations: OpenTofu.
    pub(crate) terraform: Option<PathBuf>,
    /// What property tests take their cases from and stories their moments; without it, always the same ones.
    pub(crate) seed: Option<u64>,
    /// Whether nothing that a person has set may make the run another one.
    pub(crate) pinned: bool,
    /// One file a test; made if need be.
    pub(crate) outputs: PathBuf,
}

/// Runs `tests`: stories one by one, of the others six at once. Each is told on a line when it is a story, took
/// long or failed.
///
/// # Errors
/// A test cannot be started. One that fails is in what is returned.
pub(crate) fn run(place: &Place<'_>, mut tests: Vec<Test>) -> Result<Vec<Ran>> {
    fs::create_dir_all(&place.outputs).with_context(|| format!("cannot make {}", place.outputs.display()))?;
    // What computes all the time begins first, beside what waits; stories come after everything else.
    tests.sort_by_key(|test| (test.is_story(), !test.is_search()));
    let stories = tests.split_off(tests.partition_point(|test| !test.is_story()));
    let mut ran = Pool { place, tests }.run(AT_ONCE)?;
    ran.extend(Pool { place, tests: stories }.run(1)?);
    Ok(ran)
}

struct Pool<'a> {
    place: &'a Place<'a>,
    tests: Vec<Test>,
}

impl Pool<'_> {
    fn run(&self, at_once: usize) -> Result<Vec<Ran>> {
        let (next, ran) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || -> Result<()> {
            while let Some(test) = self.tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                let done = self.place.told(test)?;
                self.tell(test, &done);
                ran.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(done);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..at_once.min(self.tests.len())).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().unwrap_or_else(|_| anyhow::bail!("a worker of the test runner panicked"))
            })
        })?;
        Ok(ran.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn tell(&self, test: &Test, ran: &Ran) {
        let (label, took) = (test.label(), ran.took.as_secs_f64());
        match &ran.outcome {
            Outcome::Passed if test.is_story() || ran.took > Duration::from_secs(20) => {
                eprintln!("  passed {took:7.1} s  {label}");
            }
            Outcome::Passed | Outcome::NotRun(_) => {}
            Outcome::Flaky(first) => eprintln!("  FLAKY  {took:7.1} s  {label} (first: {first:?})"),
            Outcome::Failed(_) => {
                let output = self.place.output(test);
                eprintln!("  FAILED {took:7.1} s  {label}; all it said is in {}", output.display());
                let text = fs::read_to_string(&output).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                lines
                    .iter()
                    .skip(lines.len().saturating_sub(SHOWN))
                    .for_each(|line| eprintln!("    | {line}"));
            }
        }
    }
}

impl Place<'_> {
    fn output(&self, test: &Test) -> PathBuf {
        self.outputs.join(format!("{}.log", test.label().replace(['/', ' ', ':'], "-")))
    }

    /// Runs one test, and once more a story that failed without having judged anything.
    fn told(&self, test: &Test) -> Result<Ran> {
        let begin = Instant::now();
        let mut outcome = self.once(test)?;
        if let (Outcome::Failed(_), Some(first)) = (&outcome, self.unjudged(test)) {
            eprintln!("  once more: {} (first: {first:?})", test.label());
            self.keep_first(test)?;
            outcome = match self.once(test)? {
                Outcome::Passed => Outcome::Flaky(first),
                other => other,
            };
        }
        Ok(Ran { name: test.name().to_owned(), outcome, output: self.output(test), took: begin.elapsed() })
    }

    fn once(&self, test: &Test) -> Result<Outcome> {
        let path = self.output(test);
        let output = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let folder = self.root.join(&test.binary.package);
        let mut command = Command::new(&test.binary.executable);
        command
            .args([&test.path, "--exact", "--nocapture"])
            .current_dir(&folder)
            .env("CARGO_MANIFEST_DIR", &folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        if let Some(bed) = self.bed {
            bed.give_to(&mut command);
        }
        if let Some(ec2) = &self.ec2 {
            command.env(ec2_bed::VARIABLE, ec2);
        }
        if let Some(kubernetes) = &self.kubernetes {
            command.env(kubernetes_bed::VARIABLE, kubernetes);
        }
        if let Some(terraform) = &self.terraform {
            command.env(terraform_bed::VARIABLE, terraform);
        }
        if self.pinned {
            for name in CHOSEN_BY_HAND {
                command.env_remove(name);
            }
        }
        if let Some(seed) = self.seed {
            command.env("UNDERSTUDY_SEED", seed.to_string());
        }
        command.env("PROPTEST_RNG_SEED", self.seed.unwrap_or(PROPERTIES).to_string());
        let mut child = command.spawn().with_context(|| format!("cannot start {}", test.label()))?;
        let begin = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                let text = fs::read_to_string(&path).unwrap_or_default();
                // A test that is not there is no test that passed.
                let passed = status.success() && text.contains("test result: ok. 1 passed");
                let not_run = text.lines().find_map(not_run);
                return Ok(if let (true, Some(why)) = (passed, not_run) {
                    Outcome::NotRun(why.to_owned())
                } else if passed {
                    Outcome::Passed
                } else {
                    Outcome::Failed(reason(&text, &status.to_string()))
                });
            }
            if begin.elapsed() > test.limit() {
                // What it started ends with it: it is tied to its parent's life.
                child.kill()?;
                child.wait()?;
                let limit = test.limit().as_secs();
                return Ok(Outcome::Failed(format!("no end after {limit} s: killed")));
            }
            thread::sleep(TICK);
        }
    }

    /// Why a story failed, where that is no judgement: it says so itself, in its folder.
    fn unjudged(&self, test: &Test) -> Option<String> {
        let folder = self.bed.filter(|_| test.is_story())?.artifacts.join(test.name());
        let text = fs::read_to_string(folder.join("unjudged.json")).ok()?;
        let what: Value = serde_json::from_str(&text).ok()?;
        Some(what["what"].as_str()?.to_owned())
    }

    /// Keeps the folder of the first try as `NAME.first`.
    fn keep_first(&self, test: &Test) -> Result<()> {
        let Some(bed) = self.bed else { return Ok(()) };
        let (folder, first) =
            (bed.artifacts.join(test.name()), bed.artifacts.join(format!("{}.first", test.name())));
        if first.exists() {
            fs::remove_dir_all(&first).with_context(|| format!("cannot remove {}", first.display()))?;
        }
        fs::rename(&folder, &first).with_context(|| format!("cannot keep {}", folder.display()))?;
        fs::copy(self.output(test), first.join("output.log"))
            .context("cannot keep what the first try said")?;
        Ok(())
    }
}

/// Why a test could not be run here, if this line of its output says so: it may follow the test's own name.
fn not_run(line: &str) -> Option<&str> {
    line.strip_prefix("SKIPPED: ").or_else(|| Some(line.split_once(" ... SKIPPED: ")?.1))
}

/// What the last panic said, on one line: a failed test's own words. Else how it ended.
fn reason(output: &str, ended: &str) -> String {
    let said = output.rsplit_once("panicked at ").map(|(_, rest)| rest);
    let lines = said.into_iter().flat_map(|rest| rest.lines().skip(1));
    let words: Vec<&str> = lines
        .map(str::trim)
        .take_while(|line| !line.is_empty() && !line.starts_with("stack backtrace"))
        .collect();
    if words.is_empty() { ended.to_owned() } else { words.join(" ").chars().take(600).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_cannot_run_says_so_on_a_line_of_its_own() {
        assert_eq!(not_run("test a::b ... SKIPPED: no IPv6"), Some("no IPv6"));
        assert_eq!(not_run("SKIPPED: not root"), Some("not root"));
        assert_eq!(not_run("=== doc tests: SKIPPED: a filter was given"), None);
    }

    #[test]
    fn the_reason_is_what_the_last_panic_said() {
        let output = "thread 'a' panicked at x.rs:1:2:\nfirst\nstack backtrace:\n 0: f\n\n\
                      thread 'b' panicked at y.rs:3:4:\nassertion failed\n  left: 1\n right: 2\nstack backtrace:\n 1: g\n";
        assert_eq!(reason(output, "exit status: 101"), "assertion failed left: 1 right: 2");
        assert_eq!(reason("nothing", "signal: 9"), "signal: 9");
    }
}
