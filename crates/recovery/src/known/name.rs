//! Who has a host's name: the first machine that says it, until it gives the name up or a person gives it to another.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{KnownLedger, cell, first, parse, read, unavailable, write_next};
use crate::model::{Distrust, HostName};
use crate::ports::{Ledger, LedgerError};

/// Who has a host's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameHolder {
    /// The instance, from its state directory.
    pub instance: String,
    /// Since when.
    pub at: Timestamp,
    /// When it gave the name up, after everything of it had ended: whoever says the name next has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Timestamp>,
}

/// Who has a host's name; `None` if nobody said it yet.
///
/// # Errors
/// When it cannot be read.
pub async fn name_holder(ledger: &dyn Ledger, host: &HostName) -> Result<Option<NameHolder>, LedgerError> {
    read(ledger, &name_cell(host)).await
}

/// Gives a host's name to `instance`, whoever had it. For a person who knows that the other machine is gone.
///
/// # Errors
/// When it cannot be written.
pub async fn give_name(
    ledger: &dyn Ledger,
    host: &HostName,
    instance: &str,
    at: Timestamp,
) -> Result<(), LedgerError> {
    let holder = NameHolder { instance: instance.to_owned(), at, left: None };
    write_next(ledger, &name_cell(host), &holder).await
}

/// Gives up the name that `instance` has: nothing of it acts or writes any more. Whether it had it.
///
/// # Errors
/// When it cannot be written.
pub async fn leave_name(
    ledger: &dyn Ledger,
    host: &HostName,
    instance: &str,
    at: Timestamp,
) -> Result<bool, LedgerError> {
    match name_holder(ledger, host).await? {
        Some(holder) if holder.instance == instance => {
            write_next(ledger, &name_cell(host), &NameHolder { left: Some(at), ..holder }).await?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

pub(super) fn name_cell(host: &HostName) -> String {
    format!("host-{host}")
}

impl KnownLedger {
    fn holding(&self, instance: &str) -> NameHolder {
        NameHolder { instance: instance.to_owned(), at: self.now(), left: None }
    }

    /// Takes a name that was given up, unless somebody is faster. Returns who has it.
    async fn succeed(&self, instance: &str) -> Result<NameHolder, LedgerError> {
        let (ledger, name) = (self.inner.as_ref(), name_cell(&self.who.here));
        let gone = || unavailable(&format!("read {name}"), "it is gone");
        let newest = ledger.cell(&name).await?.ok_or_else(gone)?;
        let stands: NameHolder = parse(&name, &newest)?;
        if stands.left.is_none() {
            return Ok(stands);
        }
        let ours = cell(newest.version + 1, &self.holding(instance))?;
        parse(&name, &ledger.set_cell(&name, &ours).await?)
    }

    pub(super) async fn name(&self, joins: bool) -> Result<(), LedgerError> {
        let here = &self.who.here;
        let ours = if joins {
            Some(self.who.machine.ensure_instance()?)
        } else {
            self.who.machine.instance().unwrap_or_default()
        };
        let holder = name_holder(self.inner.as_ref(), here).await?;
        let holder = match (holder, &ours) {
            (None, Some(instance)) if joins => {
                first(self.inner.as_ref(), &name_cell(here), &self.holding(instance)).await?
            }
            (Some(left), Some(instance)) if joins && left.left.is_some() => self.succeed(instance).await?,
            (None, _) => return Ok(()),
            (Some(holder), _) => holder,
        };
        match ours {
            Some(ours) if ours == holder.instance => self.look_for_rivals(&holder).await,
            _ if holder.left.is_some() => Ok(()),
            // Without a state directory it cannot be known whether this is the one.
            None => Ok(()),
            Some(ours) => {
                if joins {
                    self.tell_the_holder(&ours).await?;
                }
                let why = format!(
                    "another machine has the name {here} in the ledger (instance {}, since {:.0}; this is instance {ours}): \
                     give each machine its own `agent.host`. If that machine is gone for good and this one replaces it, as a \
                     pod does an earlier one of its name, run `understudy ledger adopt` here",
                    holder.instance, holder.at
                );
                Err(LedgerError::Distrusted { distrust: Distrust::NameTaken, why })
            }
        }
    }
}
