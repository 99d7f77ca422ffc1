//! Data that costs no disk: the closed segments of one partition, linked into the partitions of another
//! topic, on every broker.
//!
//! A record batch names neither its topic nor its partition, so one partition's closed segments are good for
//! any other whose leader epochs fit. Kafka never writes to a closed segment or to its indexes: the links
//! share their bytes for as long as nothing is appended, and what is appended goes to an active segment of
//! the partition's own.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rdkafka::admin::{NewTopic, TopicReplication};
use rustix::process::Signal;

use super::cluster::Cluster;
use super::node::Node;
use crate::eventually;

/// What every partition's directory is named after here: the topic whose segments are linked.
const TEMPLATE: &str = "template";
/// How long a broker may take to stop cleanly, and the cluster to come back with all its data.
const RESTART: Duration = Duration::from_secs(240);
/// Of a partition that has had one leader, in its first epoch, from the beginning on.
const ONE_LEADER: &str = "0\n1\n0 0\n";
/// The checkpoints of a log dir that tell how far a partition goes.
const CHECKPOINTS: [&str; 2] = ["recovery-point-offset-checkpoint", "replication-offset-checkpoint"];

impl Cluster {
    /// Gives every partition of `topic`, which must be new, empty and on every broker, `segments` closed
    /// segments of `segment_bytes` (its `segment.bytes`). The brokers are stopped cleanly for this and
    /// started again. Returns how many bytes each broker then has of the topic.
    ///
    /// # Errors
    /// When a broker does not stop or come back, or does not keep what it was given.
    pub fn graft(&self, topic: &str, partitions: i32, segments: u32, segment_bytes: u64) -> Result<u64> {
        // On a broker that nothing happens to: it has no other replica.
        let last = self.brokers().last().context("a cluster without brokers")?;
        let (alone, name) = ([last.id()], format!("{TEMPLATE}-0"));
        self.create(&NewTopic::new(TEMPLATE, 1, TopicReplication::Variable(&[&alone])))?;
        // The last segment stays open, so there is one more than is wanted.
        self.load(TEMPLATE, 1, u64::from(segments + 1) * segment_bytes)?;
        self.stop()?;
        let template = last.log_dir().join(name);
        let epochs = fs::read_to_string(template.join("leader-epoch-checkpoint"))?;
        ensure!(epochs == ONE_LEADER, "the template has had more than one leader: {epochs:?}");
        let graft = Graft::of(&template, usize::try_from(segments)?)?;
        let mut bytes = 0;
        for node in self.brokers() {
            bytes = graft.onto(node.log_dir(), topic, partitions)?;
        }
        self.brokers().iter().try_for_each(Node::begin)?;
        self.wait_complete(RESTART)?;
        for node in self.brokers() {
            graft.ensure_kept(node.log_dir(), topic, partitions)?;
        }
        Ok(bytes)
    }

    /// Stops every broker cleanly.
    fn stop(&self) -> Result<()> {
        let processes: Vec<_> = self.brokers().iter().map(Node::process).collect::<Result<_>>()?;
        processes.iter().try_for_each(|process| process.signal(Signal::TERM))?;
        for process in &processes {
            process.wait(RESTART)?;
        }
        // Whoever comes back must not be taken for who has left.
        eventually("every broker to be gone", Duration::from_secs(30), || {
            ensure!(self.view().is_err(), "a broker answers");
            Ok(())
        })
    }
}

/// Closed segments, with all that belongs to them, and where they end.
struct Graft {
    files: Vec<PathBuf>,
    /// How many of `files` are segments, and how long they are together.
    segments: usize,
    bytes: u64,
    /// The offset behind the last.
    end: u64,
}

impl Graft {
    /// The first `segments` of a partition, of which there must be more.
    fn of(template: &Path, segments: usize) -> Result<Self> {
        let mut bases = Vec::new();
        for file in files(template)? {
            if file.extension().is_some_and(|extension| extension == "log") {
                bases.push(base_of(&file).context("a segment whose name is no offset")?);
            }
        }
        bases.sort_unstable();
        let end = *bases.get(segments).with_context(|| format!("only {} segments", bases.len()))?;
        // A snapshot of the producers belongs to the segment that begins at it.
        let mut files = files(template)?;
        files.retain(|file| base_of(file).is_some_and(|base| base < end));
        files.sort();
        let mut bytes = 0;
        for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "log")) {
            bytes += file.metadata()?.len();
        }
        Ok(Self { files, segments, bytes, end })
    }

    /// Links them into every partition of `topic` in a log dir whose broker was stopped cleanly. Returns the
    /// bytes.
    fn onto(&self, log_dir: &Path, topic: &str, partitions: i32) -> Result<u64> {
        for partition in 0..partitions {
            let dir = log_dir.join(format!("{topic}-{partition}"));
            self.link_into(&dir).with_context(|| format!("cannot give {} its data", dir.display()))?;
        }
        for name in CHECKPOINTS {
            let path = log_dir.join(name);
            let text = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
            fs::write(&path, checkpoint(&text, topic, partitions, self.end)?)?;
        }
        Ok(self.bytes * u64::from(partitions.unsigned_abs()))
    }

    fn link_into(&self, dir: &Path) -> Result<()> {
        // What is there is the empty active segment, which now begins behind the others.
        for file in files(dir)?.into_iter().filter(|file| base_of(file).is_some()) {
            ensure!(base_of(&file) == Some(0), "{} is not of a new partition", file.display());
            let kind = file.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
            let length = file.metadata()?.len();
            ensure!(kind != "log" || length == 0, "{} has data already", file.display());
            fs::rename(&file, dir.join(format!("{:020}.{kind}", self.end)))?;
        }
        for file in &self.files {
            fs::hard_link(file, dir.join(file.file_name().context("no file name")?))?;
        }
        fs::write(dir.join("leader-epoch-checkpoint"), ONE_LEADER)?;
        Ok(())
    }

    /// A broker that does not like what it finds cuts it off.
    fn ensure_kept(&self, log_dir: &Path, topic: &str, partitions: i32) -> Result<()> {
        for partition in 0..partitions {
            let dir = log_dir.join(format!("{topic}-{partition}"));
            let (mut kept, mut bytes) = (0, 0);
            for file in files(&dir)? {
                let segment = file.extension().is_some_and(|kind| kind == "log");
                if segment && base_of(&file).is_some_and(|base| base < self.end) {
                    kept += 1;
                    bytes += file.metadata()?.len();
                }
            }
            ensure!(
                kept == self.segments && bytes == self.bytes,
                "{} has {kept} segments of {bytes} bytes, and was given {} of {}",
                dir.display(),
                self.segments,
                self.bytes
            );
        }
        Ok(())
    }
}

fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    Ok(entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?)
}

/// The offset that a file of a partition is named after; `None` of what has no such name.
fn base_of(file: &Path) -> Option<u64> {
    let stem = file.file_stem()?.to_str()?;
    stem.parse().ok().filter(|_| stem.len() == 20)
}

/// A checkpoint of Kafka's (a version, a count, and a line for each partition) in which every partition of
/// `topic` has this offset.
fn checkpoint(text: &str, topic: &str, partitions: i32, offset: u64) -> Result<String> {
    let mut lines = text.lines();
    let version = lines.next().context("an empty checkpoint")?;
    lines.next().context("a checkpoint without a count")?;
    let others = lines.filter(|line| line.split(' ').next() != Some(topic));
    let mut entries: Vec<String> = others.map(str::to_owned).collect();
    entries.extend((0..partitions).map(|partition| format!("{topic} {partition} {offset}")));
    let mut text = format!("{version}\n{}\n", entries.len());
    for entry in entries {
        writeln!(text, "{entry}")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_has_the_new_offsets_and_all_others() {
        let text = "0\n3\norders 0 17\nbulk 0 0\nbulk 1 0\n";
        let new = checkpoint(text, "bulk", 2, 500).unwrap();
        assert_eq!(new, "0\n3\norders 0 17\nbulk 0 500\nbulk 1 500\n");
        assert!(checkpoint("", "bulk", 2, 500).is_err());
    }

    #[test]
    fn closed_segments_are_linked_below_an_empty_active_one() {
        let dir = tempfile::tempdir().unwrap();
        let (template, log_dir) = (dir.path().join("template-0"), dir.path().join("broker"));
        let partition = log_dir.join("bulk-0");
        fs::create_dir_all(&template).unwrap();
        fs::create_dir_all(&partition).unwrap();
        for (base, length) in [(0, 10), (7, 20), (15, 5)] {
            fs::write(template.join(format!("{base:020}.log")), vec![1; length]).unwrap();
            fs::write(template.join(format!("{base:020}.index")), "i").unwrap();
        }
        fs::write(template.join(format!("{:020}.snapshot", 7)), "s").unwrap();
        fs::write(template.join("partition.metadata"), "of the template").unwrap();
        for kind in ["log", "index", "timeindex"] {
            fs::write(partition.join(format!("{:020}.{kind}", 0)), "").unwrap();
        }
        fs::write(partition.join("partition.metadata"), "its own").unwrap();
        for name in CHECKPOINTS {
            fs::write(log_dir.join(name), "0\n1\nbulk 0 0\n").unwrap();
        }
        let graft = Graft::of(&template, 2).unwrap();
        assert_eq!((graft.bytes, graft.end, graft.segments), (30, 15, 2));
        assert_eq!(graft.onto(&log_dir, "bulk", 1).unwrap(), 30);
        graft.ensure_kept(&log_dir, "bulk", 1).unwrap();
        assert_eq!(fs::read(partition.join(format!("{:020}.log", 7))).unwrap().len(), 20);
        assert!(fs::read(partition.join(format!("{:020}.log", 15))).unwrap().is_empty());
        assert!(partition.join(format!("{:020}.timeindex", 15)).exists());
        assert_eq!(fs::read_to_string(partition.join("partition.metadata")).unwrap(), "its own");
        let kept = fs::read_to_string(log_dir.join(CHECKPOINTS[0])).unwrap();
        assert_eq!(kept, "0\n1\nbulk 0 15\n");
        // A second time it is no new partition, and what is cut off is noticed.
        assert!(graft.onto(&log_dir, "bulk", 1).is_err());
        fs::remove_file(partition.join(format!("{:020}.log", 7))).unwrap();
        assert!(graft.ensure_kept(&log_dir, "bulk", 1).is_err());
        assert!(Graft::of(&template, 3).is_err());
    }
}
