//! One line of a ledger file, framed so that a whole line is told from a torn one and from a damaged one.
//!
//! ```text
//! v1 <crc32c of the text, 8 hex digits> <length of the text in bytes> <text, JSON>\n
//! ```
//!
//! One append is one line, however many records it carries: after a crash all of it is there or none.

/// The version of the framing that this program writes.
const VERSION: &str = "v1";

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Flaw {
    /// Fewer bytes than its own header says.
    #[error("the line breaks off")]
    Short,
    /// More bytes than its own header says.
    #[error("the line goes on after the length it states")]
    Long,
    /// The text is not the one the checksum was made of.
    #[error("the checksum does not match the text")]
    Checksum,
    /// Another version's line.
    #[error("the line has format {0}, and this program knows {VERSION}")]
    Version(String),
    /// Not one of our lines.
    #[error("this is not a line of the ledger")]
    Malformed,
}

impl Flaw {
    /// Whether a write that was cut short can look like this. A torn write never makes a line longer than it
    /// says, and a line of a newer version is not ours to cut off.
    fn may_be_torn(&self) -> bool {
        matches!(self, Self::Short | Self::Checksum | Self::Malformed)
    }
}

/// The line for `text`, which must be free of line breaks, as compact JSON is.
pub(super) fn encode(text: &str) -> String {
    format!("{}{text}\n", header(text))
}

fn header(text: &str) -> String {
    format!("{VERSION} {:08x} {} ", crc32c::crc32c(text.as_bytes()), text.len())
}

/// The text of a line, which is given without its line break.
pub(super) fn decode(line: &[u8]) -> Result<&str, Flaw> {
    let mut fields = line.splitn(4, |byte| *byte == b' ');
    let version = fields.next().unwrap_or_default();
    let (Some(_), Some(length), Some(text)) = (fields.next(), fields.next(), fields.next()) else {
        let torn = VERSION.as_bytes().starts_with(version) || version == VERSION.as_bytes();
        return Err(if torn { Flaw::Short } else { Flaw::Malformed });
    };
    if version != VERSION.as_bytes() {
        return Err(foreign(version));
    }
    let length: usize =
        std::str::from_utf8(length).ok().and_then(|l| l.parse().ok()).ok_or(Flaw::Malformed)?;
    // After a crash the end of a file may read as zeros, the line break too.
    if text.len() < length || (text.len() == length + 1 && text.ends_with(&[0])) {
        return Err(Flaw::Short);
    }
    if text.len() > length {
        return Err(Flaw::Long);
    }
    let text = std::str::from_utf8(text).map_err(|_| Flaw::Checksum)?;
    // The header is compared as it was written: one that merely parses to the same numbers has been changed.
    if line.starts_with(header(text).as_bytes()) { Ok(text) } else { Err(Flaw::Checksum) }
}

fn foreign(version: &[u8]) -> Flaw {
    match std::str::from_utf8(version) {
        Ok(v) if v.strip_prefix('v').is_some_and(|n| n.parse::<u32>().is_ok()) => Flaw::Version(v.to_owned()),
        _ => Flaw::Malformed,
    }
}

/// A file's lines.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    /// The texts of the whole lines, in order.
    pub(super) texts: Vec<&'a str>,
    /// Where the whole lines end, in bytes.
    pub(super) whole: usize,
    /// What is wrong with the last line, where a write was cut short. It was never confirmed to anybody.
    pub(super) torn: Option<Flaw>,
}

/// Splits a file into its lines. A torn last line is set aside.
///
/// # Errors
/// The number of the damaged line, from 1, and what is wrong with it.
pub(super) fn split(bytes: &[u8]) -> Result<Lines<'_>, (usize, Flaw)> {
    let mut lines = Lines { texts: Vec::new(), whole: 0, torn: None };
    while let Some(rest) = bytes.get(lines.whole..).filter(|rest| !rest.is_empty()) {
        let end = rest.iter().position(|byte| *byte == b'\n');
        let last = end.is_none_or(|end| end + 1 == rest.len());
        match (decode(&rest[..end.unwrap_or(rest.len())]), end) {
            (Ok(text), Some(end)) => {
                lines.texts.push(text);
                lines.whole += end + 1;
            }
            (Ok(_), None) => return Ok(Lines { torn: Some(Flaw::Short), ..lines }),
            (Err(flaw), _) if last && flaw.may_be_torn() => return Ok(Lines { torn: Some(flaw), ..lines }),
            (Err(flaw), _) => return Err((lines.texts.len() + 1, flaw)),
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_format_is_what_the_documentation_says() {
        assert_eq!(encode(r#"{"a":1}"#), "v1 cff7d56a 7 {\"a\":1}\n");
    }

    #[test]
    fn each_flaw_has_its_name() {
        let line = encode("[1,2]");
        let line = line.trim_end();
        assert_eq!(decode(line.as_bytes()), Ok("[1,2]"));
        assert_eq!(decode(&line.as_bytes()[..line.len() - 1]), Err(Flaw::Short));
        assert_eq!(decode(b"v1 00"), Err(Flaw::Short));
        assert_eq!(decode(format!("{line}x").as_bytes()), Err(Flaw::Long));
        assert_eq!(decode(line.replace("[1", "[3").as_bytes()), Err(Flaw::Checksum));
        assert_eq!(decode(line.replace("v1", "v2").as_bytes()), Err(Flaw::Version("v2".into())));
        assert_eq!(decode(&[0; 40]), Err(Flaw::Malformed));
    }

    #[test]
    fn a_newer_version_is_never_taken_for_a_torn_line() {
        let newer = encode("[1]").replace("v1", "v2");
        assert_eq!(split(newer.as_bytes()).unwrap_err(), (1, Flaw::Version("v2".into())));
    }

    #[test]
    fn a_lost_line_break_is_damage() {
        let joined = encode("[1]").replace('\n', "") + &encode("[2]");
        assert_eq!(split(joined.as_bytes()).unwrap_err(), (1, Flaw::Long));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(texts in prop::collection::vec("[^\n]{0,80}", 0..6)) {
            let file: String = texts.iter().map(|text| encode(text)).collect();
            let lines = split(file.as_bytes()).unwrap();
            prop_assert_eq!(&lines.texts, &texts);
            prop_assert_eq!((lines.whole, lines.torn), (file.len(), None));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
            let _ = split(&bytes);
        }

        #[test]
        fn arbitrary_ends_never_panic_and_never_hide_a_whole_line(end in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut file = encode("[1]").into_bytes();
            file.extend(end);
            if let Ok(lines) = split(&file) {
                prop_assert_eq!(lines.texts.first(), Some(&"[1]"));
            }
        }

        #[test]
        fn one_flipped_bit_before_the_last_line_is_damage(
            texts in prop::collection::vec("[a-z0-9,\\[\\]]{1,30}", 2..5), at in any::<prop::sample::Index>(), bit in 0..8u8,
        ) {
            let mut file: Vec<u8> = texts.iter().flat_map(|text| encode(text).into_bytes()).collect();
            let last = encode(texts.last().unwrap()).len();
            let at = at.index(file.len() - last);
            file[at] ^= 1 << bit;
            prop_assert!(split(&file).is_err(), "flipped bit {} of byte {}", bit, at);
        }
    }
}
