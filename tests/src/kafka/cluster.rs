//! A cluster: KRaft, its controllers and brokers each on a host of their own, log dirs on shared storage.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::format::format_all;
use super::node::{BROKER_PORT, CONTROLLER_PORT, Home, Node, mount_point, write_properties};
use super::properties::{self, By, voters};
use super::secured::{BETWEEN_PORT, Secured, Security, Signer};
use super::watch::Watch;
use super::wire::{ClusterView, Wire};
use super::zookeeper::Server;
use super::{Jvm, Kafka, LOG4J, LOG4J_1, start_script};
use crate::ec2::zones::{self, OTHER_ZONE, ZONE};
use crate::eventually;
use crate::export::Storage;
use crate::history::{GroupReader, History, Verdict, WriteSpec, Writer, verify};
use crate::host::Host;
use crate::lab::Lab;
use crate::nfs;
use crate::nfs::kafka::GuestHome;

/// How long a cluster may take to come up: some seconds where the machine is quiet.
const UP: Duration = Duration::from_secs(300);

/// What kind of cluster.
#[derive(Debug, Clone)]
pub struct ClusterSpec {
    /// Brokers 1 (10.77.0.11), 2, …, at home on hosts b1 (10.77.0.111), b2, …
    pub brokers: u8,
    /// Controllers 101, 102, …, on hosts c1 (10.77.0.21), c2, …
    pub controllers: u8,
    /// How brokers are started.
    pub jvm: Jvm,
    /// Broker properties that differ from the bed's.
    pub properties: Vec<(String, String)>,
    /// Controller properties that differ from Kafka's own.
    pub controller_properties: Vec<(String, String)>,
    /// How many log dirs a broker has: several are directories of one mount.
    pub log_dirs: u8,
    /// Whether the brokers are the controllers as well, and there are no others.
    pub combined: bool,
    /// What the log dirs are formatted with, beside what every cluster is: `--feature NAME=LEVEL`.
    pub format: Vec<String>,
    /// How brokers and standbys have the brokers' log dirs.
    pub storage: Storage,
    /// The brokers that are at home in a guest, and the server that exports their log dirs.
    pub guests: BTreeMap<i32, GuestHome>,
    /// How it is secured.
    pub security: Security,
    /// Whether its ZooKeeper, where it has one, has TLS, logins and ACLs.
    pub secure_zookeeper: bool,
    /// Whether brokers' addresses are outside of every host's subnet (10.99.0.11, …), and broker 3 is at home in
    /// another zone (10.78.0.113) than the others.
    pub zones: bool,
}

impl Default for ClusterSpec {
    fn default() -> Self {
        Self {
            brokers: 3,
            controllers: 1,
            jvm: Jvm::quick("512m"),
            properties: Vec::new(),
            controller_properties: Vec::new(),
            log_dirs: 1,
            combined: false,
            format: Vec::new(),
            storage: Storage::Bind,
            guests: BTreeMap::new(),
            security: Security::Plaintext,
            secure_zookeeper: false,
            zones: false,
        }
    }
}

/// The host or guest that a node is at home on, and its log dir.
fn home(lab: &Lab, spec: &ClusterSpec, (id, port): (i32, u16), host: (&str, u8)) -> Result<(Home, PathBuf)> {
    if let Some(home) = spec.guests.get(&id) {
        return Ok((Home::Guest(Arc::clone(&home.guest)), home.log_dir(id)));
    }
    let zone = if spec.zones && id == 3 { OTHER_ZONE } else { ZONE };
    let home = lab.host(host.0, &zone.address(host.1).to_string())?;
    if spec.zones {
        zones::join(&home)?;
    }
    let log_dir = lab.shared(host.0)?;
    let storage = if port == BROKER_PORT { spec.storage } else { Storage::Bind };
    home.mount(storage, &log_dir, &mount_point(port, id))?;
    Ok((Home::Host(home), log_dir))
}

