//! `server.properties` of a broker: the standby's template, with the broker's identity. Pure.

use std::path::{Path, PathBuf};

use super::BrokerIdentity;
use super::listeners::{list, set_listeners};
use kafka::properties::Properties;

/// Keys that say which broker this is. They come from the broker's own section, never from its overrides:
/// what is verified before the start must be what Kafka reads.
pub(super) const IDENTITY_KEYS: [&str; 4] = ["node.id", "broker.id", "log.dirs", "log.dir"];

/// Gives the template a broker's overrides.
pub(super) fn override_with(mut template: Properties, broker: &BrokerIdentity) -> Properties {
    for (key, value) in &broker.properties {
        template.set(key, value);
    }
    template
}

/// Gives the template, which has the broker's overrides, its identity. What an override names is never set.
///
/// # Errors
/// In words: what the template lacks, and what to add.
pub(super) fn render(mut file: Properties, broker: &BrokerIdentity) -> Result<Properties, String> {
    check_mode(&file)?;
    set_id(&mut file, broker);
    file.set("log.dirs", &paths(&broker.log_dirs));
    file.remove("log.dir");
    check_metadata_log(&file, broker)?;
    set_listeners(&mut file, broker)?;
    Ok(file)
}

/// Kafka keeps the metadata log in the first of its log dirs, or here.
pub(super) const METADATA_LOG_DIR: &str = "metadata.log.dir";

/// A directory of this host has neither the broker's metadata log nor its `meta.properties`, and nothing
/// verifies it.
fn check_metadata_log(file: &Properties, broker: &BrokerIdentity) -> Result<(), String> {
    let Some(dir) = file.get(METADATA_LOG_DIR).filter(|dir| !dir.is_empty()) else { return Ok(()) };
    if broker.log_dirs.iter().any(|own| own == Path::new(dir)) {
        return Ok(());
    }
    Err(format!(
        "{METADATA_LOG_DIR}={dir} is none of the log_dirs of broker {}, so its metadata log does not move with it: \
         leave it out, or name one of log_dirs as \"{METADATA_LOG_DIR}\" in [broker.properties]",
        broker.id
    ))
}

/// Of Kafka: how many threads load and recover the logs of each log dir at the start. Its own default is 1,
/// and 2 from 4.0 on.
pub(super) const RECOVERY_THREADS: &str = "num.recovery.threads.per.data.dir";

/// More threads than these have not been tried.
const MOST_THREADS: usize = 16;

/// Has Kafka load its logs with every processor of this host, where the template does not say how: a standby
/// has nothing else to do with them. Never fewer than Kafka's own default.
pub(super) fn recover_with(file: &mut Properties, processors: usize, log_dirs: usize) {
    if file.get(RECOVERY_THREADS).is_none() {
        let threads = (processors / log_dirs.max(1)).clamp(2, MOST_THREADS);
        file.set(RECOVERY_THREADS, &threads.to_string());
    }
}

fn paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>().join(",")
}

fn check_mode(file: &Properties) -> Result<(), String> {
    let Some(roles) = file.get("process.roles") else {
        return if file.get("zookeeper.connect").is_some() {
            Ok(())
        } else {
            Err("it has neither `process.roles` nor `zookeeper.connect`: add process.roles=broker and the \
                 controllers"
                .into())
        };
    };
    if !list(roles).any(|role| role == "broker") {
        return Err(format!("process.roles={roles} does not name `broker`: this is not a broker's template"));
    }
    let quorum = ["controller.quorum.bootstrap.servers", "controller.quorum.voters"];
    for needed in [&quorum[..], &["controller.listener.names"]] {
        if !needed.iter().any(|key| file.get(key).is_some_and(|value| !value.trim().is_empty())) {
            return Err(format!("it has no `{}`: copy it from a running broker", needed.join("` or `")));
        }
    }
    Ok(())
}

