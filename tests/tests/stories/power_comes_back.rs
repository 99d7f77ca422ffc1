//! All brokers lose power together, and boot 20 s apart. Nobody is taken over because the others are up first;
//! who stays away is taken over, after the time of a boot. With all three ledgers at once.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use e2e::agent::Agent;
use e2e::kafka::{Cluster, ClusterSpec, Jvm, Standing};
use e2e::scenario::{PATIENCE, Scenario, Setup, VICTIM};
use e2e::{Fault, Lab, eventually, story};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use recovery::policy::Policy;
use toml::{Table, Value};

/// From the boot of one host to the next one's.
const APART: Duration = Duration::from_secs(20);

/// What `policy.boot_patience` is by default.
fn boot_patience() -> Duration {
    Policy::default().boot_patience
}

/// The guarded brokers, in the order in which they boot.
const GUARDED: [i32; 3] = [3, 2, VICTIM];

/// Brokers that nobody guards, and that carry the ledger's topic.
const CARRIERS: [i32; 3] = [4, 5, 6];

const TOPIC: &str = "_understudy_ledger";

const ETCD: &str = "http://10.77.0.41:2379";

/// Each standby has a ledger of its own, so that one loss of power is judged by all three drivers. What broker
/// 1 has at home asks that of the topic: it lies on brokers that lose their power as well, and are back first.
const BOOKS: [Book; 3] = [Book::File, Book::Etcd, Book::Kafka];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Book {
    File,
    Etcd,
    Kafka,
}

#[test]
fn who_boots_late_is_left_alone_and_who_stays_away_is_taken_over() {
    story("who_boots_late_is_left_alone_and_who_stays_away_is_taken_over", |lab| {
        let scenario = begin(lab)?;
        nobody_is_taken_over_because_others_booted_first(&scenario)?;
        let [file, etcd, agent] = scenario.standbys.as_slice() else { bail!("not three standbys") };
        [file, etcd].into_iter().try_for_each(|agent| agent.host().power_off())?;
        who_stays_away_is_taken_over(&scenario, agent)?;
        scenario.verdict()?;
        Ok(())
    });
}

fn nobody_is_taken_over_because_others_booted_first(scenario: &Scenario<'_>) -> Result<()> {
    lose_power(scenario, &scenario.standbys)?;
    boot_carriers(scenario)?;
    for id in GUARDED {
        thread::sleep(APART);
        boot(scenario, id)?;
    }
    scenario.cluster.wait_complete(PATIENCE)?;
    let all_healthy = || {
        scenario.standbys.iter().try_for_each(|agent| {
            let status = agent.status()?;
            let brokers = status["brokers"].as_array().context("no brokers in /v1/status")?;
            brokers.iter().try_for_each(|broker| {
                ensure!(broker["epoch"] == 0, "it was claimed: {broker}");
                ensure!(broker["decision"]["decision"] == "healthy", "{broker}");
                Ok(())
            })
        })
    };
    eventually("every broker to be healthy by every ledger", PATIENCE, all_healthy)?;
    // Nor is anybody claimed later, when nobody is waited for any more.
    thread::sleep(boot_patience());
    all_healthy()?;
    scenario.ensure_not_started()
}

/// The others come back, and `agent` is the only standby that is left.
fn who_stays_away_is_taken_over(scenario: &Scenario<'_>, agent: &Arc<Agent>) -> Result<()> {
    let watch = scenario.cluster.watch(VICTIM);
    watch.wait("to be in every ISR", PATIENCE, Standing::is_complete)?;
    let fault = Instant::now();
    lose_power(scenario, std::slice::from_ref(agent))?;
    boot_carriers(scenario)?;
    let mut last = Instant::now();
    for id in GUARDED.into_iter().filter(|id| *id != VICTIM) {
        boot(scenario, id)?;
        last = Instant::now();
    }
    watch.wait_rejoined(fault, PATIENCE)?;
    let waited = last.elapsed();
    ensure!(waited >= boot_patience(), "taken over {waited:?} after the last one began to boot");
    let status = scenario.decided_by(agent, "healthy", PATIENCE)?;
    ensure!(status["epoch"] == 1, "not one takeover: {status}");
    scenario.ensure_runs_on(agent.host().name())
}

/// The cluster, the three ledgers, and a standby for each. The agents at home are for `guard` only.
fn begin(lab: &Lab) -> Result<Scenario<'_>> {
    let cluster = ClusterSpec { brokers: 6, jvm: Jvm::quick("256m"), ..ClusterSpec::default() };
    let setup = Setup { cluster, rate: 200, standbys: 3, at_home: &GUARDED, ..Setup::default() };
    let scenario = Scenario::begin(lab, &setup)?;
    start_etcd(lab)?;
    make_topic(&scenario.cluster)?;
    for agents in [&scenario.standbys, &scenario.at_home] {
        for (agent, book) in agents.iter().zip(BOOKS) {
            configure(agent, &scenario.cluster, book)?;
        }
    }
    for (agent, book) in scenario.standbys.iter().zip(BOOKS) {
        if book != Book::File {
            eventually(&format!("the ledger {book:?} to be initialised"), PATIENCE, || {
                scenario.cli_of(agent, &["ledger", "init"], 0).map(drop)
            })?;
        }
        agent.start()?;
        agent.wait_ready(PATIENCE)?;
        scenario.decided_by(agent, "healthy", PATIENCE)?;
    }
    Ok(scenario)
}

