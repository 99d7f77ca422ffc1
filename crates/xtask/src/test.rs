//! `cargo xtask test`: all that must hold, in the order of what fails quickest.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::bed::Bed;
use crate::preflight::{self, Missing, Scope};
use crate::report::{Report, Tally};
use crate::workspace::{Profile, Workspace};
use crate::{chaos, conformance, nfs_bed, older, shell, sim, tools};

/// Check format, lints, licences and bans; run the unit and property tests, ONTAP's own clients against the
/// fake, every story on a real Kafka, a short fault marathon, and the foremost stories on real NFS.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this tier.
    #[arg(long)]
    tier: Option<Tier>,
    /// Only tests with this in their names; then nothing but tests is run.
    filter: Option<String>,
}

/// What a plain run tells of the NFS tier: a host dies, freezes, is cut off; the server stalls. A run of
/// everything on a cold machine should end within an hour and a half.
const FOR_EVERY_RUN: &str = "/^nfs_(crash|cut|freeze)$/";

/// A story that a plain run leaves to `--tier corners`: it takes minutes, and differs from the daemon's own
/// story in who asks for the archive.
const BY_HAND: &str = "test(a_takeover_starts_kafka_with_the_classes_that_the_standby_made_ready)";

/// What tests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Tier {
    /// In process: format, lints, licences, unit and property tests.
    Unit,
    /// Real hosts in network namespaces and a real Kafka.
    Netns,
    /// Corners of one rule, on this Kafka and on 3.9, and the oldest supported agent beside this one: tests
    /// `corners_*` of package `e2e`, and the one of a class-data archive that a person has made.
    Corners,
    /// Hosts with kernels of their own, and a real NFS server: tests `nfs_*` of package `e2e`.
    Nfs,
}

/// Runs the command. Something that failed is in the exit code; an error is what kept us from trying.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let wants = |tier| args.tier.is_none_or(|only| only == tier);
    let (unit, netns) = (wants(Tier::Unit), wants(Tier::Netns));
    // Nothing of it is in a plain run.
    let corners = args.tier == Some(Tier::Corners);
    let obstacle = nfs_bed::obstacle();
    let nfs = wants(Tier::Nfs) && obstacle.is_none();
    if let (Some(Tier::Nfs), Some(why)) = (args.tier, &obstacle) {
        return Err(Missing(format!("the NFS tier cannot run here: {why}")).into());
    }
    preflight::ensure(if netns || nfs || corners { Scope::Stories } else { Scope::Build })?;
    let runner = Runner { workspace: Workspace::find()?, filter: args.filter.clone() };
    let nextest = tools::NEXTEST.ensure(&runner.workspace)?;
    let mut report = Report::default();
    if unit {
        runner.checks(&mut report);
        runner.unit_tests(&mut report, &nextest);
    } else {
        report.skip("unit tier", "another --tier was given");
    }
    let mut bed = if netns || nfs || corners { runner.bed(&mut report) } else { None };
    if netns {
        runner.stories(&mut report, &nextest, bed.as_ref());
    } else {
        report.skip("stories", "another --tier was given");
    }
    if corners {
        runner.corners(&mut report, &nextest, bed.take());
    } else {
        report.skip("corners", "`cargo xtask test --tier corners` tells them");
    }
    match obstacle.filter(|_| wants(Tier::Nfs)) {
        Some(why) => report.skip("NFS stories", why),
        None if nfs => runner.nfs_stories(&mut report, &nextest, bed.as_mut(), args.tier.is_some()),
        None => report.skip("NFS stories", "another --tier was given"),
    }
    conclude(&report, runner.filter.as_deref())
}

