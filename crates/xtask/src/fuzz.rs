//! `cargo xtask fuzz`: every parser of what comes from outside, guided by the code that its inputs reach.
//!
//! The engine is libFuzzer. Its instrumentation is an ordinary pass of the pinned compiler's LLVM, switched
//! on by stable `-C` options, so that neither a nightly compiler nor `cargo-fuzz` is needed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result, bail};

use crate::preflight::{self, Scope};
use crate::shell;
use crate::workspace::{Programs, Workspace};

/// What `cargo-fuzz` passes too: counters at every edge, a table of their places, and the operands of
/// comparisons.
const INSTRUMENTATION: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Feed every parser of what comes from outside with what should not come, guided by coverage.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long each target is run.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Only these targets, by the names of their folders in `fuzz/corpus`; without any, all.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
}

/// Runs the command. A crash is in the exit code; an error is what kept us from trying.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    preflight::ensure(Scope::Build)?;
    let workspace = Workspace::find()?;
    let corpus = workspace.root.join("fuzz/corpus");
    let targets = chosen(&args.targets, &names(&corpus)?)?;
    let fuzzer = build(&workspace)?;
    let mut out = io::stdout();
    writeln!(out, "{:18} {:>12} {:>9} {:>7} {:>7}", "target", "executions", "per s", "edges", "inputs")?;
    let mut crashed = 0;
    for name in &targets {
        let target = Target::new(&workspace, name)?;
        let status = target.run(&fuzzer, args.seconds)?;
        let log = String::from_utf8_lossy(&fs::read(&target.log)?).into_owned();
        let Figures { executions, per_second, edges, inputs } =
            figures(&log).with_context(|| format!("libFuzzer did not run: see {}", target.log.display()))?;
        writeln!(out, "{name:18} {executions:>12} {per_second:>9} {edges:>7} {inputs:>7}")?;
        if !status.success() {
            crashed += 1;
            target.tell(&log);
        }
    }
    Ok(if crashed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn names(corpus: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(corpus).with_context(|| format!("cannot list {}", corpus.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

fn chosen(wanted: &[String], all: &[String]) -> Result<Vec<String>> {
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        bail!("there is no target {unknown}; the targets are {}", all.join(", "));
    }
    Ok(if wanted.is_empty() { all.to_vec() } else { wanted.to_vec() })
}

/// Builds everything anew with instrumentation, in a directory of its own so that nothing else is.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let version = shell::stdout_of(Command::new("rustc").arg("-vV").current_dir(&workspace.root))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let mut build = workspace.cargo("build");
    build
        .args(["--package", "fuzz", "--features", "libfuzzer", "--test", "coverage", "--profile", "fuzz"])
        // With a target named, the flags are not for build scripts and macros.
        .args(["--target", host.context("rustc does not say what it runs on")?])
        .args(["--target-dir", "target/fuzz", "--message-format=json-render-diagnostics"])
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", INSTRUMENTATION);
    Programs { messages: shell::stdout_of(&mut build)? }.path("coverage")
}

/// Where one target's files are.
struct Target {
    name: String,
    seeds: PathBuf,
    /// What was found to reach new code, kept from run to run.
    found: PathBuf,
    crashes: PathBuf,
    log: PathBuf,
}

impl Target {
    fn new(workspace: &Workspace, name: &str) -> Result<Self> {
        let fuzz = workspace.root.join("target/fuzz");
        let target = Self {
            name: name.to_owned(),
            seeds: workspace.root.join("fuzz/corpus").join(name),
            found: fuzz.join("found").join(name),
            crashes: fuzz.join("crashes").join(name),
            log: fuzz.join(format!("{name}.log")),
        };
        for dir in [&target.found, &target.crashes] {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(target)
    }

    /// Runs it until the time is over or something breaks. Its words go to the log.
    fn run(&self, fuzzer: &Path, seconds: u32) -> Result<ExitStatus> {
        let log = File::create(&self.log).with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut fuzz = Command::new(fuzzer);
        fuzz.env("FUZZ_TARGET", &self.name)
            .arg(format!("-max_total_time={seconds}"))
            .args(["-timeout=5", "-rss_limit_mb=2048", "-max_len=8192", "-print_final_stats=1"])
            .arg(format!("-artifact_prefix={}/", self.crashes.display()))
            // What is new is written to the first folder.
            .args([&self.found, &self.seeds])
            .stdout(log.try_clone()?)
            .stderr(log);
        fuzz.status().with_context(|| format!("cannot start {}", fuzzer.display()))
    }

    /// Says what broke, how to see it again and how to keep it from coming back.
    fn tell(&self, log: &str) {
        let input =
            log.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, path)| path);
        let why = log.lines().skip_while(|line| !line.contains("panicked at") && !line.contains("ERROR:"));
        eprintln!("{} broke; the whole log is {}", self.name, self.log.display());
        why.take(3).for_each(|line| eprintln!("    {line}"));
        eprintln!("  to see it again: FUZZ_INPUT={} cargo test -p fuzz {}", input.unwrap_or("?"), self.name);
        eprintln!("  once it is mended, keep the input: move it into fuzz/corpus/{}", self.name);
    }
}

/// What libFuzzer says of itself at its end.
#[derive(Debug, PartialEq, Eq)]
struct Figures {
    executions: u64,
    per_second: u64,
    edges: u64,
    inputs: u64,
}

fn figures(log: &str) -> Option<Figures> {
    let after = |line: &str, word: &str| -> Option<u64> {
        let (_, rest) = line.split_once(word)?;
        let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    let last = |word: &str| log.lines().rev().find_map(|line| after(line, word));
    Some(Figures {
        executions: last("stat::number_of_executed_units:")?,
        per_second: last("stat::average_exec_per_sec:")?,
        edges: last(" cov: ").unwrap_or(0),
        inputs: last(" corp: ").unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
INFO: Loaded 1 modules   (158211 inline 8-bit counters): 158211 [0x1, 0x2),
#3\tINITED cov: 210 ft: 300 corp: 3/98b exec/s: 0 rss: 40Mb
#524288\tpulse  cov: 431 ft: 1800 corp: 301/9Kb lim: 104 exec/s: 174762 rss: 70Mb
Done 900000 runs in 6 second(s)
stat::number_of_executed_units: 900000
stat::average_exec_per_sec:     150000
";

    #[test]
    fn the_figures_are_read() {
        let expected = Figures { executions: 900_000, per_second: 150_000, edges: 431, inputs: 301 };
        assert_eq!(figures(LOG), Some(expected));
        assert_eq!(figures("FUZZ_TARGET=x: there is no such target"), None);
    }

    #[test]
    fn an_unknown_target_is_named_with_those_there_are() {
        let all = ["a".to_owned(), "b".to_owned()];
        assert_eq!(chosen(&[], &all).unwrap(), all);
        assert_eq!(chosen(&all[1..], &all).unwrap(), ["b"]);
        let error = chosen(&["c".to_owned()], &all).unwrap_err().to_string();
        assert_eq!(error, "there is no target c; the targets are a, b");
    }
}
