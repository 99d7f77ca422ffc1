//! Fuzz targets: see [`kafka::fuzz`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::mountinfo::Mounts;
pub use super::nfs::fuzz::kernel as nfs_kernel;
use kafka::fuzz::part;

/// Every path lies on a mount that is there. Input: a path, zero, the file.
pub fn mountinfo(bytes: &[u8]) {
    let (path, text) = part(bytes);
    let path = Path::new(OsStr::from_bytes(path));
    if let Ok(mounts) = Mounts::parse(text) {
        if let Some(mount) = mounts.covering(path) {
            assert!(path.starts_with(&mount.point) || mount.point == Path::new("/"));
        }
        if let Some(mount) = mounts.at(path) {
            assert_eq!(mount.point, path);
            assert!(!mount.words().is_empty());
        }
    }
}
