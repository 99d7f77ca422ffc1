//! `understudy ontap audit`: is the storage set up as Kafka on NFS, and the fence, need it? Changes nothing.

mod exports;
mod finding;
mod judge;
mod network;
#[cfg(test)]
mod tests;
mod volumes;

use std::fmt;

use serde::Serialize;
use tokio::task::JoinSet;

use super::facts::Facts;
use super::sites::sites;
use crate::cli::Global;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::print;
use finding::{About, Check, Finding, Notes, Verdict};

pub(super) use exports::unfit;

/// The page that explains each finding.
const PAGE: &str = "docs/ontap.md";

/// Everything that was looked at.
#[derive(Debug, Serialize)]
struct Report {
    findings: Vec<Finding>,
    passed: usize,
    warned: usize,
    failed: usize,
    not_visible: usize,
}

impl Report {
    fn of(findings: Vec<Finding>) -> Self {
        let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
        let (passed, warned) = (count(Verdict::Pass), count(Verdict::Warn));
        let (failed, not_visible) = (count(Verdict::Fail), count(Verdict::NotVisible));
        Self { findings, passed, warned, failed, not_visible }
    }
}

pub(super) async fn run(global: &Global, config: &Config) -> anyhow::Result<Exit> {
    let (sites, uncovered) = sites(config);
    let mut looks = JoinSet::new();
    for (place, site) in sites.into_iter().enumerate() {
        looks.spawn(async move {
            let facts = Facts::of(&site.ontap, &site.svm).await;
            (place, judge::judge(&site, &facts))
        });
    }
    let mut found = looks.join_all().await;
    found.sort_by_key(|(place, _)| *place);
    let mut findings = Vec::new();
    for broker in uncovered {
        let mut notes = Notes::on(About { broker: Some(broker), ..About::default() });
        let remedy = "add [broker.storage.grant] if its volumes are on ONTAP";
        notes.warn(
            Check::Coverage,
            "it has no [broker.storage.grant], so its volumes are not known here",
            remedy,
        );
        findings.extend(notes.into_findings());
    }
    for finding in found.into_iter().flat_map(|(_, findings)| findings) {
        // Several SVMs of one system have its release in common.
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    let report = Report::of(findings);
    print(&report, global.output)?;
    Ok(if report.failed > 0 { Exit::Failed } else { Exit::Done })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = &self.findings[..];
        while let [first, ..] = rest {
            // What one error has hidden is told once.
            let same = |other: &&Finding| {
                (other.verdict, &other.about, &other.found) == (first.verdict, &first.about, &first.found)
            };
            let alike = rest.iter().take_while(same).count();
            let labels: Vec<&str> = rest[..alike].iter().map(|finding| finding.check.label()).collect();
            show(f, first, &labels.join(", "), alike == 1)?;
            rest = &rest[alike..];
        }
        let Self { passed, warned, failed, not_visible, .. } = self;
        write!(f, "{passed} passed, {warned} warnings, {failed} failed, {not_visible} not visible")
    }
}

fn show(f: &mut fmt::Formatter<'_>, finding: &Finding, labels: &str, alone: bool) -> fmt::Result {
    let word = match finding.verdict {
        Verdict::Pass => "ok",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
        Verdict::NotVisible => "?",
    };
    writeln!(f, "{word:<4}  {labels} ({}): {}{}", finding.about, finding.found, finding.saving)?;
    if finding.verdict == Verdict::Pass {
        return Ok(());
    }
    if alone {
        writeln!(f, "      why: {}", finding.why)?;
    }
    if let Some(remedy) = &finding.remedy {
        writeln!(f, "      do:  {remedy}")?;
    }
    match finding.verdict {
        Verdict::Fail if alone => writeln!(f, "      see: {PAGE}#{}", finding.check.label()),
        _ => Ok(()),
    }
}
