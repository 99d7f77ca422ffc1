//! `cargo xtask bench ledger`: how long the daemon's reading of many brokers takes, by ledger, and how many
//! threads it takes. Each broker has had two takeovers that have ended.
//!
//! `file`: a directory. `etcd`: one member, in memory. `kafka`: one broker and a topic with one replica. All
//! on this host, so what a network and a quorum add comes on top.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use drivers::clock::SystemClock;
use drivers::ledger::LedgerConfig;
use drivers::machine::{Local, random_id};
use fakes::ledger::contract::{append, claim, ended, started};
use recovery::known::{Identity, KnownLedger, Member, init};
use recovery::ledger_signal::LedgerSignal;
use recovery::model::{BrokerId, HostName};
use recovery::ports::{Clock, Ledger};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

/// The readings of which each figure is told.
const READINGS: usize = 20;
/// How many brokers are filled at once: no more than are read, so that no thread is left of it.
const AT_ONCE: usize = 16;
/// How long etcd or Kafka may take to come up.
const UP_WITHIN: Duration = Duration::from_secs(120);

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: bench_ledger BROKERS FILE [DIR]";
    let (Some(brokers), Some(file)) = (arguments.next(), arguments.next()) else { return Err(usage.into()) };
    let brokers: i32 = brokers.parse().map_err(|_| usage)?;
    let scratch = PathBuf::from(format!("{file}.scratch"));
    let shared = arguments.next().map_or_else(|| scratch.clone(), PathBuf::from).join("ledger");
    std::fs::create_dir_all(&shared)?;
    let mut ledgers = BTreeMap::new();
    let config = json!({ "driver": "file", "dir": shared });
    ledgers.insert("file", measure("file", config, brokers, &scratch).await?);
    ledgers.insert("etcd", with("etcd", Server::etcd(&scratch), brokers, &scratch).await?);
    ledgers.insert("kafka", with("kafka", Server::kafka(&scratch), brokers, &scratch).await?);
    std::fs::remove_dir_all(&scratch)?;
    let cpus = thread::available_parallelism()?.get();
    let report = json!({ "brokers": brokers, "readings": READINGS, "cpus": cpus, "ledgers": ledgers });
    std::fs::write(file, serde_json::to_string_pretty(&report)?)?;
    writeln!(std::io::stdout(), "{report:#}")?;
    Ok(())
}

/// A server of this benchmark. It ends with it.
struct Server {
    process: Child,
    config: Value,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended by itself otherwise.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    fn etcd(scratch: &Path) -> Outcome<Self> {
        let (client, peer) = (free_port()?, free_port()?);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut etcd = Command::new("etcd");
        etcd.arg("--data-dir").arg(scratch.join("etcd")).arg("--name=m0");
        etcd.arg(format!("--listen-client-urls={}", url(client)));
        etcd.arg(format!("--advertise-client-urls={}", url(client)));
        etcd.arg(format!("--listen-peer-urls={}", url(peer)));
        etcd.arg(format!("--initial-advertise-peer-urls={}", url(peer)));
        etcd.arg(format!("--initial-cluster=m0={}", url(peer)));
        let process = etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { process, config: json!({ "driver": "etcd", "endpoints": [url(client)] }) })
    }

    /// From the jars of `UNDERSTUDY_KAFKA_HOME`.
    fn kafka(scratch: &Path) -> Outcome<Self> {
        let home = std::env::var_os("UNDERSTUDY_KAFKA_HOME").ok_or("UNDERSTUDY_KAFKA_HOME is not set")?;
        let (dir, broker, controller) = (scratch.join("kafka"), free_port()?, free_port()?);
        std::fs::create_dir_all(&dir)?;
        let properties = dir.join("server.properties");
        let text = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\nlog.dirs={}\noffsets.topic.replication.factor=1\n\
             auto.create.topics.enable=true\nnum.partitions=1\nmin.insync.replicas=1\n",
            dir.join("logs").display()
        );
        std::fs::write(&properties, text)?;
        let java = |class: &str| {
            let mut java = Command::new("java");
            java.arg("-Xmx512m").arg("-cp").arg(Path::new(&home).join("libs/*")).arg(class);
            java.stdout(Stdio::null()).stderr(Stdio::null());
            java
        };
        let mut format = java("kafka.tools.StorageTool");
        format.args(["format", "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAA", "--config"]).arg(&properties);
        if !format.status()?.success() {
            return Err("the log dir was not formatted".into());
        }
        let process = java("kafka.Kafka").arg(&properties).spawn()?;
        let bootstrap = format!("127.0.0.1:{broker}");
        make_topic(&bootstrap)?;
        Ok(Self { process, config: json!({ "driver": "kafka", "bootstrap": [bootstrap] }) })
    }
}

fn free_port() -> Outcome<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// One that asks for a topic has it made, once the broker is up.
fn make_topic(bootstrap: &str) -> Outcome<()> {
    use rdkafka::config::ClientConfig;
    use rdkafka::producer::{BaseProducer, Producer};
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap);
    let (client, begun): (BaseProducer, _) = (config.create()?, Instant::now());
    while begun.elapsed() < UP_WITHIN {
        let seen = client.client().fetch_metadata(Some("_understudy_ledger"), Duration::from_secs(1));
        if seen.is_ok_and(|seen| seen.topics().iter().any(|topic| !topic.partitions().is_empty())) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(200));
    }
    Err("Kafka did not come up".into())
}

