//! Two machines that say the same host's name: the second one is refused, and the first one is told.

use super::{KnownLedger, NameHolder, rival, rival_cell, write_next};
use crate::ports::LedgerError;

impl KnownLedger {
    /// Writes down, once, that this machine says a name that another one has.
    pub(super) async fn tell_the_holder(&self, ours: &str) -> Result<(), LedgerError> {
        let known = rival(self.inner.as_ref(), &self.who.here).await?;
        if known.is_some_and(|known| known.instance == ours) {
            return Ok(());
        }
        let us = NameHolder { instance: ours.to_owned(), at: self.now(), left: None };
        write_next(self.inner.as_ref(), &rival_cell(&self.who.here), &us).await
    }

    /// Tells that another machine says this host's name. It is refused, so nothing else is done about it.
    pub(super) async fn look_for_rivals(&self, holder: &NameHolder) -> Result<(), LedgerError> {
        if self.trusted().told {
            return Ok(());
        }
        if let Some(why) = self.rivalry(holder).await? {
            tracing::warn!(host = %self.who.here, "{why}");
            self.trusted().told = true;
        }
        Ok(())
    }

    pub(super) async fn rivalry(&self, holder: &NameHolder) -> Result<Option<String>, LedgerError> {
        let rival = rival(self.inner.as_ref(), &self.who.here).await?;
        let rival = rival.filter(|rival| rival.instance != holder.instance && rival.at > holder.at);
        Ok(rival.map(|rival| {
            format!(
                "another machine uses this host's name, {} (instance {}, {:.0}); it is refused. Give it its own \
                 `agent.host`",
                self.who.here, rival.instance, rival.at
            )
        }))
    }
}
