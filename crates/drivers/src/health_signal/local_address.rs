//! Which brokers' addresses are on this host, so that a fenced host gives up what is not its own any more,
//! and the owner defends what is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use recovery::model::{BrokerId, Evidence, Fact};
use recovery::ports::{Address, Clock, HealthSignal, chain};

/// One look asks the kernel of this host, and nobody on the network.
const PERIOD: Duration = Duration::from_millis(500);

/// Asks this host about every address that moves.
pub struct LocalAddresses {
    addresses: BTreeMap<BrokerId, Arc<dyn Address>>,
}

impl LocalAddresses {
    /// Looks for `addresses` on this host.
    #[must_use]
    pub fn new(addresses: BTreeMap<BrokerId, Arc<dyn Address>>) -> Self {
        Self { addresses }
    }
}

#[async_trait]
impl HealthSignal for LocalAddresses {
    fn name(&self) -> &'static str {
        "local_address"
    }

    fn period(&self) -> Duration {
        PERIOD
    }

    async fn look(&self, clock: &dyn Clock) -> Vec<Evidence> {
        let at = clock.now().mono;
        let (mut facts, mut faults) = (Vec::new(), Vec::new());
        for (broker, address) in &self.addresses {
            match address.here().await {
                Ok(here) => facts.push(Fact::Address { broker: *broker, here }),
                Err(error) => faults.push(format!("broker {broker}: {}", chain(&error))),
            }
        }
        // Last, because any other fact of a signal says that it can see again.
        facts.extend((!faults.is_empty()).then(|| Fact::Blind { why: faults.join("; ") }));
        facts.into_iter().map(|fact| Evidence { signal: self.name(), at, fact }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fakes::{BROKER, World};

    #[tokio::test(start_paused = true)]
    async fn an_address_is_told_while_it_is_here() {
        let world = World::new();
        let signal = LocalAddresses::new(world.ports().addresses);
        for here in [false, true, false] {
            world.truth().address_here = here;
            let evidence = signal.look(&world).await;
            let [Evidence { fact: Fact::Address { broker: BROKER, here: told }, .. }] = evidence.as_slice()
            else {
                panic!("{evidence:?}")
            };
            assert_eq!(*told, here);
        }
    }
}
