//! Small texts that are replaced as a whole, one version at a time: the ledger's cells, and what was decided lately.

use jiff::Timestamp;
use recovery::event::Event;
use recovery::format;
use recovery::model::BrokerId;
use recovery::ports::Cell;

use super::book::{self, RESTORE, meta};
use super::names::Names;
use super::{Stop, mark, unavailable};
use crate::client::Asking;
use crate::crd::{LedgerCell, LedgerCellSpec};

/// The decisions on a broker that are kept, in bytes; of more, the older half goes.
pub(super) const DECISIONS: usize = 256 << 10;

/// What a cell holds.
pub(super) async fn read(asking: &Asking<'_>, names: &Names, name: &str) -> Result<Option<Cell>, Stop> {
    Ok(asking.get::<LedgerCell>(&names.cell(name)).await?.map(|cell| held(&cell)))
}

fn held(cell: &LedgerCell) -> Cell {
    let version = u64::try_from(cell.spec.version).unwrap_or_default();
    Cell { version, text: cell.spec.text.clone() }
}

/// Writes a cell if its newest version is the one before; says what it holds then.
pub(super) async fn write(asking: &Asking<'_>, names: &Names, name: &str, cell: &Cell) -> Result<Cell, Stop> {
    loop {
        let found = asking.get::<LedgerCell>(&names.cell(name)).await?;
        let newest = found.as_ref().map(held);
        let due = newest.as_ref().map_or(0, |newest| newest.version) + 1;
        match newest {
            // It is this very one where an answer was lost.
            Some(newest) if cell.version != due => return Ok(newest),
            None if cell.version != due => {
                let action = format!("write version {} of {name}", cell.version);
                return Err(unavailable(action, format!("version {due} is due")).into());
            }
            _ => {}
        }
        if replace(asking, names, names.cell(name), found, cell.text.clone()).await? {
            return Ok(cell.clone());
        }
    }
}

/// Writes the next version. `false`: somebody else has written, which may have been this very attempt.
async fn replace(
    asking: &Asking<'_>,
    names: &Names,
    name: String,
    found: Option<LedgerCell>,
    text: String,
) -> Result<bool, Stop> {
    let written = match found {
        Some(mut found) => {
            found.spec.version += 1;
            found.spec.text = text;
            asking.replace(&found).await?
        }
        None => {
            let spec = LedgerCellSpec { version: 1, text };
            asking.create(&LedgerCell { metadata: meta(names, name), spec }).await?
        }
    };
    Ok(written.is_some())
}

/// Keeps a decision.
pub(super) async fn remember(
    asking: &Asking<'_>,
    names: &Names,
    broker: BrokerId,
    event: &Event,
) -> Result<(), Stop> {
    let (name, line) = (names.decisions(broker), book::line(&mark(), event)?);
    loop {
        let found = asking.get::<LedgerCell>(&name).await?;
        let kept = found.as_ref().map_or("", |cell| cell.spec.text.as_str());
        if kept.contains(&line) {
            return Ok(());
        }
        let text = format!("{}{line}", shortened(kept));
        if replace(asking, names, name.clone(), found, text).await? {
            return Ok(());
        }
    }
}

/// The newer half of what has grown beyond the limit.
fn shortened(kept: &str) -> &str {
    if kept.len() <= DECISIONS {
        return kept;
    }
    let half = kept.char_indices().map(|(n, _)| n).find(|n| *n >= kept.len() - DECISIONS / 2);
    let rest = &kept[half.unwrap_or(kept.len())..];
    rest.split_once('\n').map_or("", |(_, whole)| whole)
}

/// The decisions that are kept, oldest first.
pub(super) async fn remembered(
    asking: &Asking<'_>,
    names: &Names,
    broker: BrokerId,
) -> Result<Vec<Event>, Stop> {
    let name = names.decisions(broker);
    let Some(found) = asking.get::<LedgerCell>(&name).await? else { return Ok(Vec::new()) };
    let lines = found.spec.text.lines().map(|line| line.split_once(' ').map_or(line, |(_, json)| json));
    let events = lines.map(|json| format::read::<Event>(json.as_bytes()));
    let events: Result<Vec<Event>, _> = events.collect();
    let mut events = events.map_err(|error| error.at(format!("LedgerCell {name}"), RESTORE))?;
    events.sort_by_key(|event| event.at);
    Ok(events)
}

/// Writes a cell that holds nothing but when, and reads it back.
pub(super) async fn probe(asking: &Asking<'_>, names: &Names) -> Result<(), Stop> {
    let text = format!("{} {}", mark(), Timestamp::now());
    loop {
        let name = names.cell("probe");
        let found = asking.get::<LedgerCell>(&name).await?;
        if found.as_ref().is_some_and(|found| found.spec.text == text) {
            return Ok(());
        }
        // Another host that probes may be faster: read on until ours was there.
        replace(asking, names, name, found, text.clone()).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_decisions_the_newer_half_is_kept_in_whole_lines() {
        assert_eq!(shortened("a\nb\n"), "a\nb\n");
        let many: String = (0..40_000).map(|n| format!("{n} é\n")).collect();
        assert!(many.len() > DECISIONS);
        let rest = shortened(&many);
        assert!(rest.len() <= DECISIONS / 2 && rest.len() > DECISIONS / 3, "{}", rest.len());
        assert!(many.ends_with(rest) && rest.lines().next().unwrap().ends_with(" é"), "{rest}");
    }
}
