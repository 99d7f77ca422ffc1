//! What is said to etcd and what it answers: its documented JSON gateway to the v3 API.
//!
//! Keys and values are base64, 64-bit numbers are text, and what has its default value is left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The bytes of a key or value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map(Self).map_err(D::Error::custom)
    }
}

/// A 64-bit number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number(pub(super) i64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map(Self).map_err(D::Error::custom)
    }
}

/// Which keys to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Range {
    key: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    range_end: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_order: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    keys_only: bool,
}

impl Range {
    /// One key.
    pub(super) fn of(key: &str) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    /// Every key that begins with `prefix`, which must not be empty, in their order.
    pub(super) fn below(prefix: &str) -> Self {
        Self { key: prefix.into(), range_end: Some(end_of(prefix)), ..Self::default() }
    }

    /// The last of the keys, without its value.
    pub(super) fn last_key(self) -> Self {
        Self { limit: Some(Number(1)), sort_order: Some("DESCEND"), keys_only: true, ..self }
    }

    /// As it was at a revision.
    pub(super) fn at(self, revision: Number) -> Self {
        Self { revision: Some(revision), ..self }
    }

    /// At most that many.
    pub(super) fn limited(self, limit: i64) -> Self {
        Self { limit: Some(Number(limit)), ..self }
    }

    /// Those after `key`.
    pub(super) fn after(self, key: &Bytes) -> Self {
        let mut next = key.clone();
        next.0.push(0);
        Self { key: next, ..self }
    }
}

/// The first key that does not begin with `prefix` any more. Prefixes here end with `/` or a digit, never
/// 0xff.
fn end_of(prefix: &str) -> Bytes {
    let mut end = Bytes::from(prefix);
    if let Some(last) = end.0.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

/// A condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Compare {
    key: Bytes,
    result: &'static str,
    target: &'static str,
    mod_revision: Number,
}

impl Compare {
    /// The key was last written at `revision`; 0: there is no such key.
    pub(super) fn written_at(key: &str, revision: Number) -> Self {
        Self { key: key.into(), result: "EQUAL", target: "MOD", mod_revision: revision }
    }

    /// There is no such key.
    pub(super) fn absent(key: &str) -> Self {
        Self::written_at(key, Number(0))
    }
}

/// A change that a transaction makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) enum Change {
    /// Write a key.
    #[serde(rename = "request_put")]
    Put {
        key: Bytes,
        value: Bytes,
        #[serde(skip_serializing_if = "Option::is_none")]
        lease: Option<Number>,
    },
    /// Remove a key, or all from it up to the end.
    #[serde(rename = "request_delete_range")]
    Delete {
        key: Bytes,
        #[serde(skip_serializing_if = "Option::is_none")]
        range_end: Option<Bytes>,
    },
}

impl Change {
    /// Writes a key.
    pub(super) fn put(key: &str, value: &str) -> Self {
        Self::Put { key: key.into(), value: value.into(), lease: None }
    }

    /// Writes a key that goes when the lease runs out.
    pub(super) fn put_leased(key: &str, value: &str, lease: Number) -> Self {
        Self::Put { key: key.into(), value: value.into(), lease: Some(lease) }
    }

    /// Removes a key.
    pub(super) fn delete(key: &str) -> Self {
        Self::Delete { key: key.into(), range_end: None }
    }

    /// Removes every key from `first` up to, and without, `end`.
    pub(super) fn delete_until(first: &str, end: &str) -> Self {
        Self::Delete { key: first.into(), range_end: Some(end.into()) }
    }

    /// How much of etcd's limit for a request it takes, in bytes.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.0.len() + value.0.len(),
            Self::Delete { key, .. } => key.0.len(),
        }
    }
}

/// All changes or none: if every condition holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Txn {
    #[serde(rename = "compare")]
    pub(super) only_if: Vec<Compare>,
    #[serde(rename = "success")]
    pub(super) changes: Vec<Change>,
}

/// Several keys as they are at one moment.
#[derive(Debug, Serialize)]
pub(super) struct Reads {
    success: Vec<RequestRange>,
}

#[derive(Debug, Serialize)]
struct RequestRange {
    request_range: Range,
}

impl Reads {
    /// Of these keys, in this order.
    pub(super) fn of(keys: &[String]) -> Self {
        let reads = keys.iter().map(|key| RequestRange { request_range: Range::of(key) });
        Self { success: reads.collect() }
    }
}

/// The answer to [`Reads`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AllRead {
    pub(super) header: Header,
    pub(super) responses: Vec<ResponseRange>,
}

/// The answer to one of them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ResponseRange {
    pub(super) response_range: Found,
}

