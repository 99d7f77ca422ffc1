//! Every reason that a person can be shown has a section in the runbook, under the label that is shown.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use recovery::decide::{Budget, EscalateReason, HoldReason};
use recovery::model::{BrokerId, Distrust, Epoch, Outcome};

/// The reasons that may follow `after`, one by one: a new variant does not compile without a line here.
fn next_hold(after: Option<&HoldReason>) -> Option<HoldReason> {
    use HoldReason as R;
    Some(match after {
        None => R::Isolated { answering: 0, others: 2 },
        Some(R::Isolated { .. }) => R::MetadataBlind,
        Some(R::MetadataBlind) => R::OutOfReach { silence: Duration::ZERO },
        Some(R::OutOfReach { .. }) => R::Starting { silence: Duration::ZERO },
        Some(R::Starting { .. }) => R::OneWitness,
        Some(R::OneWitness) => R::LoneObserver { peers: 1 },
        Some(R::LoneObserver { .. }) => R::PeerSeesIt { host: "a".into() },
        Some(R::PeerSeesIt { .. }) => R::LedgerUnreachable,
        Some(R::LedgerUnreachable) => R::LedgerDamaged { why: String::new() },
        Some(R::LedgerDamaged { .. }) => distrusted(0)?,
        Some(R::LedgerDistrusted { distrust, .. }) => {
            let place = Distrust::ALL.iter().position(|one| one == distrust);
            match distrusted(place.map_or(0, |place| place + 1)) {
                Some(next) => next,
                None => R::MassFailure { down: 2, of: 3, limit: 1, brokers: BTreeSet::new() },
            }
        }
        Some(R::MassFailure { .. }) => R::StorageStalled { here: true, at: BTreeSet::new() },
        Some(R::StorageStalled { .. }) => R::HostCarries { host: "a".into(), broker: BrokerId(2) },
        Some(R::HostCarries { .. }) => R::StoppedCleanly { seen_by: None },
        Some(R::StoppedCleanly { .. }) => R::NeverListed,
        Some(R::NeverListed) => R::Paused { who: String::new(), why: String::new(), until: None },
        Some(R::Paused { .. }) => {
            R::BudgetSpent { budget: Budget::Broker, used: 3, window: Duration::from_secs(3600) }
        }
        Some(R::BudgetSpent { .. }) => R::ClaimedElsewhere { by: "b".into(), epoch: Epoch(1) },
        Some(R::ClaimedElsewhere { .. }) => {
            R::OthersFirst { host: "b".into(), step_in: Duration::ZERO, failing: None }
        }
        Some(R::OthersFirst { .. }) => R::LeftToOthers { hosts: BTreeSet::new() },
        Some(R::LeftToOthers { .. }) => R::FencedHere { epoch: Epoch(1), left_to: BTreeSet::new() },
        Some(R::FencedHere { .. }) => R::StandbyFull { owns: 1 },
        Some(R::StandbyFull { .. }) => R::NoFence { host: "a".into() },
        Some(R::NoFence { .. }) => R::FenceAstray { host: "a".into(), why: String::new() },
        Some(R::FenceAstray { .. }) => R::Observing,
        Some(R::Observing) => R::AwaitingApproval,
        Some(R::AwaitingApproval) => return None,
    })
}

fn distrusted(place: usize) -> Option<HoldReason> {
    let distrust = *Distrust::ALL.get(place)?;
    Some(HoldReason::LedgerDistrusted { distrust, why: String::new() })
}

fn next_escalation(after: Option<&EscalateReason>) -> Option<EscalateReason> {
    use EscalateReason as R;
    let (epoch, at, why) = (Epoch(1), String::new(), String::new());
    Some(match after {
        None => R::Stuck { epoch, at, why },
        Some(R::Stuck { .. }) => R::AbandonedByAll { hosts: BTreeSet::new(), epoch, why, first: None },
        Some(R::AbandonedByAll { .. }) => R::DownHere { symptom: String::new() },
        Some(R::DownHere { .. }) => R::Unregistered { why },
        Some(R::Unregistered { .. }) => return None,
    })
}

fn next_outcome(after: Option<&Outcome>) -> Option<Outcome> {
    use Outcome as O;
    let (at, why) = (String::new(), String::new());
    Some(match after {
        None => O::Recovered { time_to_isr: Duration::ZERO, remarks: Vec::new() },
        Some(O::Recovered { .. }) => O::Abandoned { at, why, kept: Vec::new() },
        Some(O::Abandoned { .. }) => O::Stuck { at, why },
        Some(O::Stuck { .. }) => O::Withdrawn { why },
        Some(O::Withdrawn { .. }) => return None,
    })
}

#[test]
fn every_reason_has_its_section() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runbooks/holds-and-errors.md");
    let runbook = fs::read_to_string(path).expect("the runbook is there");
    let holds = std::iter::successors(next_hold(None), |r| next_hold(Some(r)));
    let escalations = std::iter::successors(next_escalation(None), |r| next_escalation(Some(r)));
    let outcomes = std::iter::successors(next_outcome(None), |o| next_outcome(Some(o)));
    let labels = holds
        .map(|reason| reason.label().to_owned())
        .chain(escalations.map(|reason| reason.label().to_owned()))
        .chain(outcomes.map(|outcome| outcome.label().to_owned()));
    for label in labels {
        let heading = format!("### {label}");
        let there = runbook.lines().any(|line| line == heading);
        assert!(there, "docs/runbooks/holds-and-errors.md has no section `{heading}`");
    }
}

#[test]
fn every_hold_has_words_of_its_own() {
    let mut told = BTreeSet::new();
    // Each distrust says what was found, which is nothing here.
    let spoken = |reason: &HoldReason| !matches!(reason, HoldReason::LedgerDistrusted { .. });
    for reason in std::iter::successors(next_hold(None), |r| next_hold(Some(r))).filter(spoken) {
        let text = reason.to_string();
        assert!(text.contains(' '), "{} is told as {text:?}", reason.label());
        assert!(told.insert(text), "{} is told in another one's words", reason.label());
    }
}

#[test]
fn every_link_of_the_runbook_leads_somewhere() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runbooks/holds-and-errors.md");
    let runbook = fs::read_to_string(path).expect("the runbook is there");
    let anchor = |title: &str| {
        let kept = title.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect::<String>()
    };
    let headings: Vec<String> = runbook
        .lines()
        .filter(|l| l.starts_with('#'))
        .map(|l| anchor(l.trim_start_matches('#').trim()))
        .collect();
    for target in runbook.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(headings.iter().any(|h| h == target), "`#{target}` is not a heading");
    }
}
