//! `understudy kubernetes …`: its commands.

use clap::Subcommand;

/// What to do with a Kubernetes cluster.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum Kubernetes {
    /// Print the definitions of the ledger's custom resources, for `kubectl apply -f -`
    Crd,
}
