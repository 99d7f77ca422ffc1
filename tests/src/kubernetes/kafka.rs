//! A Kafka in pods: a StatefulSet of three, each broker with a Service of its own, log dirs on shared storage.
//!
//! The pods have the bed's image and mount this machine's userland, Java and Kafka, read-only. All nodes see the same
//! log dirs, as they would on NFS: whoever runs as broker 2 writes to broker 2's.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use serde_json::{Value, json};

use super::{IMAGE, Kubernetes};
use crate::eventually;
use crate::history::{History, Verdict, WriteSpec, Writer, verify};
use crate::kafka::{ClusterView, Door, Jvm, Kafka, LOG4J, Watch, Wire};
use crate::lab::Lab;
use crate::unjudged::SetUp;

/// Brokers, which are the controllers as well.
pub const BROKERS: i32 = 3;
/// Where nodes and pods have the log dirs of all brokers.
pub const LOG_DIRS: &str = "/srv/kafka";
/// What a Kafka's command line has.
pub const KAFKA: &[&str] = &["kafka.Kafka"];
/// How long three brokers may take to come up on a busy machine.
const UP: Duration = Duration::from_secs(240);
/// What a pod does first: its log dir is formatted once.
const FORMAT: &str = r#"set -e
id=$((INDEX + 1))
dir=/srv/kafka/broker-$id
mkdir -p "$dir"
{
    cat "$CONF/common.properties"
    echo "node.id=$id"
    echo "log.dirs=$dir"
    echo "advertised.listeners=PLAINTEXT://10.96.1.$id:9092"
} >/tmp/server.properties
[ -e "$dir/meta.properties" ] ||
    $KAFKA kafka.tools.StorageTool format -t VW5kZXJzdHVkeUxhYjAwMA -c /tmp/server.properties
"#;
/// Then Kafka takes the place of the shell.
const EXEC: &str = "exec $KAFKA kafka.Kafka /tmp/server.properties\n";

/// A running Kafka.
#[derive(Debug)]
pub struct KubeKafka {
    log_dirs: PathBuf,
    artifacts: PathBuf,
}

impl KubeKafka {
    /// Brings one up on all nodes of `kubernetes`, which must be three.
    ///
    /// # Errors
    /// When Kafka is not there, or the cluster is not complete in four minutes.
    pub fn start(lab: &Lab, kubernetes: &Kubernetes) -> Result<Self> {
        Self::bring_up(lab, kubernetes, plain).context(SetUp)
    }

    /// The same, with an agent in each broker's own pod, which alone starts Kafka there.
    ///
    /// # Errors
    /// The same.
    pub fn start_at_home(lab: &Lab, kubernetes: &Kubernetes) -> Result<Self> {
        Self::bring_up(lab, kubernetes, super::home::with_agents).context(SetUp)
    }

    fn bring_up(
        lab: &Lab,
        kubernetes: &Kubernetes,
        pods: impl Fn(&Lab, &Kubernetes, &Path) -> Result<Vec<Value>>,
    ) -> Result<Self> {
        let log_dirs = lab.shared("kafka-logs")?;
        for node in kubernetes.nodes() {
            node.host().bind(&log_dirs, LOG_DIRS)?;
        }
        let conf = lab.kept("conf")?;
        std::fs::write(conf.join("log4j2.properties"), LOG4J)?;
        std::fs::write(conf.join("common.properties"), common_properties())?;
        let mut objects: Vec<Value> = (1..=BROKERS).map(service).collect();
        objects.extend(pods(lab, kubernetes, &conf)?);
        kubernetes.apply(&objects)?;
        let kafka = Self { log_dirs, artifacts: lab.artifacts().to_owned() };
        kafka.wait_complete(UP)?;
        for broker in 1..=BROKERS {
            kubernetes.wait_pod(&pod_of(broker), UP)?;
        }
        lab.note("three brokers are up in pods");
        Ok(kafka)
    }

