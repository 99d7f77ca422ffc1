//! Reading a journal, and adding to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::layout::{LONGEST_FILE, damaged, failed, is_orders, unavailable};
use super::record::{Flaw, encode, split};
use super::turn::{Alone, Turn, Turns};
use crate::bounded;
use recovery::format;
use recovery::journal::{Claim, Entry, EpochJournal, Record};
use recovery::model::{BrokerId, Epoch};
use recovery::ports::LedgerError;

/// What to do about a damaged journal. Moving it away instead would make an old owner the present one.
const RESTORE: &str =
    "restore the file from a storage snapshot; until then nothing is done about this broker";
/// What to do about damaged decisions: nothing but history depends on them.
const MOVE_AWAY: &str = "move the file away; it holds past decisions only";
/// What to do about a damaged order book: without it nobody knows what is paused or was released.
const RESTORE_ORDERS: &str = "restore the file from a storage snapshot; until then no takeover is started, for it holds pauses and orders";

/// How often a file that another process adds to is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// What a file holds, and where its whole lines end.
#[derive(Debug)]
pub(super) struct Content<T> {
    pub(super) value: T,
    /// In bytes.
    whole: usize,
    torn: Option<Flaw>,
}

/// Understands the journal of an epoch.
///
/// # Errors
/// `Damaged`, with the line.
pub(super) fn parse(
    broker: BrokerId,
    epoch: Epoch,
    path: &Path,
    bytes: &[u8],
) -> Result<Content<EpochJournal>, LedgerError> {
    let place = |line: usize| format!("{}, line {line}", path.display());
    let bad = |line: usize, why: String| damaged(place(line), format!("{why}; {RESTORE}"));
    let lines = split(bytes).map_err(|(line, flaw)| flawed(place(line), &flaw, RESTORE))?;
    let mut records: Vec<Record> = Vec::new();
    for (line, text) in (1..).zip(&lines.texts) {
        let batch: Vec<Record> =
            format::read(text.as_bytes()).map_err(|error| error.at(place(line), RESTORE))?;
        for record in batch {
            if record.seq != records.len() as u64 {
                let why = format!("record {} where {} must be", record.seq, records.len());
                return Err(bad(line, why));
            }
            records.push(record);
        }
    }
    let claim = claim_of(&records).ok_or_else(|| bad(1, "a journal must begin with a claim".into()))?;
    if (claim.plan.broker, claim.plan.epoch) != (broker, epoch) {
        let (b, e) = (claim.plan.broker, claim.plan.epoch);
        return Err(bad(1, format!("it claims epoch {e} of broker {b}: the file is in a foreign place")));
    }
    let value = EpochJournal { broker, epoch, claim, records };
    Ok(Content { value, whole: lines.whole, torn: lines.torn })
}

fn claim_of(records: &[Record]) -> Option<Claim> {
    match &records.first()?.entry {
        Entry::Claimed { claim } => Some((**claim).clone()),
        _ => None,
    }
}

/// Understands a file of decisions or the like: one value a line.
///
/// # Errors
/// `Damaged`, with the line.
pub(super) fn parse_each<T: DeserializeOwned>(
    path: &Path,
    bytes: &[u8],
) -> Result<Content<Vec<T>>, LedgerError> {
    let is_orders = path.file_name().and_then(|name| name.to_str()).is_some_and(is_orders);
    let remedy = if is_orders { RESTORE_ORDERS } else { MOVE_AWAY };
    let place = |line: usize| format!("{}, line {line}", path.display());
    let lines = split(bytes).map_err(|(line, flaw)| flawed(place(line), &flaw, remedy))?;
    let understood = |(line, text): (usize, &&str)| {
        format::read(text.as_bytes()).map_err(|error| error.at(place(line), remedy))
    };
    let value = (1..).zip(&lines.texts).map(understood).collect::<Result<_, _>>()?;
    Ok(Content { value, whole: lines.whole, torn: lines.torn })
}

