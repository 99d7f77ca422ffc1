//! What is assumed of ONTAP, and whether it holds on this system.

use std::fmt;

use serde::Serialize;

/// What the fence and its proof assume. Each is a section of `docs/ontap-assumptions.md`, under its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Assumption {
    Release,
    PnfsOff,
    Nodes,
    CacheByNode,
    Polarity,
    LocksByVolume,
    CheckAccess,
    Qtrees,
    ConnectedClients,
    Counters,
    Grace,
    Scratch,
    Mounted,
    EmptyPolicy,
    RuleChange,
    Flush,
    NoEntry,
    BreakByUuid,
    RuleBites,
    LetInAgain,
    Unmounted,
    CleanedUp,
}

impl Assumption {
    /// Every one.
    #[cfg(test)]
    pub(super) const ALL: [Self; 22] = [
        Self::Release,
        Self::PnfsOff,
        Self::Nodes,
        Self::CacheByNode,
        Self::Polarity,
        Self::LocksByVolume,
        Self::CheckAccess,
        Self::Qtrees,
        Self::ConnectedClients,
        Self::Counters,
        Self::Grace,
        Self::Scratch,
        Self::Mounted,
        Self::EmptyPolicy,
        Self::RuleChange,
        Self::Flush,
        Self::NoEntry,
        Self::BreakByUuid,
        Self::RuleBites,
        Self::LetInAgain,
        Self::Unmounted,
        Self::CleanedUp,
    ];

    /// Its name in the report, and the heading of its section.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::PnfsOff => "pnfs_off",
            Self::Nodes => "nodes",
            Self::CacheByNode => "cache_by_node",
            Self::Polarity => "polarity",
            Self::LocksByVolume => "locks_by_volume",
            Self::CheckAccess => "check_access",
            Self::Qtrees => "qtrees",
            Self::ConnectedClients => "connected_clients",
            Self::Counters => "counters",
            Self::Grace => "grace",
            Self::Scratch => "scratch",
            Self::Mounted => "mounted",
            Self::EmptyPolicy => "empty_policy",
            Self::RuleChange => "rule_change",
            Self::Flush => "flush",
            Self::NoEntry => "no_entry",
            Self::BreakByUuid => "break_by_uuid",
            Self::RuleBites => "rule_bites",
            Self::LetInAgain => "let_in_again",
            Self::Unmounted => "unmounted",
            Self::CleanedUp => "cleaned_up",
        }
    }
}

/// How an assumption stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// It was seen to be so.
    Holds,
    /// It was seen to be otherwise.
    Differs,
    /// Nothing was seen: not tried, nothing there to look at, or not shown to this account.
    NotSeen,
}

/// One assumption on one SVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) svm: String,
    pub(super) assumption: Assumption,
    pub(super) verdict: Verdict,
    /// What ONTAP answered.
    pub(super) found: String,
}

/// Gathers findings on one SVM.
#[derive(Debug)]
pub(super) struct Findings {
    svm: String,
    pub(super) all: Vec<Finding>,
}

impl Findings {
    pub(super) fn on(svm: &str) -> Self {
        Self { svm: svm.to_owned(), all: Vec::new() }
    }

    fn add(&mut self, assumption: Assumption, verdict: Verdict, found: impl Into<String>) {
        self.all.push(Finding { svm: self.svm.clone(), assumption, verdict, found: found.into() });
    }

    pub(super) fn holds(&mut self, assumption: Assumption, found: impl Into<String>) {
        self.add(assumption, Verdict::Holds, found);
    }

    pub(super) fn differs(&mut self, assumption: Assumption, found: impl Into<String>) {
        self.add(assumption, Verdict::Differs, found);
    }

    pub(super) fn not_seen(&mut self, assumption: Assumption, found: impl Into<String>) {
        self.add(assumption, Verdict::NotSeen, found);
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.verdict {
            Verdict::Holds => "holds",
            Verdict::Differs => "DIFFERS",
            Verdict::NotSeen => "?",
        };
        write!(f, "{word:<7}  {} ({}): {}", self.assumption.label(), self.svm, self.found)
    }
}