    /// What a client starts from: all brokers' Services.
    #[must_use]
    pub fn client(&self) -> ClientConfig {
        let all: Vec<String> = (1..=BROKERS).map(|broker| address(broker).to_string()).collect();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", all.join(","));
        config
    }

    /// A broker's log dir, as the storage has it.
    #[must_use]
    pub fn log_dir(&self, broker: i32) -> PathBuf {
        self.log_dirs.join(format!("broker-{broker}"))
    }

    /// What the cluster says of itself, through the first broker that answers.
    ///
    /// # Errors
    /// When none answers.
    pub fn view(&self) -> Result<ClusterView> {
        let ask = |broker| Wire::connect(&door(broker), Duration::from_secs(1))?.metadata();
        let mut answers = (1..=BROKERS).map(ask);
        answers.find(Result::is_ok).context("no broker answers")?
    }

    /// Waits until every broker is registered and unfenced, and every replica in sync.
    ///
    /// # Errors
    /// What is missing after `limit`.
    pub fn wait_complete(&self, limit: Duration) -> Result<()> {
        let brokers = usize::try_from(BROKERS)?;
        eventually("the cluster to be complete", limit, || self.view()?.ensure_complete(brokers))
    }

    /// Creates a topic with a replica on each broker, and waits until all are in sync.
    ///
    /// # Errors
    /// When Kafka refuses, or a minute has passed.
    pub fn create_topic(&self, name: &str, partitions: i32) -> Result<()> {
        let topic =
            NewTopic::new(name, partitions, TopicReplication::Fixed(BROKERS)).set("min.insync.replicas", "2");
        let client: AdminClient<DefaultClientContext> = self.client().create()?;
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        for result in runtime.block_on(client.create_topics([&topic], &options))? {
            result.map_err(|(topic, code)| anyhow::anyhow!("cannot create topic {topic}: {code}"))?;
        }
        let count = usize::try_from(partitions)?;
        eventually(&format!("topic {name} to be in sync"), Duration::from_secs(60), || {
            let view = self.view()?;
            let found = view.partitions.iter().filter(|partition| partition.topic == name).count();
            ensure!(found == count, "{found} partitions");
            view.ensure_complete(usize::try_from(BROKERS)?)
        })
    }

    /// Starts a writer whose every acknowledgement is recorded.
    ///
    /// # Errors
    /// When the client or its file cannot be made.
    pub fn write(&self, spec: WriteSpec) -> Result<Writer> {
        Writer::start(self.client(), spec, &self.artifacts)
    }

    /// Watches `broker` through the others.
    #[must_use]
    pub fn watch(&self, broker: i32) -> Watch {
        Watch::start(broker, (1..=BROKERS).filter(|other| *other != broker).map(door).collect())
    }

    /// Reads the topic of `history`, and judges it.
    ///
    /// # Errors
    /// When the topic cannot be read; violations are in the [`Verdict`].
    pub fn verify(&self, history: &History) -> Result<Verdict> {
        verify(self.client(), &[history])
    }
}

/// The name of a broker's pod.
#[must_use]
pub fn pod_of(broker: i32) -> String {
    format!("kafka-{}", broker - 1)
}

/// The name of a broker's Service.
#[must_use]
pub fn service_of(broker: i32) -> String {
    format!("broker-{broker}")
}

/// A broker's address: its Service's, which stays while its pod's changes.
#[must_use]
pub fn address(broker: i32) -> SocketAddr {
    SocketAddr::from(([10, 96, 1, u8::try_from(broker).unwrap_or_default()], 9092))
}

/// Where the bed asks a broker: at its Service.
#[must_use]
pub fn door(broker: i32) -> Door {
    Door::plain(address(broker))
}

fn service(broker: i32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": service_of(broker) },
        "spec": {
            "clusterIP": address(broker).ip(),
            // A controller finds its voters before any is ready.
            "publishNotReadyAddresses": true,
            "selector": { "statefulset.kubernetes.io/pod-name": pod_of(broker) },
            "ports": [{ "name": "kafka", "port": 9092 }, { "name": "controller", "port": 9093 }],
        },
    })
}

