//! Each broker has one home, registered by the host itself: a configuration that says another is refused.

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{HomeHolder, KnownLedger, first, home_cell, home_holder};
use crate::ledger_signal::AT_ONCE;
use crate::model::{BrokerId, Distrust, HostName};
use crate::ports::LedgerError;

impl KnownLedger {
    pub(super) async fn homes(&self, joins: bool) -> Result<(), LedgerError> {
        let homes = stream::iter(&self.who.homes).map(Ok);
        homes.try_for_each_concurrent(AT_ONCE, |(broker, home)| self.home(*broker, home, joins)).await
    }

    async fn home(&self, broker: BrokerId, home: &HostName, joins: bool) -> Result<(), LedgerError> {
        let ledger = self.inner.as_ref();
        let holder = match home_holder(ledger, broker).await? {
            None if joins && *home == self.who.here => {
                let ours = HomeHolder { home: home.clone(), at: self.now() };
                Some(first(ledger, &home_cell(broker), &ours).await?)
            }
            holder => holder,
        };
        let Some(holder) = holder.filter(|holder| holder.home != *home) else { return Ok(()) };
        let why = format!(
            "the configuration says that the home of broker {broker} is {home}, and {} is registered as it (since \
             {:.0}): correct `home`. If the broker was moved, run `understudy ledger adopt` on its home",
            holder.home, holder.at
        );
        Err(LedgerError::Distrusted { distrust: Distrust::WrongHome, why })
    }
}
