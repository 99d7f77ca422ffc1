//! A configuration with its drivers, and what a daemon makes of them: at its start, and at each reload.

use std::sync::Arc;

use drivers::clients::follow::follow;
use recovery::ports::{EventSink, HealthSignal};
use recovery::status::Status;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::access::AccessList;
use crate::at_home;
use crate::checks::{self, StandingChecks};
use crate::config::Config;
use crate::http::ForPeers;
use crate::orders::Desk;
use crate::telemetry::Metrics;
use crate::warmth;
use crate::world::{self, Lasting, World};

/// A configuration that can be put into force, for all of its drivers could be made.
pub(crate) struct Setup {
    pub(crate) config: Arc<Config>,
    pub(crate) world: Arc<World>,
}

impl Setup {
    /// Makes the drivers. Nothing acts or looks yet.
    ///
    /// # Errors
    /// When one cannot be made.
    pub(crate) fn of(config: Config, events: Arc<dyn EventSink>, lasting: &Lasting) -> anyhow::Result<Self> {
        let world = World::of_the_agent(&config, events, lasting)?;
        Ok(Self { config: Arc::new(config), world: Arc::new(world) })
    }

    /// Logs what is allowed and probably not meant.
    pub(crate) fn warn(&self) {
        for warning in &self.config.warnings {
            tracing::warn!(key = warning.key, "{}", warning.reason);
        }
    }

    /// Where orders are given.
    pub(crate) fn desk(&self) -> Desk {
        let World { ports, topology, policy, .. } = self.world.as_ref();
        Desk::new(ports.ledger.clone(), topology.clone(), policy.mode)
    }

    /// Who may ask over the network.
    pub(crate) fn access(&self) -> AccessList {
        AccessList::new(&self.config.access)
    }

    /// What peers are told.
    pub(crate) fn for_peers(&self) -> ForPeers {
        let own = Arc::new(world::own_clients(&self.config));
        ForPeers { own, cluster: self.world.ports.cluster.clone() }
    }

    /// What looks, the daemon's own checks among it.
    pub(crate) fn signals(&self, status: &watch::Receiver<Status>) -> Vec<Arc<dyn HealthSignal>> {
        let looks = checks::all(&self.world, &self.config);
        let checks = StandingChecks::new(looks, self.config.check_every, status.clone());
        let checks: Arc<dyn HealthSignal> = Arc::new(checks);
        self.world.signals.iter().cloned().chain([checks]).collect()
    }

    /// What goes on beside the decision loop, until it is dropped.
    pub(crate) fn beside(&self, status: &watch::Receiver<Status>, metrics: &Arc<Metrics>) -> JoinSet<()> {
        let Config { path, .. } = self.config.as_ref();
        let mut tasks = JoinSet::new();
        let (status, metrics) = (status.clone(), metrics.clone());
        tasks.spawn(warmth::keep(self.config.class_data(), path.clone(), status, metrics));
        // They could be made for the signals.
        let peers = world::peers(&self.config).unwrap_or_default();
        let clients = self.world.clients.clone();
        tasks.spawn(async move { follow(peers, &clients).await });
        for broker in self.config.own_in_this_pod() {
            let (ports, here) = (self.world.ports.clone(), self.world.topology.here.clone());
            tasks.spawn(at_home::keep(ports, broker, here));
        }
        tasks
    }
}
