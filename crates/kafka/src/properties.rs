//! An editor for Java `.properties` files that leaves alone what it does not change.
//!
//! It reads a file the way `java.util.Properties.load(InputStream)` does, because that is how Kafka reads
//! `server.properties` and `meta.properties`: bytes are ISO-8859-1, the last of several equal keys wins.

use std::fmt::{self, Write as _};

/// A `.properties` file, line for line.
///
/// What is not changed is printed byte for byte as it was read: comments, order, odd separators,
/// continuation lines, line ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties {
    lines: Vec<Line>,
}

/// Text that Java refuses to load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `\\u` must be followed by four hexadecimal digits")]
pub struct PropertiesError {
    /// Line number, from 1.
    pub line: usize,
}

/// A logical line: a comment, a blank, or a property with all its continuation lines.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    /// As it stands in the file, with its line end.
    raw: Vec<u8>,
    /// `None` for comments and blanks.
    property: Option<(String, String)>,
}

impl Properties {
    /// Reads a file's content.
    ///
    /// # Errors
    /// When Java could not load it.
    pub fn parse(content: &[u8]) -> Result<Self, PropertiesError> {
        let mut lines = Vec::new();
        let mut rest = content;
        let mut number = 1;
        while !rest.is_empty() {
            let (raw, after) = rest.split_at(extent(rest).len);
            let property = property(raw).map_err(|Malformed| PropertiesError { line: number })?;
            lines.push(Line { raw: raw.to_vec(), property });
            number += ends(raw);
            rest = after;
        }
        Ok(Self { lines })
    }

    /// The value of `key`, as Java reads it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().filter(|(k, _)| *k == key).last().map(|(_, value)| value)
    }

    /// Every property in the order of the file; of equal keys the last one counts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.lines.iter().filter_map(|line| line.property.as_ref()).map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Gives `key` a value: in place where it was set last, or at the end.
    pub fn set(&mut self, key: &str, value: &str) {
        if self.get(key) == Some(value) {
            return;
        }
        let property = Some((key.to_owned(), value.to_owned()));
        let mut raw = written(key, value).into_bytes();
        let last = self.lines.iter_mut().rfind(|line| line.is(key));
        if let Some(line) = last {
            raw.extend_from_slice(line_end(&line.raw));
            *line = Line { raw, property };
        } else {
            self.close_last_line();
            raw.push(b'\n');
            self.lines.push(Line { raw, property });
        }
    }

    /// Removes every occurrence of `key`. Returns whether there was one.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.lines.len();
        self.lines.retain(|line| !line.is(key));
        self.lines.len() != before
    }

    /// The file's content.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.lines.iter().flat_map(|line| line.raw.iter().copied()).collect()
    }

    /// Ends the last line, so that a line that follows is not taken for its continuation.
    fn close_last_line(&mut self) {
        if let Some(line) = self.lines.last_mut() {
            while !extent(&line.raw).ended {
                line.raw.push(b'\n');
            }
        }
    }
}

/// As text for people: bytes that are not UTF-8 are replaced. Files are written with
/// [`Properties::to_bytes`].
impl fmt::Display for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.to_bytes()))
    }
}

impl Line {
    fn is(&self, key: &str) -> bool {
        self.property.as_ref().is_some_and(|(k, _)| k == key)
    }
}

/// How far a logical line reaches.
struct Extent {
    /// Bytes, with the line end.
    len: usize,
    /// Whether a line end closes it, and not the end of the file.
    ended: bool,
}

/// The first logical line of `text`.
fn extent(text: &[u8]) -> Extent {
    let comment = matches!(text.iter().find(|b| !is_blank(**b)), Some(b'#' | b'!'));
    let mut escaped = false;
    let mut visible = 0;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let end = line_end_at(text, at);
        at += end.max(1);
        if end > 0 {
            // A lone backslash continues nothing: what follows it may even be a comment.
            if comment || !escaped || visible == 1 {
                return Extent { len: at, ended: true };
            }
            escaped = false;
        } else {
            escaped = *byte == b'\\' && !escaped;
            visible += usize::from(!is_blank(*byte));
        }
    }
    Extent { len: at, ended: false }
}

/// The length of the line end at `at`; 0 if there is none.
fn line_end_at(text: &[u8], at: usize) -> usize {
    match (text.get(at), text.get(at + 1)) {
        (Some(b'\r'), Some(b'\n')) => 2,
        (Some(b'\r' | b'\n'), _) => 1,
        _ => 0,
    }
}

/// The line end that closes `raw`; empty if the end of the file does.
fn line_end(raw: &[u8]) -> &[u8] {
    if !extent(raw).ended {
        return &[];
    }
    let len = if raw.ends_with(b"\r\n") { 2 } else { 1 };
    &raw[raw.len() - len..]
}

/// How many line ends `raw` has.
fn ends(raw: &[u8]) -> usize {
    let mut at = 0;
    let mut count = 0;
    while at < raw.len() {
        let end = line_end_at(raw, at);
        count += usize::from(end > 0);
        at += end.max(1);
    }
    count
}