/// Every broker's host at once. A blind agent holds.
fn lose_power(scenario: &Scenario<'_>, watching: &[Arc<Agent>]) -> Result<()> {
    for node in scenario.cluster.brokers() {
        let home = node.home_name();
        if scenario.lab.named(home)?.is_on() {
            scenario.strike(&Fault::PowerOff(home.to_owned()))?;
        }
    }
    for agent in watching {
        scenario.held_by(agent, "isolated", PATIENCE)?;
        let down = agent.status()?["down"].clone();
        let together = down.as_array().into_iter().flatten().filter_map(|one| one["together"].as_array());
        ensure!(together.into_iter().any(|ids| ids.len() > 1), "`status` does not say who counts: {down}");
    }
    Ok(())
}

fn boot_carriers(scenario: &Scenario<'_>) -> Result<()> {
    for id in CARRIERS {
        scenario.lab.named(&format!("b{id}"))?.power_on()?;
        scenario.cluster.broker(id)?.start()?;
    }
    Ok(())
}

/// The host of a guarded broker has power again, and its unit starts Kafka where `guard` lets it.
fn boot(scenario: &Scenario<'_>, id: i32) -> Result<()> {
    let home = format!("b{id}");
    scenario.lab.note(format!("{home} boots"));
    scenario.lab.named(&home)?.power_on()?;
    let guard = scenario.at_home.iter().find(|agent| agent.host().name() == home);
    let guard = guard.with_context(|| format!("no agent on {home}"))?;
    // The unit tries again while the ledger cannot be read.
    eventually(&format!("`guard` to let broker {id} start"), PATIENCE, || {
        let started = scenario.cluster.broker(id)?.start_if_guard_allows(guard)?;
        started.map(drop).map_err(|said| anyhow!("{} {}", said.stdout, said.stderr))
    })
}

/// Writes the ledger into an agent's configuration, and leaves out the brokers that carry it.
fn configure(agent: &Agent, cluster: &Cluster, book: Book) -> Result<()> {
    let mut ledger = Table::new();
    match book {
        Book::File => return Ok(()),
        Book::Etcd => {
            ledger.insert("driver".to_owned(), "etcd".into());
            ledger.insert("endpoints".to_owned(), vec![ETCD.to_owned()].into());
        }
        Book::Kafka => {
            let nodes = CARRIERS.map(|id| Ok(cluster.broker(id)?.address().to_string()));
            let nodes = nodes.into_iter().collect::<Result<Vec<String>>>()?;
            ledger.insert("driver".to_owned(), "kafka".into());
            ledger.insert("bootstrap".to_owned(), nodes.into());
        }
    }
    let path = agent.host().local().join("understudy.toml");
    let mut config: Table = fs::read_to_string(&path)?.parse()?;
    config.insert("ledger".to_owned(), ledger.into());
    if let Some(Value::Array(brokers)) = config.get_mut("broker") {
        let guarded = |section: &Value| section.get("id").and_then(Value::as_integer);
        brokers.retain(|section| GUARDED.iter().any(|id| guarded(section) == Some((*id).into())));
    }
    Ok(fs::write(&path, config.to_string())?)
}

fn start_etcd(lab: &Lab) -> Result<()> {
    let host = lab.host("etcd", "10.77.0.41")?;
    let peers = "http://10.77.0.41:2380";
    let cluster = format!("etcd={peers}");
    host.spawn(
        "etcd",
        &[
            "etcd",
            "--name=etcd",
            "--data-dir=/srv/local/etcd",
            &format!("--listen-client-urls={ETCD}"),
            &format!("--advertise-client-urls={ETCD}"),
            &format!("--listen-peer-urls={peers}"),
            &format!("--initial-advertise-peer-urls={peers}"),
            &format!("--initial-cluster={cluster}"),
        ],
    )?;
    Ok(())
}

/// As the documentation says, on the brokers that nobody guards.
fn make_topic(cluster: &Cluster) -> Result<()> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap());
    let client: AdminClient<DefaultClientContext> = config.create()?;
    let replicas: [&[i32]; 1] = [&CARRIERS];
    let topic = NewTopic::new(TOPIC, 1, TopicReplication::Variable(&replicas))
        .set("cleanup.policy", "compact")
        .set("min.insync.replicas", "2")
        .set("unclean.leader.election.enable", "false");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let made = runtime.block_on(client.create_topics([&topic], &AdminOptions::new()))?;
    made.into_iter().try_for_each(|one| one.map(drop).map_err(|(_, code)| anyhow!("{TOPIC}: {code}")))?;
    eventually("the ledger's topic", PATIENCE, || {
        let view = cluster.view()?;
        ensure!(view.partitions.iter().any(|partition| partition.topic == TOPIC), "it is not there");
        view.ensure_complete(cluster.brokers().len())
    })
}
