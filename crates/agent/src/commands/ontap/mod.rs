//! `understudy ontap …`: the brokers' storage on NetApp ONTAP, audited and prepared.
//!
//! Each command reads facts (async, `facts.rs`), and judges or plans by a pure function over them.

mod audit;
mod facts;
mod login;
mod provision;
mod sites;
mod verify;

use crate::UsageError;
use crate::cli::{Global, Ontap};
use crate::config::Config;
use crate::exit::Exit;

/// Runs one of the commands. `provision` need not have a configuration.
pub(super) async fn run(global: &Global, command: &Ontap) -> anyhow::Result<Exit> {
    match command {
        Ontap::Provision(options) => provision::run(global, options).await,
        Ontap::Audit => audit::run(global, &Config::load(&global.config)?).await,
        Ontap::Verify(options) => verify::run(global, &Config::load(&global.config)?, options).await,
        Ontap::Efficiency => {
            let why = "`ontap efficiency` is part of `ontap audit` now: its lines aggregate_space and efficiency tell \
                       logical and physical bytes";
            Err(UsageError(why.to_owned()).into())
        }
    }
}