/// What stands above every answer.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) cluster_id: String,
    pub(super) revision: Number,
}

/// One key with its value.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    pub(super) key: Bytes,
    pub(super) value: Bytes,
    pub(super) create_revision: Number,
    pub(super) mod_revision: Number,
}

impl KeyValue {
    /// The key, for people.
    pub(super) fn name(&self) -> String {
        String::from_utf8_lossy(&self.key.0).into_owned()
    }
}

/// The answer to a [`Range`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Found {
    pub(super) header: Header,
    pub(super) kvs: Vec<KeyValue>,
    pub(super) more: bool,
}

/// The answer to a [`Txn`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Committed {
    pub(super) header: Header,
    /// Whether the conditions held.
    pub(super) succeeded: bool,
}

/// The answer to a request for a lease.
#[derive(Debug, Deserialize)]
pub(super) struct Granted {
    #[serde(rename = "ID")]
    pub(super) id: Number,
}

/// The answer to a renewal of a lease.
#[derive(Debug, Deserialize)]
pub(super) struct KeptAlive {
    pub(super) result: TimeToLive,
}

/// How long a lease lives from now.
#[derive(Debug, Deserialize)]
pub(super) struct TimeToLive {
    /// In seconds; none when the lease has run out.
    #[serde(rename = "TTL", default)]
    pub(super) seconds: Number,
}

/// The answer to a login.
#[derive(Debug, Deserialize)]
pub(super) struct Token {
    pub(super) token: String,
}

/// How one member is.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    pub(super) version: String,
    /// In bytes.
    pub(super) db_size: Number,
    /// Alarms and the like.
    pub(super) errors: Vec<String>,
}

/// A refusal.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    pub(super) message: String,
    /// The gRPC status.
    pub(super) code: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_written_as_the_gateway_reads_it() {
        let txn = Txn {
            only_if: vec![Compare::written_at("a", Number(7)), Compare::absent("b")],
            changes: vec![
                Change::put("a", "1"),
                Change::put_leased("c", "2", Number(9)),
                Change::delete("d"),
                Change::delete_until("e/0", "e/5"),
            ],
        };
        let expected = serde_json::json!({
            "compare": [
                {"key": "YQ==", "result": "EQUAL", "target": "MOD", "mod_revision": "7"},
                {"key": "Yg==", "result": "EQUAL", "target": "MOD", "mod_revision": "0"},
            ],
            "success": [
                {"request_put": {"key": "YQ==", "value": "MQ=="}},
                {"request_put": {"key": "Yw==", "value": "Mg==", "lease": "9"}},
                {"request_delete_range": {"key": "ZA=="}},
                {"request_delete_range": {"key": "ZS8w", "range_end": "ZS81"}},
            ],
        });
        assert_eq!(serde_json::to_value(&txn).unwrap(), expected);
    }

    #[test]
    fn several_keys_are_read_as_the_gateway_reads_it() {
        let expected = serde_json::json!({
            "success": [{"request_range": {"key": "YQ=="}}, {"request_range": {"key": "Yg=="}}],
        });
        let reads = Reads::of(&["a".to_owned(), "b".to_owned()]);
        assert_eq!(serde_json::to_value(&reads).unwrap(), expected);
        let said = r#"{"header":{"cluster_id":"1","revision":"12"},"succeeded":true,"responses":[
            {"response_range":{"header":{"revision":"12"},"kvs":[{"key":"YQ=="}],"count":"1"}},
            {"response_range":{"header":{"revision":"12"}}}]}"#;
        let read: AllRead = serde_json::from_str(said).unwrap();
        let found = read.responses.iter().map(|one| one.response_range.kvs.len());
        assert_eq!((read.header.revision, found.collect::<Vec<_>>()), (Number(12), vec![1, 0]));
    }

    #[test]
    fn what_is_left_out_of_an_answer_is_its_default() {
        let found: Found =
            serde_json::from_str(r#"{"header":{"cluster_id":"1","revision":"12"},"kvs":[{"key":"YQ=="}]}"#)
                .unwrap();
        assert_eq!(found.header.revision, Number(12));
        assert_eq!(
            (found.kvs[0].name(), &found.kvs[0].value, found.more),
            ("a".to_owned(), &Bytes(vec![]), false)
        );
        let lost: Committed = serde_json::from_str("{}").unwrap();
        assert!(!lost.succeeded);
        let gone: KeptAlive = serde_json::from_str(r#"{"result":{"ID":"99"}}"#).unwrap();
        assert_eq!(gone.result.seconds, Number(0));
    }

    #[test]
    fn a_prefix_ends_where_its_last_byte_does() {
        assert_eq!(end_of("a/"), "a0".into());
    }
}