/// Gives guests that are brokers' homes what starts Kafka there.
fn install_homes(spec: &ClusterSpec, brokers: &[Node], start_script: &str) -> Result<()> {
    let mut at_home = brokers.iter().filter_map(|node| Some((spec.guests.get(&node.id)?, node)));
    at_home.try_for_each(|(home, node)| nfs::kafka::install_home(home, node, start_script))
}

/// The ZooKeeper of a cluster that has one, and how its brokers are started.
fn zookeeper(lab: &Lab, kafka: &Kafka, conf: &Path, spec: &ClusterSpec) -> Result<(Option<Server>, Jvm)> {
    let jvm = spec.jvm.clone();
    if !kafka.has_zookeeper() {
        return Ok((None, jvm));
    }
    let server = Server::start(lab, kafka, conf, spec.secure_zookeeper)?;
    let jvm = match server.secured() {
        Some(secured) => secured.jvm(jvm, "client"),
        None => jvm,
    };
    Ok((Some(server), jvm))
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    brokers: Vec<Node>,
    controllers: Vec<Node>,
    template: PathBuf,
    command: Vec<String>,
    start_script: String,
    artifacts: PathBuf,
    storage: Storage,
    secured: Option<Secured>,
    /// What holds it together where it has no controllers.
    zookeeper: Option<Server>,
}

impl Cluster {
    pub(crate) fn start(lab: &Lab, spec: ClusterSpec) -> Result<Self> {
        let begin = Instant::now();
        let cluster = Self::prepare(lab, &spec)?;
        if let Some(secured) = &cluster.secured {
            let mut nodes = cluster.controllers.iter().chain(&cluster.brokers);
            nodes.try_for_each(|node| secured.show_node(node, Signer::First))?;
        }
        let formatted = begin.elapsed();
        for node in cluster.controllers.iter().chain(&cluster.brokers) {
            node.begin()?;
        }
        cluster.wait_complete(UP)?;
        if cluster.secured.is_some() {
            cluster.allow_app()?;
        }
        lab.note(format!(
            "cluster of {} brokers is up: format {:.1} s, start {:.1} s",
            spec.brokers,
            formatted.as_secs_f64(),
            (begin.elapsed() - formatted).as_secs_f64()
        ));
        Ok(cluster)
    }

