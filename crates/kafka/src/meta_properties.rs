//! `meta.properties`: whose a log dir is.

use std::path::{Path, PathBuf};

use super::properties::Properties;
use recovery::model::BrokerId;

/// The name of the file in every formatted log dir.
pub const FILE_NAME: &str = "meta.properties";

/// What a log dir says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaProperties {
    /// 1 since KRaft; 0 before.
    pub version: u32,
    /// The cluster the dir belongs to.
    pub cluster_id: String,
    /// The broker the dir belongs to.
    pub node_id: BrokerId,
    /// The dir's own identity, whatever its path. Kafka writes it since 3.7.
    pub directory_id: Option<String>,
}

/// Why a `meta.properties` cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaPropertiesError {
    /// Not a `.properties` file.
    #[error("{path} cannot be parsed: {why}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, and what is wrong with it.
        why: String,
    },
    /// A key is not there.
    #[error("{path} has no `{key}`: the file is damaged, or the dir was never formatted for Kafka", path = path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
    },
    /// A broker with ZooKeeper that has not been started by Kafka 0.10.1 or newer.
    #[error(
        "{path} is of a broker with ZooKeeper (version 0) and has no `cluster.id`, which Kafka adds at its next start: \
         start the broker once where it is at home",
        path = path.display()
    )]
    NoClusterYet {
        /// The file.
        path: PathBuf,
    },
    /// A value is not what its key needs.
    #[error("{path} has {key}={value}, and {expected} was expected", path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What it says.
        value: String,
        /// What it should say.
        expected: &'static str,
    },
}

impl MetaProperties {
    /// Reads a file's content; `path` is for messages only.
    ///
    /// # Errors
    /// When the content is not that of a formatted log dir, or of a version not known here.
    pub fn parse(content: &[u8], path: &Path) -> Result<Self, MetaPropertiesError> {
        let file = Properties::parse(content)
            .map_err(|error| MetaPropertiesError::Malformed { path: path.into(), why: error.to_string() })?;
        let text = |key: &'static str| match file.get(key).map(str::trim) {
            None | Some("") => Err(MetaPropertiesError::Missing { path: path.into(), key }),
            Some(value) => Ok(value.to_owned()),
        };
        let number = |key: &'static str, expected: &'static str| {
            let value = text(key)?;
            let parsed = value.parse::<u32>().ok().and_then(|n| i32::try_from(n).ok());
            parsed.ok_or(MetaPropertiesError::Invalid { path: path.into(), key, value, expected })
        };
        let version = match file.get("version").map(str::trim) {
            // Kafka reads a file without a version as version 0.
            None | Some("0") => 0,
            Some("1") => 1,
            Some(other) => {
                let value = other.to_owned();
                let expected = "version 0 or 1";
                return Err(MetaPropertiesError::Invalid {
                    path: path.into(),
                    key: "version",
                    value,
                    expected,
                });
            }
        };
        // Kafka accepts either name in version 0, and only node.id in version 1.
        let key = if version == 0 && file.get("node.id").is_none() { "broker.id" } else { "node.id" };
        let node_id = BrokerId(number(key, "a node id")?);
        let cluster_id = text("cluster.id").map_err(|error| match version {
            0 => MetaPropertiesError::NoClusterYet { path: path.into() },
            _ => error,
        })?;
        Ok(Self { version, cluster_id, node_id, directory_id: text("directory.id").ok() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(content: &str) -> Result<MetaProperties, MetaPropertiesError> {
        MetaProperties::parse(content.as_bytes(), Path::new("/data/meta.properties"))
    }

    #[test]
    fn version_1_as_kafka_writes_it() {
        let meta = parse(
            "#\n#Fri Nov 20 13:09:12 UTC 2026\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n\
             directory.id=FHVMcVDBbpVPJP7WQ4CZtA\nnode.id=1\nversion=1\n",
        );
        let expected = MetaProperties {
            version: 1,
            cluster_id: "MkU3OEVBNTcwNTJENDM2Qg".into(),
            node_id: BrokerId(1),
            directory_id: Some("FHVMcVDBbpVPJP7WQ4CZtA".into()),
        };
        assert_eq!(meta, Ok(expected));
    }

    #[test]
    fn version_0_as_a_zookeeper_broker_writes_it() {
        let meta = parse("broker.id=3\ncluster.id=abc\nversion=0\n").unwrap();
        assert_eq!((meta.version, meta.node_id, meta.directory_id), (0, BrokerId(3), None));
        assert_eq!(parse("broker.id=3\ncluster.id=abc\n").unwrap().version, 0);
    }

    #[test]
    fn errors_name_the_file_and_the_key() {
        #[track_caller]
        fn says(content: &str, expected: &str) {
            assert_eq!(parse(content).unwrap_err().to_string(), expected);
        }
        let missing = "the file is damaged, or the dir was never formatted for Kafka";
        says("", &format!("/data/meta.properties has no `broker.id`: {missing}"));
        says(
            "version=0\nbroker.id=3\n",
            "/data/meta.properties is of a broker with ZooKeeper (version 0) and has no `cluster.id`, which Kafka adds \
             at its next start: start the broker once where it is at home",
        );
        says("version=1\ncluster.id=a", &format!("/data/meta.properties has no `node.id`: {missing}"));
        says(
            "version=1\ncluster.id=a\nbroker.id=1",
            &format!("/data/meta.properties has no `node.id`: {missing}"),
        );
        says(
            "version=1\ncluster.id=a\nnode.id=-1",
            "/data/meta.properties has node.id=-1, and a node id was expected",
        );
        says("version=2", "/data/meta.properties has version=2, and version 0 or 1 was expected");
        says(
            "\\u",
            "/data/meta.properties cannot be parsed: line 1: `\\u` must be followed by four hexadecimal digits",
        );
    }

    proptest! {
        #[test]
        fn no_content_panics(content in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = MetaProperties::parse(&content, Path::new("/x"));
        }
    }
}
