//! `cargo xtask search`: looks for faults that nobody knows of, for as long as there is time. What it finds, and is
//! mended, becomes a pinned scenario of `crates/sim/tests/it/seeds.rs` or a story; it judges no change.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::preflight::{self, Scope};
use crate::suite::{self, Outcome, Place, Ran, Test};
use crate::test::is_plain;
use crate::workspace::Workspace;
use crate::{chaos, ec2_bed, shell, sim};

/// For how long stories are told before the next round of seeds and random faults.
const STORIES: Duration = Duration::from_secs(300);

/// Look for faults that nobody knows of: fresh seeds, random faults on a real cluster, and all stories with both
/// processors loaded, in turns.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// For how long something new is begun.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
}

/// Something that failed.
struct Finding {
    what: String,
    /// What repeats it.
    again: String,
    /// Everything that it left.
    folder: PathBuf,
}

struct Search {
    workspace: Workspace,
    bed: Bed,
    stories: Vec<Test>,
    properties: Vec<Test>,
    /// Where findings go.
    folder: PathBuf,
    until: Instant,
    findings: Vec<Finding>,
}

/// Runs the command. What was found is in the exit code.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    preflight::ensure(Scope::Stories)?;
    let workspace = Workspace::find()?;
    let programs = suite::build(&workspace)?;
    let tests = suite::list(&workspace, &programs)?;
    let of =
        |select: fn(&Test) -> bool| tests.iter().filter(|test| select(test)).cloned().collect::<Vec<_>>();
    let mut stories = of(is_plain);
    let properties = of(|test| test.path.starts_with("properties::"));
    let seed = clock();
    let first = usize::try_from(seed)? % stories.len().max(1);
    stories.rotate_left(first);
    let folder = workspace.root.join(format!("target/search/{seed}"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let bed = Bed::of(&workspace, programs)?;
    let until = Instant::now() + Duration::from_secs(60 * u64::from(args.minutes));
    let mut search = Search { workspace, bed, stories, properties, folder, until, findings: Vec::new() };
    while search.has_time() {
        search.seeds()?;
        search.properties()?;
        search.faults()?;
        search.stories()?;
    }
    search.conclude()
}

impl Search {
    fn has_time(&self) -> bool {
        Instant::now() < self.until
    }

    fn seeds(&mut self) -> Result<()> {
        let from = clock();
        let again = format!("cargo xtask sim --seeds {} --from {from}", sim::AFRESH);
        let mut seeds = sim::afresh(&self.workspace, from)?;
        self.look(&again, "a simulated cluster broke a promise", &mut seeds, None)
    }

    /// Property tests with cases that no run has had before.
    fn properties(&mut self) -> Result<()> {
        let tests = self.properties.clone();
        self.tests(tests, None, |name, seed| {
            format!("PROPTEST_RNG_SEED={seed} cargo test --workspace {name}")
        })
    }

    fn faults(&mut self) -> Result<()> {
        let seed = clock() / 1000;
        let again = format!("cargo xtask chaos --minutes {} --seed {seed}", chaos::MINUTES);
        let mut chaos = chaos::afresh(&self.bed, seed)?;
        let left = self.bed.artifacts.join("chaos");
        self.look(&again, "the fault marathon failed", &mut chaos, Some(&left))
    }

    /// Runs a command with its output in a file, which is kept when it fails, beside what it `left`.
    fn look(&mut self, again: &str, what: &str, command: &mut Command, left: Option<&Path>) -> Result<()> {
        if !self.has_time() {
            return Ok(());
        }
        eprintln!("\n=== {again}");
        let log = self.folder.join("output.log");
        let output = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        match shell::run(command) {
            Ok(()) => {
                let text = fs::read_to_string(&log)?;
                text.lines().rev().take(1).for_each(|line| eprintln!("    {line}"));
                Ok(())
            }
            Err(error) => self.found(format!("{what}: {error:#}"), again, &[Some(log.as_path()), left]),
        }
    }

    /// Tells stories for a while, with every processor busy.
    fn stories(&mut self) -> Result<()> {
        let busy = Busy::begin();
        let begin = Instant::now();
        while self.has_time() && begin.elapsed() < STORIES {
            let Some(story) = self.stories.first().cloned() else { break };
            self.stories.rotate_left(1);
            let again =
                |name: &str, seed| format!("UNDERSTUDY_SEED={seed} cargo xtask test --tier netns {name}");
            self.tests(vec![story], Some(&self.bed.artifacts.clone()), again)?;
        }
        drop(busy);
        Ok(())
    }

    /// Runs tests by a fresh seed; what stories leave is in `artifacts`.
    fn tests(
        &mut self,
        tests: Vec<Test>,
        artifacts: Option<&Path>,
        again: impl Fn(&str, u64) -> String,
    ) -> Result<()> {
        let seed = clock();
        let outputs = self.workspace.root.join("target/tests");
        let place = Place {
            root: &self.workspace.root,
            bed: Some(&self.bed),
            ec2: ec2_bed::ensure().ok(),
            kubernetes: None,
            terraform: None,
            seed: Some(seed),
            pinned: false,
            outputs,
        };
        for Ran { name, outcome, output, .. } in suite::run(&place, tests)? {
            let [left, first] =
                [name.clone(), format!("{name}.first")].map(|name| Some(artifacts?.join(name)));
            let left = [left.as_deref(), first.as_deref(), Some(output.as_path())];
            match outcome {
                Outcome::Passed | Outcome::NotRun(_) => {}
                Outcome::Flaky(what) => {
                    self.found(
                        format!("{name} waited in vain, once of two times: {what}"),
                        &again(&name, seed),
                        &left,
                    )?;
                }
                Outcome::Failed(why) => self.found(format!("{name}: {why}"), &again(&name, seed), &left)?,
            }
        }
        Ok(())
    }

    /// Keeps what a failure left, and says so.
    fn found(&mut self, what: String, again: &str, left: &[Option<&Path>]) -> Result<()> {
        let folder = self.folder.join(format!("{}", self.findings.len() + 1));
        fs::create_dir_all(&folder)?;
        for path in left.iter().flatten().filter(|path| path.exists()) {
            let kept = folder.join(path.file_name().unwrap_or_default());
            fs::rename(path, &kept).with_context(|| format!("cannot keep {}", path.display()))?;
        }
        eprintln!("FOUND: {what}\n    again: {again}\n    left:  {}", folder.display());
        self.findings.push(Finding { what, again: again.to_owned(), folder });
        Ok(())
    }

    fn conclude(self) -> Result<ExitCode> {
        if self.findings.is_empty() {
            fs::remove_dir_all(&self.folder)?;
            eprintln!("\nnothing was found");
            return Ok(ExitCode::SUCCESS);
        }
        eprintln!("\n{} findings", self.findings.len());
        for Finding { what, again, folder } in &self.findings {
            eprintln!("  {what}\n    again: {again}\n    left:  {}", folder.display());
        }
        Ok(ExitCode::FAILURE)
    }
}

/// The milliseconds since 1970: no two rounds of a search share seeds.
fn clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or_default()
}

/// Keeps every processor busy until it is dropped.
struct Busy {
    stop: std::sync::Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Busy {
    fn begin() -> Self {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let spin = || {
            let stop = std::sync::Arc::clone(&stop);
            thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        };
        Self { threads: (0..processors).map(|_| spin()).collect(), stop }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It does nothing that could fail.
            let _ = thread.join();
        }
    }
}