/// White space within a line, by Java's definition.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0c)
}

/// A `\u` without four hexadecimal digits.
struct Malformed;

fn property(raw: &[u8]) -> Result<Option<(String, String)>, Malformed> {
    if matches!(raw.iter().find(|b| !is_blank(**b)), Some(b'#' | b'!')) {
        return Ok(None);
    }
    let joined = joined(raw);
    if joined.is_empty() {
        return Ok(None);
    }
    let (key, value) = split(&joined);
    Ok(Some((unescaped(key)?, unescaped(value)?)))
}

/// The logical line without leading white space, line ends and the backslashes that continue it.
fn joined(raw: &[u8]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(raw.len());
    let mut escaped = false;
    let mut skipping = true;
    let mut at = 0;
    while let Some(byte) = raw.get(at) {
        let end = line_end_at(raw, at);
        at += end.max(1);
        if end > 0 {
            if escaped {
                joined.pop();
            }
            escaped = false;
            skipping = true;
        } else if !(skipping && is_blank(*byte)) {
            skipping = false;
            escaped = *byte == b'\\' && !escaped;
            joined.push(*byte);
        }
    }
    if escaped {
        // A backslash right before the end of the file continues nothing.
        joined.pop();
    }
    joined
}

/// Key and value, both still escaped.
fn split(joined: &[u8]) -> (&[u8], &[u8]) {
    let mut escaped = false;
    let is_end = |byte: &u8| {
        let end = !escaped && (is_blank(*byte) || matches!(byte, b'=' | b':'));
        escaped = *byte == b'\\' && !escaped;
        end
    };
    let key_len = joined.iter().position(is_end).unwrap_or(joined.len());
    let (key, rest) = joined.split_at(key_len);
    let rest = without_blanks(rest);
    let value = match rest {
        [b'=' | b':', value @ ..] => without_blanks(value),
        value => value,
    };
    (key, value)
}

fn without_blanks(text: &[u8]) -> &[u8] {
    let blanks = text.iter().take_while(|b| is_blank(**b)).count();
    &text[blanks..]
}

fn unescaped(text: &[u8]) -> Result<String, Malformed> {
    // Java strings are UTF-16: a character above U+FFFF is written as two escapes.
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        if *byte != b'\\' {
            units.push(u16::from(*byte));
            continue;
        }
        match bytes.next() {
            Some(b'u') => {
                let (digits, rest) = bytes.as_slice().split_at_checked(4).ok_or(Malformed)?;
                units.push(hexadecimal(digits)?);
                bytes = rest.iter();
            }
            Some(b't') => units.push(0x09),
            Some(b'n') => units.push(0x0a),
            Some(b'f') => units.push(0x0c),
            Some(b'r') => units.push(0x0d),
            Some(other) => units.push(u16::from(*other)),
            None => {}
        }
    }
    Ok(String::from_utf16_lossy(&units))
}

fn hexadecimal(digits: &[u8]) -> Result<u16, Malformed> {
    digits.iter().try_fold(0, |number: u16, digit| {
        let digit = char::from(*digit).to_digit(16).and_then(|d| u16::try_from(d).ok()).ok_or(Malformed)?;
        Ok(number << 4 | digit)
    })
}

/// A property as one line of ASCII, without a line end.
fn written(key: &str, value: &str) -> String {
    let mut line = String::with_capacity(key.len() + value.len() + 1);
    for c in key.chars() {
        let special = matches!(c, ' ' | '=' | ':' | '#' | '!');
        push_escaped(&mut line, c, special);
    }
    line.push('=');
    for (at, c) in value.chars().enumerate() {
        push_escaped(&mut line, c, at == 0 && c == ' ');
    }
    line
}

