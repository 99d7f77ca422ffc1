//! A class-data archive on every standby, as one has it that was set up yesterday: made once, in a guest, by
//! `understudy warm`, and kept beside the bed.
//!
//! That a kept one fits is not for us to say: `understudy warm` looks at it in each guest, and makes another
//! where it does not.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value as Json;

use super::install::BINARY;
use super::{GuestAgent, NfsBed, plain};
use crate::Lab;
use crate::kafka::{Cluster, Kafka};

/// Where the agent looks for it.
const CLASS_DATA: &str = "/var/lib/understudy/class-data";
/// How long a guest may take to make one: 40 s where the machine is quiet.
const LIMIT: Duration = Duration::from_secs(300);

/// Sees to it that the next Kafka that this agent starts has an archive.
pub(super) fn make_ready(lab: &Lab, bed: &NfsBed, agent: &GuestAgent, cluster: &Cluster) -> Result<()> {
    let begun = Instant::now();
    let kept = place(bed, cluster.start_script())?;
    // The guest sees the story's folder, and not the cache.
    let passed = lab.kept("class-data")?;
    let lock = kept.with_extension("lock");
    let lock = File::create(&lock).with_context(|| format!("cannot make {}", lock.display()))?;
    lock.lock().context("cannot wait for another story that makes a class-data archive")?;
    let guest = agent.guest();
    if kept.is_dir() {
        copy(&kept, &passed)?;
        guest.sh(&format!(
            "install -d -m 0755 {CLASS_DATA} && install -m 0644 -o root -g root {}/* {CLASS_DATA}",
            plain(&passed)?
        ))?;
    }
    let warmed = guest.run_within(LIMIT, &[BINARY, "warm", "--output", "json"])?;
    ensure!(warmed.code == 0, "`understudy warm` on {}: {warmed:?}", guest.name());
    let report: Json = serde_json::from_str(&warmed.stdout)?;
    match (report["did"].as_str(), report["class_data"].as_str()) {
        (Some("nothing"), Some("fits")) => {}
        (Some("made"), _) => {
            let passed = plain(&passed)?;
            guest
                .sh(&format!("rm -f {passed}/* && cp {CLASS_DATA}/kafka.json {CLASS_DATA}/*.jsa {passed}"))?;
            keep(Path::new(passed), &kept)?;
        }
        _ => bail!("`understudy warm` on {} says {report}", guest.name()),
    }
    fs::remove_dir_all(&passed)?;
    let seconds = begun.elapsed().as_secs_f64();
    lab.note(format!("{} has class data after {seconds:.1} s: {report}", guest.name()));
    Ok(())
}

/// Where the archive of this bed, this Kafka and this way to start it is kept.
fn place(bed: &NfsBed, start_script: &str) -> Result<PathBuf> {
    let home = &bed.parts.bed;
    // The list of its files has the checksum of the image, and so of the Java in it.
    let sums = fs::read(home.join("B2SUMS")).context("the bed has no list of its files")?;
    let mut key = DefaultHasher::new();
    (sums, start_script).hash(&mut key);
    for jar in Kafka::home()?.jars() {
        // What Java compares.
        let file = fs::metadata(jar)?;
        (jar, file.len(), file.modified()?).hash(&mut key);
    }
    let cache = home.parent().context("the bed is nowhere")?;
    Ok(cache.join(format!("guest-classes-{:016x}", key.finish())))
}

/// Puts what was made into place: as a whole, whoever is killed meanwhile. The caller holds the lock.
fn keep(made: &Path, kept: &Path) -> Result<()> {
    let staging = kept.with_extension("staging");
    for old in [&staging, kept] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    fs::create_dir(&staging)?;
    copy(made, &staging)?;
    fs::rename(&staging, kept).with_context(|| format!("cannot put {} into place", kept.display()))
}

/// Copies the files of one directory into another.
fn copy(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))
            .with_context(|| format!("cannot copy {}", entry.path().display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_whole_and_replaces_what_was_there() {
        let root = tempfile::tempdir().unwrap();
        let [made, kept] = ["made", "guest-classes-1"].map(|name| root.path().join(name));
        fs::create_dir(&made).unwrap();
        for text in ["first", "second"] {
            fs::write(made.join("kafka.json"), text).unwrap();
            keep(&made, &kept).unwrap();
            assert_eq!(fs::read_to_string(kept.join("kafka.json")).unwrap(), text);
        }
        // One that was killed in the middle.
        fs::create_dir(kept.with_extension("staging")).unwrap();
        fs::write(kept.with_extension("staging").join("kafka-1.jsa"), "half").unwrap();
        keep(&made, &kept).unwrap();
        assert!(!kept.join("kafka-1.jsa").exists() && !kept.with_extension("staging").exists());
    }
}
