//! Values as ONTAP really sends them: numbers and booleans also as strings, words that a newer release
//! invented, and nothing at all for what is not set.
//!
//! A scalar that cannot be read counts as absent, so that one odd value does not hide a whole answer. Absent
//! therefore means "not known", never "zero" or "off". A value of another shape, such as an object for a
//! number, is an error.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo, Timestamp};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name and UUID of another object. Either may be absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reference {
    /// The name.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The UUID.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

impl Reference {
    /// A reference by name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), uuid: None }
    }

    /// Whether it names this object.
    #[must_use]
    pub fn is_named(&self, name: &str) -> bool {
        self.name.as_deref() == Some(name)
    }
}

/// Words of the API as an enum that keeps what it does not know.
macro_rules! open_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* $variant,)+
            /// A word that this version of the library does not know.
            Unknown(String),
        }

        impl $name {
            /// Every word that this version knows.
            pub const KNOWN: &'static [&'static str] = &[$($word),+];

            /// The word that ONTAP uses.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)+
                    Self::Unknown(word) => word,
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                // A release may write them in capitals, as the command line does.
                let is = |known: &str| word.trim().eq_ignore_ascii_case(known);
                match word {
                    $(_ if is($word) => Self::$variant,)+
                    other => Self::Unknown(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Ok(Self::from($crate::value::word(deserializer)?.as_str()))
            }
        }
    };
}
pub(crate) use open_enum;

/// A scalar, whatever its type, as text. `None`: null.
fn scalar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(None),
        Value::Bool(value) => Ok(Some(value.to_string())),
        Value::Number(value) => Ok(Some(value.to_string())),
        Value::String(value) => Ok(Some(value)),
        Value::Array(_) => Err(D::Error::custom("an array where one value was expected")),
        Value::Object(_) => Err(D::Error::custom("an object where one value was expected")),
    }
}

/// A word of an open enum; null is an empty word.
pub(crate) fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(scalar(deserializer)?.unwrap_or_default())
}

/// Text; a number or boolean is taken as written.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    scalar(deserializer)
}

/// A key: text that must be there and not be empty, since paths are made of it.
pub(crate) fn key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let key = scalar(deserializer)?.unwrap_or_default();
    if key.is_empty() { Err(D::Error::custom("a key is empty")) } else { Ok(key) }
}

/// A whole number that must be there, since paths are made of it.
pub(crate) fn key_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    number(deserializer)?.ok_or_else(|| D::Error::custom("a key is not a whole number"))
}

/// A number, also as a string.
pub(crate) fn number<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr,
{
    let Some(text) = scalar(deserializer)? else { return Ok(None) };
    let text = text.trim();
    let whole = text.strip_suffix(".0").unwrap_or(text);
    let read = whole.parse().or_else(|_| text.parse()).ok();
    if read.is_none() {
        tracing::debug!(value = text, "not a number, taken as absent");
    }
    Ok(read)
}

/// A boolean, also as a string.
pub(crate) fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    let text = scalar(deserializer)?.unwrap_or_default();
    Ok(match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "enabled" => Some(true),
        "false" | "no" | "off" | "disabled" => Some(false),
        _ => None,
    })
}

/// A length of time in ISO 8601, such as `PT15S` or `P1DT2H`. Days have 24 hours.
pub(crate) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    Ok(scalar(deserializer)?.and_then(|text| parse_duration(&text)))
}

fn parse_duration(text: &str) -> Option<Duration> {
    let span: Span = text.parse().ok()?;
    let exact = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    Duration::try_from(exact).ok()
}

/// A point in time in ISO 8601, with its offset.
pub(crate) fn timestamp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(scalar(deserializer)?.and_then(|text| text.parse().ok()))
}

/// A list; null is an empty one.
pub(crate) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A part of an object; null is one with nothing set.
pub(crate) fn part<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Polarity;

    #[derive(Debug, Deserialize)]
    struct Odd {
        #[serde(default, deserialize_with = "number")]
        size: Option<u64>,
        #[serde(default, deserialize_with = "flag")]
        on: Option<bool>,
        #[serde(default, deserialize_with = "duration")]
        idle: Option<Duration>,
        #[serde(default, deserialize_with = "timestamp")]
        at: Option<Timestamp>,
    }

    fn odd(value: Value) -> Odd {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn scalars_come_in_several_shapes() {
        for (value, size) in [
            (json!(7), Some(7)),
            (json!("7"), Some(7)),
            (json!(7.0), Some(7)),
            (json!(null), None),
            (json!("-"), None),
        ] {
            assert_eq!(odd(json!({ "size": value })).size, size);
        }
        for (value, on) in [
            (json!(true), Some(true)),
            (json!("false"), Some(false)),
            (json!(" FALSE"), Some(false)),
            (json!("Enabled"), Some(true)),
            (json!("maybe"), None),
        ] {
            assert_eq!(odd(json!({ "on": value })).on, on);
        }
    }

    #[test]
    fn words_are_the_same_in_capitals() {
        for (word, read) in [
            ("NEGATIVE", Polarity::Negative),
            (" Negative", Polarity::Negative),
            ("Positive", Polarity::Positive),
            ("negatives", Polarity::Unknown("negatives".to_owned())),
            ("", Polarity::Unknown(String::new())),
        ] {
            assert_eq!(serde_json::from_value::<Polarity>(json!(word)).unwrap(), read, "{word}");
        }
    }

    #[test]
    fn times_are_iso_8601() {
        let hour = Duration::from_secs(3600);
        for (text, idle) in [
            ("PT15S", Some(Duration::from_secs(15))),
            ("P1DT2H", Some(hour * 26)),
            ("P7D", Some(hour * 24 * 7)),
            ("P4DT84H30M5S", Some(hour * (4 * 24 + 84) + Duration::from_secs(30 * 60 + 5))),
            ("P1W", Some(hour * 24 * 7)),
            ("soon", None),
            ("-PT1S", None),
        ] {
            assert_eq!(odd(json!({ "idle": text })).idle, idle, "{text}");
        }
        let at = odd(json!({ "at": "2021-04-30T07:21:00-04:00" })).at.unwrap();
        assert_eq!(at.to_string(), "2021-04-30T11:21:00Z");
        assert_eq!(odd(json!({ "at": "yesterday" })).at, None);
    }

    #[test]
    fn another_shape_is_an_error() {
        assert!(serde_json::from_value::<Odd>(json!({ "size": {} })).is_err());
        assert!(serde_json::from_value::<Odd>(json!({ "on": [] })).is_err());
    }
}