/// What all brokers have alike.
pub(super) fn common_properties() -> String {
    let voters: Vec<String> = (1..=BROKERS).map(|id| format!("{id}@{}:9093", address(id).ip())).collect();
    let lines = [
        "process.roles=broker,controller",
        "listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093",
        "controller.listener.names=CONTROLLER",
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        &format!("controller.quorum.voters={}", voters.join(",")),
        "auto.create.topics.enable=false",
        "offsets.topic.num.partitions=5",
        "min.insync.replicas=2",
        "",
    ];
    lines.join("\n")
}

/// A container that has what a Kafka needs, and the volumes that it mounts; no command and no name.
pub(super) fn container(conf: &Path) -> Result<(Value, Vec<Value>)> {
    let kafka = Kafka::home()?;
    let log4j = conf.join("log4j2.properties");
    // What runs a class of Kafka, as words of a shell; no path of the bed has a space.
    let command = kafka.command(&Jvm::quick("320m"), &log4j, "", &[]);
    let command = command.join(" ");
    let mut seen = vec![PathBuf::from("/usr"), PathBuf::from("/etc"), conf.to_owned(), kafka.libs.clone()];
    let java = kafka.java().canonicalize()?;
    seen.extend(java.ancestors().nth(2).map(Path::to_owned).filter(|home| !home.starts_with("/usr")));
    seen.extend(Kafka::archive().and_then(|archive| Some(archive.parent()?.to_owned())));
    let mut volumes = vec![json!({ "name": "logs", "hostPath": { "path": LOG_DIRS, "type": "Directory" } })];
    let mut mounts = vec![json!({ "name": "logs", "mountPath": LOG_DIRS })];
    for (number, path) in seen.iter().enumerate() {
        let name = format!("host-{number}");
        volumes.push(json!({ "name": name, "hostPath": { "path": path, "type": "Directory" } }));
        mounts.push(json!({ "name": name, "mountPath": path, "readOnly": true }));
    }
    let container = json!({
        "name": "kafka", "image": IMAGE, "imagePullPolicy": "Never",
        "env": [{ "name": "CONF", "value": conf }, { "name": "KAFKA", "value": command }],
        "readinessProbe": { "tcpSocket": { "port": 9092 }, "periodSeconds": 2, "timeoutSeconds": 2 },
        "volumeMounts": mounts,
    });
    Ok((container, volumes))
}

/// The pods of brokers that nobody is with.
fn plain(_: &Lab, _: &Kubernetes, conf: &Path) -> Result<Vec<Value>> {
    let (mut container, volumes) = container(conf)?;
    container["command"] = json!(["/bin/sh", "-c", format!("{FORMAT}{EXEC}")]);
    indexed(&mut container)?;
    Ok(vec![stateful_set(json!({ "containers": [container], "volumes": volumes }))])
}

/// A container that formats the log dir of its pod's broker, and ends.
pub(super) fn format(conf: &Path) -> Result<Value> {
    let (mut container, _) = container(conf)?;
    container["name"] = json!("format");
    container["command"] = json!(["/bin/sh", "-c", FORMAT]);
    container.as_object_mut().context("it is no object")?.remove("readinessProbe");
    indexed(&mut container)?;
    Ok(container)
}

fn indexed(container: &mut Value) -> Result<()> {
    let index = json!({ "fieldRef": { "fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']" } });
    let index = json!({ "name": "INDEX", "valueFrom": index });
    container["env"].as_array_mut().context("it has no environment")?.push(index);
    Ok(())
}

/// Three pods of these containers and volumes, each on a node of its own.
pub(super) fn stateful_set(mut spec: Value) -> Value {
    let labels = json!({ "app": "kafka" });
    spec["enableServiceLinks"] = json!(false);
    spec["topologySpreadConstraints"] = json!([{
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": { "matchLabels": labels },
    }]);
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "kafka" },
        "spec": {
            "replicas": BROKERS, "serviceName": "kafka", "podManagementPolicy": "Parallel",
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": spec },
        },
    })
}
