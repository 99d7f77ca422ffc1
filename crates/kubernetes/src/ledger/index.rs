//! The newest epoch of every broker, in one small object.
//!
//! A claim raises `begun` before it makes the epoch's object, and `claimed` after. So no epoch is newer than `begun`;
//! and an epoch up to `claimed` whose object is not there was removed, which is damage and never "it was not claimed".

use recovery::model::{BrokerId, Epoch};

use super::Stop;
use super::book::{Book, Full, damaged, meta};
use super::names::{Journal, Names, number};
use crate::client::Asking;
use crate::crd::{LABEL, LedgerIndex, LedgerIndexSpec, LedgerJournal, OF_BROKER};

/// The index; `None` before the first claim of any broker.
pub(super) async fn read(asking: &Asking<'_>, names: &Names) -> Result<Option<LedgerIndex>, Stop> {
    let name = names.index();
    if let Some(index) = asking.get::<LedgerIndex>(&name).await? {
        return Ok(Some(index));
    }
    let label = format!("{LABEL}={},{OF_BROKER}", names.ledger());
    if !asking.any::<LedgerJournal>(&label).await? {
        return Ok(None);
    }
    // Unless somebody has made it meanwhile, it was removed.
    match asking.get::<LedgerIndex>(&name).await? {
        Some(index) => Ok(Some(index)),
        None => Err(damaged(format!("LedgerIndex {name}"), "it is gone, and there are takeovers").into()),
    }
}

/// What a broker's entries say: begun, claimed.
pub(super) fn of(index: Option<&LedgerIndex>, broker: BrokerId) -> (Epoch, Epoch) {
    let broker = broker.to_string();
    let of = |map: &std::collections::BTreeMap<String, i64>| {
        Epoch(map.get(&broker).and_then(|epoch| u64::try_from(*epoch).ok()).unwrap_or_default())
    };
    index.map_or_else(Default::default, |index| (of(&index.spec.begun), of(&index.spec.claimed)))
}

/// The newest epoch of a broker.
pub(super) async fn newest(
    asking: &Asking<'_>,
    names: &Names,
    full: &Full,
    broker: BrokerId,
) -> Result<Option<(Epoch, Book)>, Stop> {
    let index = read(asking, names).await?;
    let (begun, claimed) = of(index.as_ref(), broker);
    // Whoever set out to claim an epoch may have died before it was made; nobody sets out for the one after it then.
    for epoch in [begun, Epoch(begun.0.saturating_sub(1))] {
        if epoch == Epoch::default() {
            break;
        }
        if let Some(book) = Book::read(asking, names, full, Journal::Epoch(broker, epoch)).await? {
            return Ok(Some((epoch, book)));
        }
        if epoch <= claimed {
            return Err(gone(names, broker, epoch));
        }
    }
    Ok(None)
}

/// An epoch that was claimed, and whose object is not there.
pub(super) fn gone(names: &Names, broker: BrokerId, epoch: Epoch) -> Stop {
    let name = names.page(Journal::Epoch(broker, epoch), 0);
    damaged(format!("LedgerJournal {name}"), "it is gone, and the epoch was claimed").into()
}

/// Sees to it that the entries of a broker are at least these.
pub(super) async fn raise(
    asking: &Asking<'_>,
    names: &Names,
    broker: BrokerId,
    (begun, claimed): (Epoch, Epoch),
) -> Result<(), Stop> {
    loop {
        let found = read(asking, names).await?;
        let was = of(found.as_ref(), broker);
        if was.0 >= begun && was.1 >= claimed {
            return Ok(());
        }
        let raised = (number(was.0.max(begun)), number(was.1.max(claimed)));
        let raise = |spec: &mut LedgerIndexSpec| {
            spec.begun.insert(broker.to_string(), raised.0);
            spec.claimed.insert(broker.to_string(), raised.1);
        };
        let written = match found {
            Some(mut index) => {
                raise(&mut index.spec);
                asking.replace(&index).await?
            }
            None => {
                let mut spec = LedgerIndexSpec::default();
                raise(&mut spec);
                asking.create(&LedgerIndex { metadata: meta(names, names.index()), spec }).await?
            }
        };
        if written.is_some() {
            return Ok(());
        }
    }
}