/// Kafka refuses a file in which the two keys differ, so only one of them stays.
fn set_id(file: &mut Properties, broker: &BrokerIdentity) {
    let kraft = file.get("process.roles").is_some();
    let (key, other) = if !kraft && (file.get("broker.id").is_some() || file.get("node.id").is_none()) {
        ("broker.id", "node.id")
    } else {
        ("node.id", "broker.id")
    };
    file.set(key, &broker.id.to_string());
    file.remove(other);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn logs_are_recovered_with_all_processors_unless_the_template_knows_better() {
        let threads = |text: &str, processors, log_dirs| {
            let mut file = Properties::parse(text.as_bytes()).unwrap();
            recover_with(&mut file, processors, log_dirs);
            file.get(RECOVERY_THREADS).unwrap().to_owned()
        };
        assert_eq!(threads("a=b\n", 8, 1), "8");
        assert_eq!(threads("a=b\n", 8, 3), "2");
        assert_eq!(threads("a=b\n", 1, 1), "2");
        assert_eq!(threads("a=b\n", 128, 2), "16");
        assert_eq!(threads("num.recovery.threads.per.data.dir=1\n", 8, 1), "1");
    }
    use recovery::model::BrokerId;

    const KRAFT: &str = "process.roles=broker\ncontroller.quorum.bootstrap.servers=c:9093\n\
                         controller.listener.names=CONTROLLER\n";

    fn broker(listener: &str, overrides: &[(&str, &str)]) -> BrokerIdentity {
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        BrokerIdentity {
            id: BrokerId(7),
            listener: listener.parse().unwrap(),
            log_dirs: vec!["/mnt/a".into(), "/mnt/b".into()],
            properties: overrides.iter().map(own).collect::<BTreeMap<_, _>>(),
        }
    }

    fn rendered(template: &str, broker: &BrokerIdentity) -> Result<Properties, String> {
        render(override_with(Properties::parse(template.as_bytes()).unwrap(), broker), broker)
    }

    #[track_caller]
    fn is_refused(template: &str, because: &str) {
        let error = rendered(template, &broker("10.0.0.7:9092", &[])).unwrap_err();
        assert!(error.contains(because), "{error}");
    }

    #[test]
    fn the_whole_file() {
        let template = "# standby\nprocess.roles=broker\nnode.id=99\nlog.dir=/tmp/x\n\
             controller.quorum.voters=101@c:9093\ncontroller.listener.names=CONTROLLER\n\
             listeners = SASL_SSL://:9092\n\n# tail\nnum.io.threads=8\n";
        let file =
            rendered(template, &broker("10.0.0.7:9092", &[("num.io.threads", "16"), ("broker.rack", "a")]));
        let expected = "# standby\nprocess.roles=broker\nnode.id=7\n\
             controller.quorum.voters=101@c:9093\ncontroller.listener.names=CONTROLLER\n\
             listeners=SASL_SSL://10.0.0.7:9092\n\n# tail\nnum.io.threads=16\nbroker.rack=a\n\
             log.dirs=/mnt/a,/mnt/b\nadvertised.listeners=SASL_SSL://10.0.0.7:9092\n";
        assert_eq!(file.unwrap().to_string(), expected);
    }

    #[test]
    fn node_id_or_broker_id() {
        let ids = |template: &str| {
            let file = rendered(&format!("{template}\nlisteners=PLAINTEXT://:9092"), &broker("h:9092", &[]));
            let file = file.unwrap();
            let ids = ["node.id", "broker.id"].map(|key| file.get(key).map(str::to_owned));
            ids.map(|id| id.unwrap_or_default())
        };
        assert_eq!(ids(KRAFT), ["7", ""]);
        assert_eq!(ids(&format!("{KRAFT}broker.id=3\nnode.id=3")), ["7", ""]);
        assert_eq!(ids("zookeeper.connect=z:2181\nbroker.id=3"), ["", "7"]);
        assert_eq!(ids("zookeeper.connect=z:2181"), ["", "7"]);
        assert_eq!(ids("zookeeper.connect=z:2181\nnode.id=3"), ["7", ""]);
        assert_eq!(ids("zookeeper.connect=z:2181\nnode.id=3\nbroker.id=3"), ["", "7"]);
    }

    #[test]
    fn templates_that_lack_something_are_refused() {
        is_refused("listeners=PLAINTEXT://:9092", "neither `process.roles` nor `zookeeper.connect`");
        is_refused("process.roles=controller", "does not name `broker`");
        is_refused(
            "process.roles=broker",
            "controller.quorum.bootstrap.servers` or `controller.quorum.voters",
        );
        is_refused("process.roles=broker\ncontroller.quorum.voters=1@c:9", "controller.listener.names");
        is_refused(KRAFT, "no `listeners`");
        let combined = KRAFT.replace("=broker\n", "=broker,controller\n");
        is_refused(&format!("{combined}listeners=CONTROLLER://:9093"), "no listener but the controller's");
        is_refused(&format!("{KRAFT}listeners=:9092"), "is not NAME://host:port");
        is_refused(
            &format!("{KRAFT}listeners=A://:9092\nadvertised.listeners=B://x:9092"),
            "names `B` and listeners does not",
        );
    }

    #[test]
    fn the_metadata_log_is_in_one_of_the_brokers_log_dirs() {
        let template = |dir: &str| format!("{KRAFT}listeners=A://:9092\nmetadata.log.dir={dir}\n");
        is_refused(&template("/var/lib/kafka-metadata"), "is none of the log_dirs of broker 7");
        for kept in ["/mnt/b", "/mnt/a/", ""] {
            assert!(rendered(&template(kept), &broker("10.0.0.7:9092", &[])).is_ok(), "{kept}");
        }
        let own = broker("10.0.0.7:9092", &[("metadata.log.dir", "/mnt/b")]);
        let file = rendered(&template("/var/lib/kafka-metadata"), &own).unwrap();
        assert_eq!(file.get("metadata.log.dir"), Some("/mnt/b"));
    }
}