fn push_escaped(line: &mut String, c: char, special: bool) {
    match c {
        '\\' => line.push_str("\\\\"),
        '\t' => line.push_str("\\t"),
        '\n' => line.push_str("\\n"),
        '\r' => line.push_str("\\r"),
        '\u{c}' => line.push_str("\\f"),
        ' '..='~' if special => line.extend(['\\', c]),
        ' '..='~' => line.push(c),
        _ => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(line, "\\u{unit:04X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Properties {
        Properties::parse(text.as_bytes()).unwrap()
    }

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    #[track_caller]
    fn reads(text: &str, key: &str, value: &str) {
        assert_eq!(pairs(text), [(key.to_owned(), value.to_owned())], "{text:?}");
    }

    #[test]
    fn separators() {
        reads("a=b", "a", "b");
        reads("a:b", "a", "b");
        reads("a b", "a", "b");
        reads("  a \t=\x0c b \n", "a", "b ");
        reads("a==b", "a", "=b");
        reads("a = : b", "a", ": b");
        reads("a", "a", "");
        reads("=b", "", "b");
        reads("a\\ b\\=c\\:=d", "a b=c:", "d");
    }

    #[test]
    fn comments_and_blanks_are_no_properties() {
        assert_eq!(pairs("# a=b\n ! c=d\r\n\n \t\x0c\n#x\\\n"), []);
        // A comment is not continued, a property is, and a continuation is never a comment.
        assert_eq!(pairs("#x\\\na=b"), [("a".into(), "b".into())]);
        reads("a=b\\\n# c", "a", "b# c");
        reads(" \\\n# c\na=b", "a", "b");
    }

    #[test]
    fn continuation_lines() {
        reads("a=b,\\\n   c,\\\r\n\td", "a", "b,c,d");
        reads("a=b\\\\\n", "a", "b\\");
        reads("a=b\\", "a", "b");
        reads("a=b\\\n", "a", "b");
        reads("a\\\n =b", "a", "b");
        assert_eq!(pairs("a=b\\\n\nc=d"), [("a".into(), "b".into()), ("c".into(), "d".into())]);
    }

    #[test]
    fn escapes() {
        reads("a=\\t\\n\\r\\f\\\\\\q", "a", "\t\n\r\x0c\\q");
        reads("a=\\u00e9\\uD83D\\uDE00", "a", "é😀");
        // Java reads ISO-8859-1: the UTF-8 bytes of é are two characters to it.
        reads("a=é", "a", "Ã©");
    }

    #[test]
    fn malformed_escape_names_its_line() {
        let error = Properties::parse(b"a=b\\\n c\r\n# \\u\nd=\\u12g4\n").unwrap_err();
        assert_eq!(error, PropertiesError { line: 4 });
        assert!(Properties::parse(b"a=\\u12").is_err());
    }

    #[test]
    fn set_changes_the_last_of_equal_keys_and_nothing_else() {
        let mut file = parse("# head\r\na = 1\r\nb:2\r\na = 3\r\n\r\n! tail");
        assert_eq!(file.get("a"), Some("3"));
        file.set("a", "x y");
        assert_eq!(file.to_string(), "# head\r\na = 1\r\nb:2\r\na=x y\r\n\r\n! tail");
        file.set("b", "2");
        assert_eq!(file.to_string(), "# head\r\na = 1\r\nb:2\r\na=x y\r\n\r\n! tail");
    }

    #[test]
    fn set_appends_on_a_line_of_its_own() {
        for tail in ["", "\n", "\\", "\\\n", "\\\r", "\\\n  ", "\r"] {
            let mut file = parse(&format!("a=b{tail}"));
            file.set("c", "d");
            let again = Properties::parse(&file.to_bytes()).unwrap();
            assert_eq!(again.iter().collect::<Vec<_>>(), [("a", "b"), ("c", "d")], "{tail:?}");
        }
    }

    #[test]
    fn remove_drops_every_occurrence() {
        let mut file = parse("a=1\n# a\nb=2\na=\\\n 3\n");
        assert!(file.remove("a"));
        assert!(!file.remove("a"));
        assert_eq!(file.to_string(), "# a\nb=2\n");
    }

    /// Text rich in what matters to the format.
    fn file() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "\\", "\n", "\r", "\r\n", " ", "\t", "\x0c", "=", ":", "#", "!", "a", "b", "node.id", "u",
            "00e9", "\\u0041", "é", "x",
        ]);
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat().into_bytes())
    }

    fn word() -> impl Strategy<Value = String> {
        prop_oneof![Just("a".to_owned()), "[ -~]{0,6}", "\\PC{0,6}", "[\\s\\\\#=:!]{0,4}"]
    }

    proptest! {
        #[test]
        fn any_bytes_are_printed_as_they_were_read(content in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(file) = Properties::parse(&content) {
                prop_assert_eq!(file.to_bytes(), content);
            }
        }

        #[test]
        fn rich_text_is_printed_as_it_was_read(content in file()) {
            if let Ok(file) = Properties::parse(&content) {
                prop_assert_eq!(file.to_bytes(), content);
            }
        }

        #[test]
        fn what_is_set_is_read_back_and_the_rest_stays(content in file(), key in word(), value in word()) {
            let Ok(before) = Properties::parse(&content) else { return Ok(()) };
            let mut file = before.clone();
            file.set(&key, &value);
            prop_assert_eq!(file.get(&key), Some(value.as_str()));
            let again = Properties::parse(&file.to_bytes()).unwrap();
            prop_assert_eq!(again.get(&key), Some(value.as_str()));
            prop_assert_eq!(others(&again, &key), others(&before, &key));
        }

        #[test]
        fn what_is_removed_is_gone_and_the_rest_stays(content in file(), key in word()) {
            let Ok(before) = Properties::parse(&content) else { return Ok(()) };
            let mut file = before.clone();
            file.remove(&key);
            let again = Properties::parse(&file.to_bytes()).unwrap();
            prop_assert_eq!(again.get(&key), None);
            prop_assert_eq!(others(&again, &key), others(&before, &key));
        }
    }

    fn others<'a>(file: &'a Properties, key: &str) -> Vec<(&'a str, &'a str)> {
        file.iter().filter(|(k, _)| *k != key).collect()
    }
}
