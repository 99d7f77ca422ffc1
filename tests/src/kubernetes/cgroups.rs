//! A folder of cgroups for each node, which outlive its processes unless they are removed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::lab::Lab;

const ROOT: &str = "/sys/fs/cgroup";

/// The cgroups of one story's nodes, in each hierarchy that the machine has.
#[derive(Debug)]
pub(super) struct Cgroups {
    hierarchies: Vec<PathBuf>,
    /// The first level of all names: no two checkouts have the same.
    name: String,
}

impl Cgroups {
    /// Removes what an earlier run of this story left.
    pub(super) fn open(lab: &Lab) -> Result<Self> {
        let place = fs::metadata(lab.artifacts().parent().unwrap_or(lab.artifacts()))?;
        let place = std::os::unix::fs::MetadataExt::ino(&place);
        let cgroups =
            Self { hierarchies: hierarchies()?, name: format!("understudy-{place}-{}", lab.name()) };
        cgroups.remove()?;
        Ok(cgroups)
    }

    /// The name that a kubelet knows its node's by, made anew: those of before a loss of power are gone.
    pub(super) fn make(&self, node: &str) -> Result<String> {
        for hierarchy in &self.hierarchies {
            let own = hierarchy.join(&self.name).join(node);
            remove(&own)?;
            fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
            if hierarchy == Path::new(ROOT) {
                hand_down(&own)?;
            }
            // A cgroup of the first version has no processor and no memory until it is told.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                for folder in [hierarchy.join(&self.name), own.clone()] {
                    let (from, to) = (hierarchy.join(file), folder.join(file));
                    if hierarchy.ends_with("cpuset") && to.exists() {
                        fs::write(&to, fs::read(&from)?)
                            .with_context(|| format!("cannot write {}", to.display()))?;
                    }
                }
            }
        }
        Ok(format!("/{}/{node}", self.name))
    }

    /// Removes all of the story. Nothing may run in them any more.
    pub(super) fn remove(&self) -> Result<()> {
        self.hierarchies.iter().try_for_each(|hierarchy| remove(&hierarchy.join(&self.name)))
    }
}

/// Every hierarchy: one, or of the first version one for each controller.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root.to_owned()]);
    }
    let entries = fs::read_dir(root).with_context(|| format!("cannot list {ROOT}"))?;
    let found = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let found: Vec<PathBuf> = found.filter(|path| path.join("cgroup.procs").exists()).collect();
    ensure!(!found.is_empty(), "no cgroups are mounted at {ROOT}");
    Ok(found)
}

/// Has a cgroup of the second version, and each above it, give its controllers to those below.
fn hand_down(own: &Path) -> Result<()> {
    let above: Vec<&Path> = own.ancestors().take_while(|path| path.starts_with(ROOT)).collect();
    for folder in above.into_iter().rev() {
        for controller in ["cpu", "cpuset", "io", "memory", "pids", "hugetlb"] {
            // Some are not compiled in, and then nobody misses them.
            let _ = fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"));
        }
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", folder.display())),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    // A process that was killed may take a moment to leave.
    let limit = std::time::Duration::from_secs(10);
    crate::eventually(&format!("{} to be empty", folder.display()), limit, || match fs::remove_dir(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    })
}
