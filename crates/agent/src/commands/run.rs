//! `understudy run`: the daemon.

use std::pin::pin;
use std::sync::Arc;

use anyhow::Context;
use drivers::tls::Tls;
use recovery::cycle::Cycle;
use recovery::ports::EventSink;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::at_home;
use crate::config::Config;
use crate::exit::Exit;
use crate::http;
use crate::order_pages;
use crate::reload::{Ask, Reloads};
use crate::service::{self, Manager};
use crate::setup::Setup;
use crate::socket;
use crate::telemetry::{Fanout, LogSink, Metrics};
use crate::world::{Lasting, World};

/// Watches until SIGTERM or SIGINT. Neither a takeover under way nor a Kafka started here is touched by
/// the end: the first stands in the ledger and is carried on at the next start, the second is adopted.
pub(super) async fn run(config: Config) -> anyhow::Result<Exit> {
    let listener = http::bind(config.listen).await?;
    let socket = socket::bind(&config.socket)?;
    let stop = asked_to_stop(heard(SignalKind::terminate())?, heard(SignalKind::interrupt())?);
    let hangup = heard(SignalKind::hangup())?;
    let metrics = Arc::new(Metrics::default());
    let events: Arc<dyn EventSink> = Arc::new(Fanout(vec![Arc::new(LogSink::default()), metrics.clone()]));
    let lasting = Lasting::of(&config)?;
    let mut setup = Setup::of(config, events.clone(), &lasting)?;
    setup.warn();
    let World { topology, policy, ports, clients, .. } = setup.world.as_ref().clone();
    let (mut cycle, status) = Cycle::new(topology, policy, ports);
    let reloads = Reloads::new(setup.config.clone(), lasting, events, status.clone());
    let (desk, peers) = (watch::Sender::new(setup.desk()), watch::Sender::new(setup.for_peers()));
    let access = watch::Sender::new(setup.access());
    let tls = setup.config.tls.clone().map(|tls| (Arc::new(Tls::new(tls)), access.subscribe()));
    let manager = Manager::of_this_process();
    let told = manager.clone();
    let mut lasts = JoinSet::new();
    let follows = service::follow(status.clone(), service::feed_every(), move |word| told.tell(word));
    lasts.spawn(follows);
    let orders = order_pages::routes(desk.subscribe(), reloads.clone());
    let local = http::pages(status.clone(), metrics.clone()).merge(orders.clone());
    lasts.spawn(async move { drop(socket::serve(socket, local, clients).await) });
    let others = http::peer_pages(peers.subscribe()).merge(orders);
    let pages = http::serve(listener, tls, status.clone(), metrics.clone(), others);
    lasts.spawn(async move { drop(pages.await) });
    lasts.spawn(reload_on(hangup, reloads.clone()));
    cycle.begin();
    let mut stop = pin!(stop);
    loop {
        let beside = setup.beside(&status, &metrics);
        let next = cycle.watch(setup.signals(&status), stop.as_mut(), reloads.next()).await;
        drop(beside);
        let Some(next) = next else { break };
        next.setup.warn();
        let World { topology, policy, ports, .. } = next.setup.world.as_ref().clone();
        cycle.renew(topology, policy, ports, next.told());
        desk.send_replace(next.setup.desk());
        peers.send_replace(next.setup.for_peers());
        access.send_replace(next.setup.access());
        setup = reloads.applied(next);
    }
    manager.tell_the_end().await;
    drop(cycle);
    let _held = at_home::leave(&setup.config, setup.world.ports.ledger.as_ref()).await.inspect_err(|error| {
        tracing::error!("the next pod of this name waits for `understudy ledger adopt`: {error:#}");
    });
    Ok(Exit::Done)
}

fn heard(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).with_context(|| format!("cannot listen for signal {}", kind.as_raw_value()))
}

async fn asked_to_stop(mut terminate: Signal, mut interrupt: Signal) {
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal = name, "stopping; Kafka brokers that were started here run on");
}

/// What comes of it is told by events.
async fn reload_on(mut hangup: Signal, reloads: Arc<Reloads>) {
    while hangup.recv().await.is_some() {
        let _ = reloads.ask("SIGHUP".to_owned(), Ask::default()).await;
    }
}
