//! `understudy run`: the daemon.

use std::sync::Arc;

use anyhow::Context;
use drivers::clients::follow::follow;
use drivers::tls::Tls;
use recovery::cycle::Cycle;
use recovery::ports::HealthSignal;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::checks::{self, StandingChecks};
use crate::config::Config;
use crate::exit::Exit;
use crate::http;
use crate::orders::Desk;
use crate::service::{self, Manager};
use crate::socket;
use crate::telemetry::{Fanout, LogSink, Metrics};
use crate::warmth;
use crate::world::{self, World};

/// Watches until SIGTERM or SIGINT. Neither a takeover under way nor a Kafka started here is touched by
/// the end: the first stands in the ledger and is carried on at the next start, the second is adopted.
pub(super) async fn run(config: Config) -> anyhow::Result<Exit> {
    for warning in &config.warnings {
        tracing::warn!(key = warning.key, "{}", warning.reason);
    }
    let listener = http::bind(config.listen).await?;
    let socket = socket::bind(&config.socket)?;
    let terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let metrics = Arc::new(Metrics::default());
    let events = Arc::new(Fanout(vec![Arc::new(LogSink::default()), metrics.clone()]));
    let world = World::of_the_agent(&config, events)?;
    let looks = checks::all(&Arc::new(world.clone()), &config);
    let desk = Desk::new(world.ports.ledger.clone(), world.topology.clone(), world.policy.mode);
    let cluster = world.ports.cluster.clone();
    let (cycle, status) = Cycle::new(world.topology, world.policy, world.ports);
    let checks: Arc<dyn HealthSignal> =
        Arc::new(StandingChecks::new(looks, config.check_every, status.clone()));
    let readable = http::pages(status.clone(), metrics.clone());
    let orders = tokio::spawn(socket::serve(socket, readable, world.clients.clone(), desk));
    let manager = Manager::of_this_process();
    let told = manager.clone();
    let follows = service::follow(status.clone(), service::feed_every(), move |word| told.tell(word));
    let follows = tokio::spawn(follows);
    let own = Arc::new(world::own_clients(&config));
    let tls = config.tls.clone().map(|tls| Arc::new(Tls::new(tls)));
    let (peers, clients) = (world::peers(&config)?, world.clients);
    let warm = tokio::spawn(warmth::keep(config.class_data(), config.path, status.clone(), metrics.clone()));
    let pages = tokio::spawn(http::serve(listener, tls, status, metrics, own, cluster));
    let follows_clients = tokio::spawn(async move { follow(peers, &clients).await });
    let signals = world.signals.into_iter().chain([checks]).collect();
    cycle.run(signals, asked_to_stop(terminate, interrupt)).await;
    manager.tell_the_end().await;
    follows.abort();
    follows_clients.abort();
    pages.abort();
    orders.abort();
    warm.abort();
    Ok(Exit::Done)
}

async fn asked_to_stop(mut terminate: Signal, mut interrupt: Signal) {
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal = name, "stopping; Kafka brokers that were started here run on");
}