    /// Everything but the start of its processes.
    fn prepare(lab: &Lab, spec: &ClusterSpec) -> Result<Self> {
        let kafka = Kafka::home()?;
        let conf = lab.kept("conf")?;
        let log4j = log_settings(&conf)?;
        let secured = Secured::prepare(spec.security, conf.join("security"), lab.artifacts())?;
        let (zookeeper, brokers_jvm) = zookeeper(lab, &kafka, &conf, spec)?;
        let brokers_jvm = match &secured {
            Some(secured) => secured.jvm(brokers_jvm),
            None => brokers_jvm,
        };
        if spec.zones {
            zones::open()?;
        }
        let run = |jvm: &Jvm, properties: &str| kafka.command(jvm, &log4j, "kafka.Kafka", &[properties]);

        let node = |id: i32, host: (&str, u8), ip: u8, port: u16, jvm: &Jvm| -> Result<Node> {
            let (host, own) = host;
            let (home, log_dir) = home(lab, spec, (id, port), (host, own))?;
            let properties = conf.join(format!("{host}.properties"));
            let command = run(jvm, &properties.display().to_string());
            let ip = match spec.zones && port == BROKER_PORT {
                true => zones::outside(ip),
                false => ZONE.address(ip),
            };
            let log_dirs = if port == BROKER_PORT { spec.log_dirs } else { 1 };
            let (process, tls) = (Mutex::default(), secured.as_ref().map(Secured::own));
            Ok(Node { id, home, ip, port, log_dir, log_dirs, properties, command, process, tls })
        };
        let alone = spec.combined || zookeeper.is_some();
        let controllers: Vec<Node> = (1..=if alone { 0 } else { spec.controllers })
            .map(|n| {
                let (id, host, ip) = (100 + i32::from(n), format!("c{n}"), 20 + n);
                node(id, (&host, ip), ip, CONTROLLER_PORT, &Jvm::quick("256m"))
            })
            .collect::<Result<_>>()?;
        let brokers: Vec<Node> = (1..=spec.brokers)
            .map(|n| node(i32::from(n), (&format!("b{n}"), 110 + n), 10 + n, BROKER_PORT, &brokers_jvm))
            .collect::<Result<_>>()?;

        let voters = voters(&controllers, &brokers);
        let held_by = match &zookeeper {
            Some(server) => By::ZooKeeper(server),
            None => By::Controllers(&voters),
        };
        let by = secured.as_ref();
        let common = properties::common(spec, by, held_by);
        let of_controllers = controllers.iter().map(|n| (n, properties::of_controller(spec, by, n, &common)));
        let of_brokers = brokers.iter().map(|n| (n, properties::of_broker(spec, by, held_by, n, &common)));
        let formats: Vec<_> = of_controllers.chain(of_brokers).collect();
        formats.iter().try_for_each(|(node, properties)| write_properties(&node.properties, properties))?;
        let extra = [spec.format.clone(), by.map(Secured::format).unwrap_or_default()].concat();
        // A broker of ZooKeeper's time formats its log dirs itself.
        if zookeeper.is_none() {
            format_all(&kafka, &log4j, &extra, &formats)?;
        }
        let start_script = start_script(&kafka, &spec.jvm);
        install_homes(spec, &brokers, &start_script)?;

        let template = conf.join("template.properties");
        write_properties(&template, &properties::template(spec, by, held_by, &common))?;
        let command = run(&brokers_jvm, "{properties}");
        Ok(Self {
            brokers,
            controllers,
            template,
            command,
            start_script,
            artifacts: lab.artifacts().to_owned(),
            storage: spec.storage,
            secured,
            zookeeper,
        })
    }

    /// Its ZooKeeper, where it has one.
    #[must_use]
    pub fn zookeeper(&self) -> Option<&Server> {
        self.zookeeper.as_ref()
    }

    /// All brokers.
    #[must_use]
    pub fn brokers(&self) -> &[Node] {
        &self.brokers
    }

    /// All controllers.
    #[must_use]
    pub fn controllers(&self) -> &[Node] {
        &self.controllers
    }

    /// A broker, by node id.
    ///
    /// # Errors
    /// When there is none.
    pub fn broker(&self, id: i32) -> Result<&Node> {
        self.brokers.iter().find(|node| node.id == id).with_context(|| format!("no broker {id}"))
    }

