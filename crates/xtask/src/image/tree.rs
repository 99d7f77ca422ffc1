//! Files and directories, and the one way to write them as a tar archive: sorted, with one time, in the format `ustar`.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

/// Bytes of a block.
const BLOCK: usize = 512;
/// The longest name of an entry, in bytes, for which the format's first field has room.
const LONGEST: usize = 100;

/// What is to be archived, by its path without a `/` in front. Directories above an entry are there by themselves.
#[derive(Debug, Default)]
pub(super) struct Tree(BTreeMap<String, Entry>);

#[derive(Debug)]
struct Entry {
    mode: u32,
    /// User and group.
    owner: u32,
    /// `None` for a directory.
    content: Option<Vec<u8>>,
}

impl Tree {
    /// Adds a file of root's.
    pub(super) fn file(&mut self, path: &str, mode: u32, content: Vec<u8>) {
        self.add(path, Entry { mode, owner: 0, content: Some(content) });
    }

    /// Adds a directory.
    pub(super) fn directory(&mut self, path: &str, mode: u32, owner: u32) {
        self.add(path, Entry { mode, owner, content: None });
    }

    fn add(&mut self, path: &str, entry: Entry) {
        for (end, _) in path.match_indices('/') {
            let above = || Entry { mode: 0o755, owner: 0, content: None };
            self.0.entry(path[..end].to_owned()).or_insert_with(above);
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// The archive, in which everything was changed at `time`, in seconds.
    ///
    /// # Errors
    /// A path is too long for the format.
    pub(super) fn tar(&self, time: u64) -> Result<Vec<u8>> {
        let mut archive = Vec::new();
        for (path, entry) in &self.0 {
            archive.extend(header(path, entry, time)?);
            let content = entry.content.as_deref().unwrap_or_default();
            archive.extend(content);
            archive.resize(archive.len().next_multiple_of(BLOCK), 0);
        }
        // Two empty blocks are the end.
        archive.resize(archive.len() + 2 * BLOCK, 0);
        Ok(archive)
    }
}

fn header(path: &str, entry: &Entry, time: u64) -> Result<[u8; BLOCK]> {
    let (name, kind) = match entry.content {
        Some(_) => (path.to_owned(), b'0'),
        None => (format!("{path}/"), b'5'),
    };
    ensure!(name.len() <= LONGEST, "{name} is longer than {LONGEST} bytes");
    let size = entry.content.as_ref().map_or(0, Vec::len);
    let mut block = [0; BLOCK];
    let mut field = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    field(0, name.as_bytes());
    field(100, format!("{:07o}", entry.mode).as_bytes());
    field(108, format!("{:07o}", entry.owner).as_bytes());
    field(116, format!("{:07o}", entry.owner).as_bytes());
    field(124, format!("{size:011o}").as_bytes());
    field(136, format!("{time:011o}").as_bytes());
    // The sum is made as if its own field were spaces.
    field(148, b"        ");
    field(156, &[kind]);
    field(257, b"ustar\x0000");
    let sum: u32 = block.iter().copied().map(u32::from).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::process::Command;

    use super::*;

    fn tree(backwards: bool) -> Tree {
        let mut tree = Tree::default();
        let mut acts: Vec<fn(&mut Tree)> = vec![
            |tree| tree.file("usr/bin/program", 0o755, vec![7; 1500]),
            |tree| tree.file("etc/empty", 0o640, Vec::new()),
            |tree| tree.directory("tmp", 0o1777, 0),
            |tree| tree.directory("etc", 0o750, 0),
        ];
        if backwards {
            acts.reverse();
        }
        acts.iter().for_each(|act| act(&mut tree));
        tree
    }

    #[test]
    fn tar_itself_reads_it() {
        let root = tempfile::tempdir().unwrap();
        let archive = root.path().join("a.tar");
        fs::write(&archive, tree(false).tar(1_700_000_000).unwrap()).unwrap();
        let tar = Command::new("tar")
            .args(["--extract", "--preserve-permissions", "--no-same-owner", "--file"])
            .arg(&archive)
            .current_dir(root.path())
            .output()
            .unwrap();
        assert!(tar.status.success() && tar.stderr.is_empty(), "{tar:?}");
        assert_eq!(fs::read(root.path().join("usr/bin/program")).unwrap(), [7; 1500]);
        for (path, mode) in [
            ("usr/bin", 0o755),
            ("usr/bin/program", 0o755),
            ("etc", 0o750),
            ("etc/empty", 0o640),
            ("tmp", 0o1777),
        ] {
            let found = fs::metadata(root.path().join(path)).unwrap();
            assert_eq!((found.permissions().mode() & 0o7777, found.mtime()), (mode, 1_700_000_000), "{path}");
        }
    }

    #[test]
    fn the_order_in_which_it_was_made_is_not_in_it() {
        // A directory that is named keeps its mode, whichever came first.
        assert_eq!(tree(false).tar(1).unwrap(), tree(true).tar(1).unwrap());
        assert_ne!(tree(false).tar(1).unwrap(), tree(false).tar(2).unwrap());
    }

    #[test]
    fn a_path_that_is_too_long_is_refused() {
        let mut tree = Tree::default();
        tree.file(&"x".repeat(101), 0o644, Vec::new());
        assert!(tree.tar(0).is_err());
    }
}
