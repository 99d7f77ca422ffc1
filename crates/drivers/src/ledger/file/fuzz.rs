//! Fuzz targets: see [`kafka::fuzz`].

use std::path::Path;

use super::journal::{parse, parse_each};
use super::json;
use super::record::{encode, split};
use recovery::event::Event;
use recovery::journal::EpochJournal;
use recovery::model::{BrokerId, Epoch, LedgerStanding};

const BROKER: BrokerId = BrokerId(1);
const EPOCH: Epoch = Epoch(1);

/// The whole lines of a file are those that were written, whatever follows them.
pub fn lines(bytes: &[u8]) {
    if let Ok(lines) = split(bytes) {
        let written: String = lines.texts.iter().map(|text| encode(text)).collect();
        assert_eq!(written.as_bytes(), &bytes[..lines.whole]);
        assert_eq!(lines.torn.is_none(), lines.whole == bytes.len());
    }
    // One line of any text, and a next one that broke off.
    let text = String::from_utf8_lossy(bytes).replace('\n', " ");
    let line = encode(&text);
    let whole = split(line.as_bytes());
    assert!(whole.is_ok_and(|lines| lines.texts == [text.as_str()] && lines.torn.is_none()));
    let broken = [line.as_bytes(), &line.as_bytes()[..line.len() / 2]].concat();
    assert!(split(&broken).is_ok_and(|lines| lines.texts == [text.as_str()] && lines.torn.is_some()));
}

/// A journal that is accepted is written and read again as the same, and everything can be asked of it.
/// Input: the file, or its texts without the frames, so that the checksum does not keep everything out.
pub fn journal(bytes: &[u8]) {
    for file in [bytes, &framed(bytes)] {
        let Some(read) = journal_of(file) else { continue };
        let _ = LedgerStanding::after(&"kafka-1".into(), std::slice::from_ref(&read));
        let line = json(&read.records).map(|text| encode(&text)).unwrap_or_default();
        assert_eq!(journal_of(line.as_bytes()), Some(read));
    }
}

fn journal_of(file: &[u8]) -> Option<EpochJournal> {
    parse(BROKER, EPOCH, Path::new("/ledger/broker-1/epoch-1.journal"), file).ok().map(|read| read.value)
}

/// As [`journal`], for a file of decisions.
pub fn decisions(bytes: &[u8]) {
    for file in [bytes, &framed(bytes)] {
        let Some(read) = decisions_of(file) else { continue };
        let lines: String = read.iter().map(|event| encode(&json(event).unwrap_or_default())).collect();
        assert_eq!(decisions_of(lines.as_bytes()), Some(read));
    }
}

fn decisions_of(file: &[u8]) -> Option<Vec<Event>> {
    let path = Path::new("/ledger/broker-1/decisions-a.journal");
    parse_each::<Event>(path, file).ok().map(|read| read.value)
}

/// Each line of the input as the text of a line of the ledger.
fn framed(bytes: &[u8]) -> Vec<u8> {
    let texts = String::from_utf8_lossy(bytes);
    texts.lines().map(encode).collect::<String>().into_bytes()
}