    /// All brokers' listeners, as clients want them.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<String> = self.brokers.iter().map(|node| node.address().to_string()).collect();
        addresses.join(",")
    }

    /// All controllers as `id@host:port`, as `[cluster] controllers` wants them.
    #[must_use]
    pub fn controller_endpoints(&self) -> Vec<String> {
        if self.zookeeper.is_some() {
            return Vec::new();
        }
        voters(&self.controllers, &self.brokers)
    }

    /// What secures it.
    ///
    /// # Errors
    /// When nothing does.
    pub fn secured(&self) -> Result<&Secured> {
        self.secured.as_ref().context("this cluster is not secured")
    }

    /// The story's folder.
    pub(super) fn artifacts(&self) -> &Path {
        &self.artifacts
    }

    /// How hosts have the brokers' log dirs.
    pub(crate) fn storage(&self) -> Storage {
        self.storage
    }

    /// A broker's `server.properties` without what identifies it: the standby's template.
    #[must_use]
    pub fn template(&self) -> &Path {
        &self.template
    }

    /// The command that starts a broker; `{properties}` stands for its `server.properties`.
    #[must_use]
    pub fn command(&self) -> &[String] {
        &self.command
    }

    /// The script that starts a broker in a guest, given its `server.properties`.
    pub(crate) fn start_script(&self) -> &str {
        &self.start_script
    }

    /// Mounts every broker's log dir on `host`, where its home has it: makes a standby of it. Those on the
    /// NFS server are left out, for a host without a kernel of its own has no client for them.
    ///
    /// # Errors
    /// When one cannot be mounted.
    pub fn attach(&self, host: &Host) -> Result<()> {
        self.brokers
            .iter()
            .filter(|node| node.home().is_ok_and(|home| home.name() != host.name()))
            .try_for_each(|node| host.mount(self.storage, &node.log_dir, &node.mount_point()))
    }

    /// What the cluster says of itself, through the first broker that answers.
    ///
    /// # Errors
    /// When none answers.
    pub fn view(&self) -> Result<ClusterView> {
        let ask = |node: &Node| Wire::connect(&node.door(), Duration::from_secs(1))?.metadata();
        let mut answers = self.brokers.iter().map(ask);
        answers.find(Result::is_ok).unwrap_or_else(|| Err(anyhow::anyhow!("no broker answers")))
    }

    /// Waits until every broker is registered and unfenced, and every replica in sync.
    ///
    /// # Errors
    /// What is missing after `limit`, or which process ended.
    pub fn wait_complete(&self, limit: Duration) -> Result<()> {
        eventually("the cluster to be complete", limit, || self.view()?.ensure_complete(self.brokers.len()))
            .with_context(|| self.obituary())
    }

    /// Watches `broker` through the others.
    #[must_use]
    pub fn watch(&self, broker: i32) -> Watch {
        let others = self.brokers.iter().filter(|node| node.id != broker);
        Watch::start(broker, others.map(Node::door).collect())
    }

    /// Creates a topic and waits until all its replicas are in sync.
    ///
    /// # Errors
    /// When Kafka refuses, or a minute has passed.
    pub fn create_topic(&self, name: &str, partitions: i32, replication: i32, min_isr: i32) -> Result<()> {
        let min_isr = min_isr.to_string();
        // The broker's own min.insync.replicas is not what a topic gets: set it on the topic.
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(replication))
            .set("min.insync.replicas", &min_isr);
        self.create(&topic)
    }

    /// Creates a topic and waits until all its replicas are in sync.
    pub(super) fn create(&self, topic: &NewTopic<'_>) -> Result<()> {
        let client: AdminClient<DefaultClientContext> = self.administrator().create()?;
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        for result in runtime.block_on(client.create_topics([topic], &options))? {
            result.map_err(|(topic, code)| anyhow::anyhow!("cannot create topic {topic}: {code}"))?;
        }
        let (name, count) = (topic.name, usize::try_from(topic.num_partitions)?);
        eventually(&format!("topic {name} to be in sync"), Duration::from_secs(60), || {
            let view = self.view()?;
            let of_topic = view.partitions.iter().filter(|partition| partition.topic == name);
            ensure!(of_topic.clone().count() == count, "{} partitions", of_topic.count());
            view.ensure_complete(self.brokers.len())
        })
    }

    /// Writes about `bytes` of incompressible records to a topic: at replication N over N brokers, that much
    /// on each.
    ///
    /// # Errors
    /// When a record is refused.
    pub fn load(&self, topic: &str, partitions: i32, bytes: u64) -> Result<()> {
        let record = noise(64 << 10);
        let producer: BaseProducer = self
            .client()
            .set("acks", "all")
            .set("linger.ms", "20")
            .set("batch.size", "1000000")
            .set("queue.buffering.max.kbytes", "131072")
            .create()?;
        for (number, _) in (0..bytes).step_by(record.len()).enumerate() {
            let partition = i32::try_from(number)? % partitions;
            let mut next = BaseRecord::<(), [u8]>::to(topic).payload(&record).partition(partition);
            while let Err((error, unsent)) = producer.send(next) {
                let full = rdkafka::types::RDKafkaErrorCode::QueueFull;
                ensure!(error.rdkafka_error_code() == Some(full), "cannot load {topic}: {error}");
                producer.poll(Duration::from_millis(20));
                next = unsent;
            }
            producer.poll(Duration::ZERO);
        }
        producer.flush(Duration::from_secs(300)).with_context(|| format!("cannot load {topic}"))
    }

    /// Starts a writer whose every acknowledgement is recorded.
    ///
    /// # Errors
    /// When the client or its file cannot be made.
    pub fn write(&self, spec: WriteSpec) -> Result<Writer> {
        Writer::start(self.client(), spec, &self.artifacts)
    }

    /// Starts a member of the consumer group `group`.
    ///
    /// # Errors
    /// When the client cannot be made.
    pub fn read_in_group(&self, topic: &str, group: &str) -> Result<GroupReader> {
        GroupReader::start(self.client(), topic, group)
    }

    /// Reads the topic of `histories`, which must be all that was written to it, and judges them. Of
    /// partitions with a violation, every broker's files are kept with the artifacts, for `kafka-dump-log`.
    ///
    /// # Errors
    /// When the topic cannot be read; violations are in the [`Verdict`].
    pub fn verify(&self, histories: &[&History]) -> Result<Verdict> {
        let verdict = verify(self.client(), histories)?;
        let topic = histories.first().map_or("", |history| history.topic.as_str());
        for partition in verdict.partitions() {
            for node in &self.brokers {
                let name = format!("{topic}-{partition}");
                let kept = self.artifacts.join(format!("evidence/broker-{}/{name}", node.id));
                // The verdict is what counts: a broker without a replica, or a file that goes, must not hide
                // it.
                if let Err(error) = copy_files(&node.log_dir.join(&name), &kept) {
                    eprintln!("not all of {name} of broker {} is kept: {error}", node.id);
                }
            }
        }
        Ok(verdict)
    }

    /// A client as those who produce and consume are.
    #[must_use]
    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.bootstrap());
        if let Some(secured) = &self.secured {
            secured.log_in(&mut config);
        }
        config
    }

    /// A client that may do everything.
    #[must_use]
    pub fn administrator(&self) -> ClientConfig {
        let Some(secured) = &self.secured else { return self.client() };
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.between());
        secured.be_node(&mut config);
        config
    }

    /// The listeners of a secured cluster's brokers for each other.
    pub(super) fn between(&self) -> String {
        let addresses = self.brokers.iter().map(|node| format!("{}:{BETWEEN_PORT}", node.ip));
        addresses.collect::<Vec<_>>().join(",")
    }

    /// The last words of every process that has ended.
    fn obituary(&self) -> String {
        let processes = self.controllers.iter().chain(&self.brokers).filter_map(|node| node.process().ok());
        let ended: Vec<Arc<_>> = processes.filter(|process| !process.is_running()).collect();
        if ended.is_empty() {
            return "all its processes run".to_owned();
        }
        let words =
            ended.iter().map(|process| format!("{} ended:\n{}", process.name(), process.last_words()));
        words.collect::<Vec<_>>().join("\n")
    }
}

/// Writes what Kafka of either kind reads of how it logs. The path is the newer's.
fn log_settings(conf: &Path) -> Result<PathBuf> {
    let log4j = conf.join("log4j2.properties");
    fs::write(&log4j, LOG4J)?;
    fs::write(conf.join("log4j.properties"), LOG4J_1)?;
    Ok(log4j)
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    let entries = fs::read_dir(from)?;
    fs::create_dir_all(to)?;
    for entry in entries {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Bytes that no compression shrinks, the same every time.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    std::iter::repeat_with(step).take(length).collect()
}
