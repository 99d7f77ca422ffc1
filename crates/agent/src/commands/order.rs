//! `understudy pause`, `resume`, `ack` and `approve`: one order each, for all agents of the cluster.

use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use recovery::model::BrokerId;

use crate::UsageError;
use crate::cli::{Global, Pause};
use crate::config::Config;
use crate::exit::Exit;
use crate::orders::{Desk, Given, OrderError, Request};
use crate::output::print;
use crate::who::who;
use crate::world;

pub(super) async fn pause(global: &Global, options: Pause, config: &Config) -> anyhow::Result<Exit> {
    let until = match options.lasting {
        Some(lasting) => Some(later(Timestamp::now(), lasting)?),
        None => options.until,
    };
    let broker = options.broker.map(BrokerId);
    give(global, config, Request::Pause { broker, reason: options.reason, until }).await
}

pub(super) async fn resume(global: &Global, broker: Option<i32>, config: &Config) -> anyhow::Result<Exit> {
    give(global, config, Request::Resume { broker: broker.map(BrokerId) }).await
}

pub(super) async fn ack(
    global: &Global,
    broker: Option<i32>,
    reason: String,
    config: &Config,
) -> anyhow::Result<Exit> {
    give(global, config, Request::Ack { broker: broker.map(BrokerId), reason }).await
}

pub(super) async fn approve(
    global: &Global,
    broker: i32,
    lasting: Duration,
    config: &Config,
) -> anyhow::Result<Exit> {
    let until = later(Timestamp::now(), lasting)?;
    give(global, config, Request::Approve { broker: BrokerId(broker), until }).await
}

async fn give(global: &Global, config: &Config, request: Request) -> anyhow::Result<Exit> {
    let given: Given = desk(config)?.give(who().await, request).await.map_err(told)?;
    print(&given, global.output)?;
    Ok(Exit::Done)
}

/// The desk of this host.
pub(super) fn desk(config: &Config) -> anyhow::Result<Desk> {
    Ok(Desk::new(world::ledger(config)?, config.topology.clone(), config.policy.mode))
}

/// `time` and `lasting` after it.
pub(super) fn later(time: Timestamp, lasting: Duration) -> anyhow::Result<Timestamp> {
    time.checked_add(lasting)
        .context("this lies too far ahead")
        .map_err(|e| UsageError(format!("{e:#}")).into())
}

/// With the exit code of its kind.
pub(super) fn told(error: OrderError) -> anyhow::Error {
    match error {
        OrderError::Usage(why) | OrderError::UnknownBroker(why) => UsageError(why).into(),
        OrderError::Refused(refused) => refused.into(),
        error => error.into(),
    }
}
