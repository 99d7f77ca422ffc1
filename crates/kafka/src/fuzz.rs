//! Fuzz targets: a parser of what comes from outside, as a function of bytes that panics where a promise is
//! broken.
//!
//! The promises: no input panics, none takes for ever, and what was read is written back as the same thing.
//! That memory stays in proportion to the input is for the caller to measure; package `fuzz` does.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::str::FromStr;

use bytes::Bytes;

use super::meta_properties::MetaProperties;
use super::properties::Properties;
use super::wire::Controller;
use recovery::model::Endpoint;

/// A file is printed byte for byte as it was read.
pub fn properties(bytes: &[u8]) {
    if let Ok(file) = Properties::parse(bytes) {
        assert_eq!(file.to_bytes(), bytes);
        for (key, _) in file.iter() {
            assert!(file.get(key).is_some());
        }
    }
}

/// A key is set and removed, and all others stay. Input: key, zero, value, zero, file.
pub fn properties_edit(bytes: &[u8]) {
    let (key, rest) = part(bytes);
    let (value, content) = part(rest);
    let (key, value) = (&*String::from_utf8_lossy(key), &*String::from_utf8_lossy(value));
    let Ok(before) = Properties::parse(content) else { return };
    let others = |file: &Properties| -> Vec<(String, String)> {
        let pairs = file.iter().filter(|(k, _)| *k != key);
        pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    };

    let mut set = before.clone();
    set.set(key, value);
    let read = reread(&set);
    assert_eq!(read.get(key), Some(value));
    assert_eq!(others(&read), others(&before));
    assert!(read.iter().eq(set.iter()), "what is in memory is not what is in the file");

    let mut removed = before.clone();
    removed.remove(key);
    let read = reread(&removed);
    assert_eq!(read.get(key), None);
    assert_eq!(others(&read), others(&before));
}

fn reread(file: &Properties) -> Properties {
    let read = Properties::parse(&file.to_bytes());
    assert!(read.is_ok(), "what was written cannot be read: {read:?}");
    read.unwrap_or_default()
}

/// A store of Java's, without the hash that its password makes.
pub fn jks(bytes: &[u8]) {
    if let Ok(store) = super::security::read_jks_entries(bytes) {
        let chain = store.key.map(|key| key.chain.concat().len()).unwrap_or_default();
        assert!(chain + store.trusted.concat().len() <= bytes.len());
    }
}

/// What is accepted names a cluster and a node.
pub fn meta_properties(bytes: &[u8]) {
    match MetaProperties::parse(bytes, Path::new("/data/meta.properties")) {
        Ok(meta) => assert!(meta.version <= 1 && !meta.cluster_id.is_empty() && meta.node_id.0 >= 0),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What ZooKeeper answers, whatever was asked.
pub fn zookeeper(bytes: &[u8]) {
    let said = Bytes::copy_from_slice(bytes);
    if let Some(node) = super::zookeeper::node(said.clone()) {
        assert!(node.data.len() < bytes.len());
    }
    if let Some(names) = super::zookeeper::children(said.clone()) {
        assert!(names.iter().map(|name| name.len() + 4).sum::<usize>() <= bytes.len());
    }
    super::zookeeper::failed(said);
    let text = String::from_utf8_lossy(bytes);
    let read = super::zookeeper::directives(&text).unwrap_or_default();
    assert!(read.iter().map(|(name, value)| name.len() + value.len() + 1).sum::<usize>() <= text.len());
}

/// What is read is written back as the same thing.
pub fn names(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    comes_back::<Endpoint>(&text);
    comes_back::<Controller>(&text);
}

fn comes_back<T: FromStr + Display + Debug + PartialEq>(text: &str) {
    if let Ok(read) = text.parse::<T>() {
        let written = read.to_string();
        assert_eq!(written.parse::<T>().ok().as_ref(), Some(&read), "{text:?} was written as {written:?}");
    }
}

/// Takes a first part off an input: what stands before the first zero byte.
pub fn part(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}