/// A line that is not one of ours is damaged, or a newer understudy's.
pub(super) fn flawed(place: String, flaw: &Flaw, remedy: &str) -> LedgerError {
    match flaw {
        Flaw::Version(_) => format::newer(place, flaw),
        _ => damaged(place, format!("{flaw}; {remedy}")),
    }
}

/// Refuses once the caller has given up, so that what hung on a dead server does not happen an hour later.
pub(super) fn in_time(deadline: Instant, action: impl FnOnce() -> String) -> Result<(), LedgerError> {
    if Instant::now() < deadline {
        return Ok(());
    }
    Err(unavailable(action(), "the file system answered too late; nothing was written"))
}

/// A file that is open for adding to it, with this process being the only one of this host that adds.
pub(super) struct Tail<'a> {
    path: &'a Path,
    // Closed before the others are given back.
    file: File,
    _alone: Option<Alone>,
    _turn: Turn<'a>,
    deadline: Instant,
}

impl<'a> Tail<'a> {
    /// Opens the file in its turn, and waits until `deadline` while another process adds to it.
    ///
    /// Only one host ever adds to a file, and [`Alone`] keeps two processes of that host apart, such as the
    /// daemon and a command. It is a courtesy: nobody's safety rests on it, and where the host has none of it
    /// we go on without. Then two writers at once can at worst write the same sequence number twice, which
    /// readers report as damage; they cannot overwrite each other, for the file is open in append mode.
    pub(super) fn open(
        turns: &'a Turns,
        path: &'a Path,
        create: bool,
        deadline: Instant,
    ) -> Result<Self, LedgerError> {
        let turn = turns.take(path)?;
        let file = OpenOptions::new().read(true).append(true).create(create).open(path);
        let file = file.map_err(failed("open", path))?;
        loop {
            let alone = match Alone::with(&file) {
                Ok(None) if Instant::now() < deadline => {
                    thread::sleep(RETRY);
                    continue;
                }
                Ok(None) => {
                    let why = "another process of this host is adding to it all the time: is a second agent running?";
                    return Err(unavailable(format!("add to {}", path.display()), why));
                }
                answer => answer.ok().flatten(),
            };
            return Ok(Self { path, file, _alone: alone, _turn: turn, deadline });
        }
    }

    pub(super) fn read(&mut self) -> Result<Vec<u8>, LedgerError> {
        let mut file = &self.file;
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| bounded::read(file, LONGEST_FILE));
        read.map_err(failed("read", self.path))
    }

    /// Adds one line after what was read, durably: all of it or nothing. A torn last line is cut off first.
    pub(super) fn add<T>(&mut self, read: &Content<T>, text: &str) -> Result<(), LedgerError> {
        let Content { whole, torn, .. } = read;
        if let Some(flaw) = torn {
            tracing::warn!(path = %self.path.display(), kept_bytes = *whole, %flaw,
                "cutting off a last line whose write was interrupted; nobody was told that it was written");
            self.cut(*whole).map_err(failed("cut the torn last line off", self.path))?;
        }
        in_time(self.deadline, || format!("add to {}", self.path.display()))?;
        let line = encode(text);
        if let Err(error) = self.write(line.as_bytes()) {
            // Best effort: what stays is a torn line, which the next one to add cuts off.
            let _ = self.cut(*whole);
            return Err(failed("add to", self.path)(error));
        }
        if self.read()?.get(*whole..) == Some(line.as_bytes()) {
            return Ok(());
        }
        let why = "something else wrote to it at the same moment: is a second agent running under this host's name?";
        Err(unavailable(format!("add to {}", self.path.display()), why))
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        self.file.write_all(line)?;
        self.file.sync_all()
    }

    fn cut(&mut self, length: usize) -> io::Result<()> {
        self.file.set_len(length as u64)?;
        self.file.sync_all()
    }
}
