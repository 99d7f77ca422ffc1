//! Fuzz targets: see [`kafka::fuzz`].

use super::device::metadata::{default_of, is_fabric, lists_off};

/// Only metadata that speaks of an action and of `off` lists the action `off`.
pub fn metadata(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (_, _) = (is_fabric(&text), default_of(&text, "power_timeout"));
    if lists_off(&text) {
        assert!(text.contains("<action") && text.contains("off") && text.contains('>'));
    }
}
