//! Files and directories, and one way to archive them: sorted, with one time, in the format `ustar`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use tar::{Builder, EntryType, Header};

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
        let mut archive = Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let content = entry.content.as_deref().unwrap_or_default();
            let mut header = Header::new_ustar();
            header.set_entry_type(if entry.content.is_some() {
                EntryType::Regular
            } else {
                EntryType::Directory
            });
            header.set_path(path).with_context(|| format!("{path} cannot be in an archive"))?;
            header.set_size(content.len() as u64);
            header.set_mode(entry.mode);
            header.set_uid(entry.owner.into());
            header.set_gid(entry.owner.into());
            header.set_mtime(time);
            header.set_cksum();
            archive.append(&header, content)?;
        }
        archive.into_inner().context("cannot end an archive")
    }
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
