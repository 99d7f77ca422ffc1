//! Fuzz targets: see [`kafka::fuzz`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::kernel::{orphans, parse_volumes, parse_written};
use kafka::fuzz::part;

/// What is mounted is no orphan; and of a target that is mounted twice nobody says whether it was written
/// through. Input: the target, zero, the file.
pub fn kernel(bytes: &[u8]) {
    let (target, text) = part(bytes);
    let (target, text) = (Path::new(OsStr::from_bytes(target)), String::from_utf8_lossy(text));
    let volumes = parse_volumes(&text);
    let mounted = volumes.iter().map(|volume| volume.device.as_str()).collect();
    assert!(orphans(&volumes, &mounted, None).is_empty());
    if parse_written(&text, target).is_some() {
        assert_eq!(parse_written(&format!("{text}\n{text}"), target), None);
    }
}