fn conclude(report: &Report, filter: Option<&str>) -> Result<ExitCode> {
    report.print();
    let mut total = report.total();
    if let Some(filter) = filter
        && total == Tally::default()
    {
        eprintln!("no test has {filter:?} in its name: see `cargo nextest list --workspace`");
        total.failed = 1;
    }
    writeln!(io::stdout(), "{} passed, {} failed", total.passed, total.failed)?;
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Runner {
    workspace: Workspace,
    filter: Option<String>,
}

impl Runner {
    fn checks(&self, report: &mut Report) {
        if self.filter.is_some() {
            report.skip("format, lints, bans", "a filter was given");
            return;
        }
        report.part("format", |_| {
            shell::run(self.workspace.cargo("fmt").args(["--all", "--check"]))
                .context("`cargo fmt --all` puts it right")
        });
        report.part("clippy", |_| {
            let mut clippy = self.workspace.cargo("clippy");
            shell::run(clippy.args(["--workspace", "--all-targets", "--", "--deny", "warnings"]))
        });
        report.part("licences and bans", |_| {
            let deny = tools::DENY.ensure(&self.workspace)?;
            let mut check = Command::new(deny);
            check.current_dir(&self.workspace.root);
            shell::run(check.args(["--workspace", "check", "bans", "licenses", "sources"]))
        });
    }

    fn unit_tests(&self, report: &mut Report, nextest: &Path) {
        report.part("unit tests", |tally| self.nextest(nextest, tally, |_| ()));
        if self.filter.is_some() {
            report.skip("doc tests, ONTAP conformance, simulation", "a filter was given");
        } else {
            report.part("doc tests", |_| shell::run(self.workspace.cargo("test").args(["--quiet", "--doc"])));
            report.part("ONTAP conformance", |tally| conformance::run_for_test(&self.workspace, tally));
            report.part("simulation", |_| sim::run_for_test(&self.workspace));
        }
    }

    /// Kafka, the agent and the bed's own programs.
    fn bed(&self, report: &mut Report) -> Option<Bed> {
        report
            .part("kafka and agent", |_| Bed::prepare(&self.workspace, &["understudy", "e2e"], Profile::Dev))
    }

    fn stories(&self, report: &mut Report, nextest: &Path, bed: Option<&Bed>) {
        let Some(bed) = bed else {
            report.skip("stories", "there is no Kafka or no agent to run them with, see above");
            return;
        };
        report.part("stories", |tally| {
            let select = format!("package(e2e) & not binary(/^(nfs|corners)_/) & not {BY_HAND}");
            self.tell(nextest, tally, bed, &select)
        });
        if self.filter.is_some() {
            report.skip("fault marathon", "a filter was given");
        } else {
            report.part("fault marathon", |_| chaos::run_for_test(bed));
        }
    }

    fn corners(&self, report: &mut Report, nextest: &Path, bed: Option<Bed>) {
        let Some(mut bed) = bed else {
            report.skip("corners", "there is no Kafka or no agent to run them with, see above");
            return;
        };
        let select =
            format!("package(e2e) & (binary(/^corners_/) & not binary(corners_upgrade) | {BY_HAND})");
        report.part("corners", |tally| self.tell(nextest, tally, &bed, &select));
        self.upgrade(report, nextest, &mut bed);
        let Some(older) = report.part("older kafka", |_| bed.with_older_kafka()) else { return };
        let select = "package(e2e) & binary(corners_on_any_kafka)";
        report.part("corners on the older kafka", |tally| self.tell(nextest, tally, &older, select));
    }

    /// Building the older agent takes minutes where it is not kept yet.
    fn upgrade(&self, report: &mut Report, nextest: &Path, bed: &mut Bed) {
        if let Some(why) = older::obstacle(&self.workspace) {
            report.skip("two versions", why);
            return;
        }
        if report.part("older agent", |_| bed.add_older_agent(&self.workspace)).is_some() {
            let select = "package(e2e) & binary(corners_upgrade)";
            report.part("two versions", |tally| self.tell(nextest, tally, bed, select));
        }
    }

    /// `asked_for`: that their hosts cannot be built here, as where Debian's archive is out of reach, is a
    /// failure.
    fn nfs_stories(&self, report: &mut Report, nextest: &Path, bed: Option<&mut Bed>, asked_for: bool) {
        let Some(bed) = bed else {
            report.skip("NFS stories", "there is no Kafka or no agent to run them with, see above");
            return;
        };
        let built = if asked_for {
            report.part("NFS hosts", |_| bed.add_nfs())
        } else {
            let left_out = |error| report.skip("NFS hosts", format!("they cannot be built here: {error:#}"));
            bed.add_nfs().map_err(left_out).ok()
        };
        if built.is_none() {
            report.skip("NFS stories", "there are no hosts to run them on, see above");
            return;
        }
        let stories = if asked_for { "/^nfs_/" } else { FOR_EVERY_RUN };
        report.part("NFS stories", |tally| {
            self.tell(nextest, tally, bed, &format!("package(e2e) & binary({stories})"))
        });
        if !asked_for {
            report.skip("other NFS stories", "`cargo xtask test --tier nfs` tells all of them");
        }
    }

    /// Runs the stories that `select` says.
    fn tell(&self, nextest: &Path, tally: &mut Tally, bed: &Bed, select: &str) -> Result<()> {
        self.nextest(nextest, tally, |run| {
            // Not `--package e2e`: with fewer packages cargo picks fewer features, and builds everything
            // again.
            bed.give_to(run.args(["--workspace", "--filterset", select]));
        })
        .with_context(|| format!("what the failed stories left is in {}", bed.artifacts.display()))
    }

    /// Runs the tests of the default members, or those that `select` says, and counts them.
    fn nextest(&self, nextest: &Path, tally: &mut Tally, select: impl FnOnce(&mut Command)) -> Result<()> {
        let mut run = Command::new(nextest);
        run.current_dir(&self.workspace.root).args(["nextest", "run", "--no-fail-fast"]);
        select(&mut run);
        if let Some(filter) = &self.filter {
            // Whether any tier had such a test is judged at the end.
            run.args(["--no-tests=pass", filter]);
        }
        let results = self.results();
        if results.exists() {
            fs::remove_file(&results).context("cannot remove the results of the last run")?;
        }
        let ended = shell::run(&mut run);
        match fs::read_to_string(&results) {
            Ok(text) => {
                *tally = counts(&text).with_context(|| format!("no counts in {}", results.display()))?;
            }
            // It did not compile.
            Err(_) if ended.is_err() => {}
            Err(error) => bail!("nextest left no results in {}: {error}", results.display()),
        }
        ended
    }

    /// Where `.config/nextest.toml` has nextest put them: always here, whatever cargo's target directory is.
    fn results(&self) -> PathBuf {
        self.workspace.root.join("target/nextest/default/junit.xml")
    }
}

/// Reads the totals off the first element:
/// `<testsuites name="nextest-run" tests="3" failures="1" errors="0" …>`.
fn counts(junit: &str) -> Option<Tally> {
    let (_, rest) = junit.split_once("<testsuites ")?;
    let (attributes, _) = rest.split_once('>')?;
    let number = |name: &str| -> Option<u64> {
        let (_, rest) = attributes.split_once(&format!("{name}=\""))?;
        rest.split_once('"')?.0.parse().ok()
    };
    let failed = number("failures")? + number("errors")?;
    Some(Tally { passed: number("tests")?.checked_sub(failed)?, failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_totals_are_read() {
        let junit = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="12" failures="2" errors="1" uuid="0c" timestamp="t" time="0.2">
    <testsuite name="recovery" tests="5" disabled="0" errors="0" failures="0">"#;
        assert_eq!(counts(junit), Some(Tally { passed: 9, failed: 3 }));
    }

    #[test]
    fn anything_else_has_no_totals() {
        for text in ["", "<testsuites >", r#"<testsuites tests="1" failures="2" errors="0">"#] {
            assert_eq!(counts(text), None, "{text}");
        }
    }
}