/// A ledger whose server may not be here: then it says so.
async fn with(name: &str, server: Outcome<Server>, brokers: i32, scratch: &Path) -> Outcome<Value> {
    match server {
        Ok(server) => measure(name, server.config.clone(), brokers, scratch).await,
        Err(why) => Ok(json!({ "not_measured": why.to_string() })),
    }
}

async fn measure(name: &str, config: Value, brokers: i32, scratch: &Path) -> Outcome<Value> {
    let config: LedgerConfig = serde_json::from_value(config)?;
    let open = || config.open().map_err(|problems| problems.join("; "));
    let (inner, clock) = (open()?, SystemClock);
    let identity = Identity::new(random_id()?, "bench".into(), clock.now().wall);
    let begun = Instant::now();
    while let Err(error) = init(inner.as_ref(), &identity).await {
        if begun.elapsed() > UP_WITHIN {
            return Err(error.into());
        }
        sleep(Duration::from_millis(200)).await;
    }
    let homes: BTreeMap<BrokerId, HostName> =
        (1..=brokers).map(|id| (BrokerId(id), "bench".into())).collect();
    fill(&inner, brokers).await?;
    // What the daemon has: a ledger that is known, to an agent that is known to it.
    let known = |state: &str| -> Outcome<LedgerSignal> {
        let dir = scratch.join(format!("{name}-{state}"));
        std::fs::create_dir_all(&dir)?;
        let (here, machine) = ("bench".into(), Arc::new(Local::new(dir)));
        let who = Member { here, machine, homes: homes.clone(), place: name.to_owned(), joins: true };
        let ledger = Arc::new(KnownLedger::new(open()?, who, Arc::new(SystemClock)));
        Ok(LedgerSignal::new(ledger, homes.clone(), watch::channel(BTreeMap::new()).1))
    };
    let counted = Threads::count();
    let signal = known("state")?;
    let (joining, _) = read(&signal, brokers).await?;
    // Another process of the same host, which knows nothing of what is in the ledger.
    let signal = known("state")?;
    let (first, _) = read(&signal, brokers).await?;
    let mut quiet = Vec::new();
    for _ in 0..READINGS {
        // As far apart as the daemon's.
        sleep(Duration::from_millis(500)).await;
        quiet.push(read(&signal, brokers).await?.0);
    }
    let mut changed = Vec::new();
    for n in 0..READINGS as u64 {
        inner.claim(&claim(1, 3 + n, "bench")).await?;
        let (took, epoch) = read(&signal, brokers).await?;
        if epoch != 3 + n {
            return Err(format!("{name}: a change was missed: epoch {epoch}").into());
        }
        changed.push(took);
        append(inner.as_ref(), (1, 3 + n, "bench"), &[ended()]).await?;
    }
    Ok(json!({
        "first_with_registration_ms": joining, "first_ms": first, "quiet_ms": figures(quiet),
        "one_open_ms": figures(changed), "threads_at_most": counted.most(),
    }))
}

/// Two takeovers of each broker.
async fn fill(ledger: &Arc<dyn Ledger>, brokers: i32) -> Outcome<()> {
    let mut filling = tokio::task::JoinSet::new();
    for broker in 1..=brokers {
        if filling.len() == AT_ONCE {
            filling.join_next().await.transpose()?;
        }
        let ledger = ledger.clone();
        filling.spawn(async move {
            for epoch in 1..=2 {
                let won = ledger.claim(&claim(broker, epoch, "bench")).await;
                won.unwrap_or_else(|error| panic!("{}", recovery::ports::chain(&error)));
                let entries = [started(0), started(1), ended()];
                let kept = append(ledger.as_ref(), (broker, epoch, "bench"), &entries).await;
                kept.unwrap_or_else(|error| panic!("{}", recovery::ports::chain(&error)));
            }
        });
    }
    while filling.join_next().await.transpose()?.is_some() {}
    Ok(())
}

/// How long it took, in ms, and the newest epoch of broker 1.
async fn read(signal: &LedgerSignal, brokers: i32) -> Outcome<(f64, u64)> {
    let begun = Instant::now();
    let reading = signal.read().await.map_err(|error| recovery::ports::chain(&error))?;
    if reading.brokers.len() != usize::try_from(brokers)? {
        return Err(format!("{} of {brokers} brokers were read", reading.brokers.len()).into());
    }
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    Ok(((took * 10.0).round() / 10.0, reading.brokers[&BrokerId(1)].epoch.0))
}

fn figures(mut times: Vec<f64>) -> Value {
    times.sort_by(f64::total_cmp);
    json!({ "median": times.get(times.len() / 2), "longest": times.last() })
}

/// The threads of this process, counted all the time.
struct Threads {
    most: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
}

impl Threads {
    fn count() -> Self {
        let (most, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, end) = (most.clone(), over.clone());
        thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let now = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
                seen.fetch_max(now, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
        });
        Self { most, over }
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
