//! The query of a request, in ONTAP's query language.

use std::net::IpAddr;

use crate::error::{Error, Result};

/// The query of a request. Everything is percent-encoded when it is sent.
///
/// Values given to [`equal`](Self::equal) are literal: what ONTAP would take for an operator is quoted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// A query without conditions.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Only records whose `field` is exactly `value`.
    ///
    /// # Errors
    /// [`Error::Usage`] if the value cannot be quoted, or is empty, which ONTAP would not take as a
    /// condition.
    pub(crate) fn equal(self, field: &str, value: &str) -> Result<Self> {
        Ok(self.raw(field, literal(field, value)?))
    }

    /// As [`equal`](Self::equal), if there is a value.
    ///
    /// # Errors
    /// As [`equal`](Self::equal).
    pub(crate) fn maybe(self, field: &str, value: Option<&str>) -> Result<Self> {
        match value {
            Some(value) => self.equal(field, value),
            None => Ok(self),
        }
    }

    /// Only records whose `field` is one of `values`.
    ///
    /// # Errors
    /// As [`equal`](Self::equal), of any of them; and if there is none, which would ask for everything.
    pub(crate) fn any_of(self, field: &str, values: &[&str]) -> Result<Self> {
        if values.is_empty() {
            return Err(Error::usage(format!("{field}: there is no value to look for")));
        }
        let values: Vec<String> = values.iter().map(|value| literal(field, value)).collect::<Result<_>>()?;
        Ok(self.raw(field, values.join("|")))
    }

    /// Adds alternatives, each with `|` before it and as ONTAP's query language has it, to the condition on
    /// `field`.
    pub(crate) fn and_any(mut self, field: &str, alternatives: &str) -> Self {
        for (_, value) in self.pairs.iter_mut().filter(|(name, _)| name == field) {
            value.push_str(alternatives);
        }
        self
    }

    /// Only records of these volumes, and of the constituents that they may have; none: of all. A name with
    /// letters that no volume has gets no pattern, for ONTAP would read them as something else.
    ///
    /// # Errors
    /// As [`equal`](Self::equal), of any of them.
    pub(crate) fn of_volumes(self, field: &str, volumes: &[&str]) -> Result<Self> {
        if volumes.is_empty() {
            return Ok(self);
        }
        let plain = |name: &&&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let constituents = |name: &&str| format!("|{name}__*|{name}_0*");
        let patterns: String = volumes.iter().filter(plain).map(constituents).collect();
        Ok(self.any_of(field, volumes)?.and_any(field, &patterns))
    }

    /// As [`maybe`](Self::maybe), for an IP address. It is asked for as ONTAP writes addresses: in any other
    /// spelling it might match nothing, which would look as if there were nothing.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is no IP address.
    pub(crate) fn maybe_address(self, field: &str, value: Option<&str>) -> Result<Self> {
        let Some(value) = value else { return Ok(self) };
        let address: IpAddr = value.trim().parse().map_err(|_| {
            Error::usage(format!("{field}: `{value}` is no IP address; name the address that the mount uses"))
        })?;
        self.equal(field, &address.to_canonical().to_string())
    }

    /// The fields to return. Names those that are expensive, since ONTAP leaves them out otherwise.
    #[must_use]
    pub(crate) fn fields(self, fields: &[&str]) -> Self {
        self.raw("fields", fields.join(","))
    }

    /// A parameter as it is: an expression of ONTAP's query language, or something that is no condition.
    #[must_use]
    pub(crate) fn raw(mut self, name: &str, value: impl Into<String>) -> Self {
        self.pairs.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }
}

/// `value` so that ONTAP compares it and does not interpret it.
fn literal(field: &str, value: &str) -> Result<String> {
    if value.is_empty() {
        return Err(Error::usage(format!("{field}: the value is empty, which ONTAP takes for no condition")));
    }
    let plain = |c: char| c.is_alphanumeric() || "_-.:/@".contains(c);
    // `a..b` is a range, and null is a keyword.
    if value.chars().all(plain) && !value.contains("..") && value != "null" {
        return Ok(value.to_owned());
    }
    if !value.contains('"') {
        return Ok(format!("\"{value}\""));
    }
    if !value.contains(['{', '}']) {
        return Ok(format!("{{{value}}}"));
    }
    Err(Error::usage(format!("{field}: `{value}` holds both quotes and braces, and cannot be asked for")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_values_is_asked_for_as_they_are() {
        let query = Query::new().any_of("name", &["kafka01", "a|b"]).unwrap();
        assert_eq!(query.pairs(), [("name".to_owned(), "kafka01|\"a|b\"".to_owned())]);
        assert!(Query::new().any_of("name", &[]).is_err() && Query::new().any_of("name", &[""]).is_err());
    }

    #[test]
    fn operators_in_a_value_are_quoted() {
        for (value, sent) in [
            ("svm1", "svm1"),
            ("10.0.0.101", "10.0.0.101"),
            ("fe80::1", "fe80::1"),
            ("svm:vol", "svm:vol"),
            ("a*", "\"a*\""),
            ("!a", "\"!a\""),
            ("a|b", "\"a|b\""),
            ("3..10", "\"3..10\""),
            ("null", "\"null\""),
            ("a,b", "\"a,b\""),
            ("two words", "\"two words\""),
            ("say \"hi\"", "{say \"hi\"}"),
        ] {
            assert_eq!(literal("f", value).unwrap(), sent);
        }
    }

    #[test]
    fn addresses_are_asked_for_as_ontap_writes_them() {
        for (given, sent) in [
            ("FD00:0::1", "fd00::1"),
            ("fd00:0:0:0:0:0:0:1", "fd00::1"),
            ("::ffff:10.0.0.101", "10.0.0.101"),
            (" 10.0.0.101", "10.0.0.101"),
        ] {
            let query = Query::new().maybe_address("client_address", Some(given)).unwrap();
            assert_eq!(query.pairs(), [("client_address".to_owned(), sent.to_owned())]);
        }
        for bad in ["", "broker-1", "10.0.0.*", "10.0.0.0/24", "fe80::1%eth0"] {
            let error = Query::new().maybe_address("client_address", Some(bad)).unwrap_err();
            assert!(matches!(error, Error::Usage { .. }), "{bad}: {error:?}");
        }
    }

    #[test]
    fn what_cannot_be_a_condition_is_refused() {
        // An empty condition would widen a deletion to everything.
        assert!(matches!(Query::new().equal("svm.name", ""), Err(Error::Usage { .. })));
        assert!(matches!(Query::new().equal("svm.name", "\"{"), Err(Error::Usage { .. })));
    }
}
