//! Makes a standby of a host, and writes the configuration of its agent.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use toml::{Table, Value, toml};

use crate::agent::{HTTP_PORT, binary, fence_lab};
use crate::export::Storage;
use crate::host::Host;
use crate::kafka::{Cluster, Node, pid_file};
use crate::lab::Lab;
use crate::nfs::install::{LEDGER_DIR, TEMPLATE, USER};
use crate::nfs::{Guest, NfsOntap, NfsServer};
use crate::ontap::volume;
use crate::switch::Outlet;

/// Where every host with an agent has the ledger.
pub const LEDGER: &str = "/srv/ledger";

/// Where every host with an agent has the directory that storage canaries write to: on the storage of the log
/// dirs.
pub(crate) const CANARY: &str = "/srv/kafka/canary";

/// The shared directory that holds the cluster's ledger, which has its identity.
///
/// # Errors
/// When it cannot be made.
pub fn ledger_dir(lab: &Lab) -> Result<PathBuf> {
    let dir = lab.kept("ledger")?;
    initialise(&dir)?;
    Ok(dir)
}

/// Runs `understudy ledger init` for a directory. It may be repeated.
///
/// # Errors
/// When it cannot be written.
pub fn initialise(dir: &Path) -> Result<()> {
    // `init` reads no more of a configuration than `guard` does.
    let (config, state) = (dir.with_extension("toml"), dir.with_extension("state"));
    let (ledger, state) = (dir.display(), state.display());
    let text = format!(
        "[agent]\nhost = \"bed\"\nstate_dir = \"{state}\"\n[ledger]\n\
         driver = \"file\"\nlocal = true\ndir = \"{ledger}\"\n[[broker]]\nid = 1\nhome = \"b1\"\n"
    );
    fs::write(&config, text)?;
    let said = Command::new(binary()?).arg("--config").arg(&config).args(["ledger", "init"]).output()?;
    // 3: it was initialised before.
    ensure!(matches!(said.status.code(), Some(0 | 3)), "{ledger} was not initialised: {said:?}");
    Ok(())
}

/// Gives `host` what a standby needs: every broker's log dir and the ledger's directory.
///
/// # Errors
/// When one cannot be mounted.
pub fn equip(lab: &Lab, cluster: &Cluster, host: &Host, ledger: Storage) -> Result<()> {
    cluster.attach(host)?;
    host.mount(ledger, &ledger_dir(lab)?, LEDGER)?;
    host.mount(cluster.storage(), &lab.shared("canary")?, CANARY)
}

/// Gives the home of a broker what an agent there needs: the ledger's directory.
///
/// # Errors
/// When it cannot be mounted.
pub fn equip_home(lab: &Lab, cluster: &Cluster, home: &Host, ledger: Storage) -> Result<()> {
    home.mount(ledger, &ledger_dir(lab)?, LEDGER)?;
    home.mount(cluster.storage(), &lab.shared("canary")?, CANARY)
}

/// The configuration of the agent on `own`, which guards every broker of `cluster`: mode `auto`, every host
/// that is not a controller's fenced through the lab's switch. A story changes what it is about.
///
/// # Errors
/// When the fence agent has not been built.
pub fn config(lab: &Lab, cluster: &Cluster, own: &Host) -> Result<Table> {
    let mut config = base(cluster, own.name());
    let is_controller = |name: &str| {
        let of_zookeeper = cluster.zookeeper().is_some_and(|server| server.host().name() == name);
        of_zookeeper || cluster.controllers().iter().any(|node| node.home_name() == name)
    };
    let hosts = lab.hosts().into_keys().filter(|name| !is_controller(name));
    config
        .insert("host".to_owned(), hosts.map(|name| fenced(lab, &name)).collect::<Result<Vec<_>>>()?.into());
    config.insert(
        "broker".to_owned(),
        cluster.brokers().iter().map(|node| guarded(cluster, node)).collect::<Vec<_>>().into(),
    );
    Ok(config)
}

/// The configuration of the agent in the guest `own`, which guards every broker of `cluster` that is at home
/// in a guest: mode `auto`, its log dir mounted from `server`, Kafka the shipped unit, and every host that
/// `storage` knows fenced by its rules within `timeout`.
///
/// # Errors
/// When the storage system has no certificate.
pub fn guest_config(
    cluster: &Cluster,
    own: &Guest,
    server: &NfsServer,
    storage: &NfsOntap,
    timeout: &str,
) -> Result<Table> {
    let mut config = base(cluster, own.name());
    set(&mut config, "agent", "listen", format!("0.0.0.0:{HTTP_PORT}"));
    set(&mut config, "agent", "state_dir", "/var/lib/understudy");
    set(&mut config, "ledger", "dir", LEDGER_DIR);
    set(&mut config, "ledger", "local", false);
    // An archive that is put into place is used; a slow guest is not made to make one in the middle of a
    // story.
    let unit = [
        ("driver", "systemd"),
        ("unit", "kafka@{broker}.service"),
        ("template", TEMPLATE),
        ("user", USER),
        ("class_data", "manual"),
    ];
    config.insert("broker_host".to_owned(), table(unit));
    let nodes: Vec<&Node> = cluster.brokers().iter().filter(|node| node.guest().is_ok()).collect();
    let host = |name: &str| table([("name", name)]);
    config
        .insert("host".to_owned(), storage.hosts().iter().map(|name| host(name)).collect::<Vec<_>>().into());
    let broker = |node: &&Node| {
        let mut broker = guarded(cluster, node);
        let (source, target) = (server.source(&volume(node.id())), node.mount_point());
        let options = "vers=4.1,proto=tcp,hard,noatime,nconnect=4";
        let mount = table([("source", &source), ("target", &target), ("options", options)]);
        let mut section = toml! { driver = "nfs" };
        section.insert("mount".to_owned(), vec![mount].into());
        if let Value::Table(broker) = &mut broker {
            broker.insert("storage".to_owned(), section.into());
        }
        broker
    };
    config.insert("broker".to_owned(), nodes.iter().map(broker).collect::<Vec<_>>().into());
    storage.login()?.configure(&mut config, own.address(), timeout)?;
    Ok(config)
}

/// What is the same on every host: all but whom to fence and what to guard.
fn base(cluster: &Cluster, host: &str) -> Table {
    let (state_dir, listen) = ("/srv/local/state", format!("127.0.0.1:{HTTP_PORT}"));
    let bootstrap: Vec<String> = cluster.brokers().iter().map(|node| node.address().to_string()).collect();
    let controllers = cluster.controller_endpoints();
    let (command, template) = (cluster.command().to_vec(), cluster.template().display().to_string());
    let mut config = toml! {
        mode = "auto"
        [policy]
        host_down_after = "1500ms"
        hung_after = "30s"
        process_down_after = "60s"
        [ledger]
        driver = "file"
        local = true
        [broker_host]
        driver = "process"
        class_data = "manual"
    };
    config.insert("agent".to_owned(), table([("host", host), ("state_dir", state_dir), ("listen", &listen)]));
    let mut section = Table::new();
    section.insert("bootstrap".to_owned(), bootstrap.into());
    section.insert("controllers".to_owned(), controllers.into());
    if let Some(zookeeper) = cluster.zookeeper() {
        section.insert("zookeeper".to_owned(), zookeeper.address().to_string().into());
        if let Some(secured) = zookeeper.secured() {
            secured.configure(&mut section);
        }
    }
    if let Ok(secured) = cluster.secured() {
        secured.configure(&mut section);
    }
    config.insert("cluster".to_owned(), section.into());
    set(&mut config, "ledger", "dir", LEDGER);
    set(&mut config, "broker_host", "command", command);
    set(&mut config, "broker_host", "template", template);
    config
}

/// Makes `config` that of an agent at a broker's home, which serves this broker and no other, and knows how
/// the one is stopped that the bed itself started there.
pub fn serve_only(config: &mut Table, broker: i32) {
    let stop = ["/bin/sh".to_owned(), "-c".to_owned(), format!("kill $(cat {})", pid_file(broker))];
    set(config, "broker_host", "stop_command", stop.to_vec());
    if let Some(Value::Array(brokers)) = config.get_mut("broker") {
        brokers.retain(|section| section.get("id").and_then(Value::as_integer) == Some(broker.into()));
    }
    let canaries = config.get_mut("canary").and_then(Value::as_array_mut).into_iter().flatten();
    for brokers in canaries.filter_map(|canary| canary.get_mut("brokers")?.as_array_mut()) {
        brokers.retain(|id| id.as_integer() == Some(broker.into()));
    }
}

/// Fences every host by this outlet of the switch; `then_switched_off`: and by its power, where that is not enough.
///
/// # Errors
/// When the agent for outlets that leave a host running cannot be made.
pub fn fence_by(lab: &Lab, config: &mut Table, outlet: Outlet, then_switched_off: bool) -> Result<()> {
    let agent = (outlet != Outlet::Power).then(|| fabric(lab)).transpose()?;
    let Some(Value::Array(hosts)) = config.get_mut("host") else { return Ok(()) };
    for host in hosts {
        let name = host.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(fences) = host.get_mut("fence").and_then(Value::as_array_mut) else { continue };
        let by_power = fences.clone();
        for fence in fences.iter_mut().filter_map(Value::as_table_mut) {
            if let Some(options) = fence.get_mut("options").and_then(Value::as_table_mut) {
                options.insert("plug".to_owned(), outlet.plug(&name).into());
            }
            if let Some(agent) = &agent {
                fence.insert("agent".to_owned(), agent.display().to_string().into());
            }
        }
        if then_switched_off {
            fences.extend(by_power);
        }
    }
    Ok(())
}

/// The fence agent by the name under which its metadata says that it leaves hosts running.
fn fabric(lab: &Lab) -> Result<PathBuf> {
    let path = lab.artifacts().join("fence_lab_fabric");
    if !path.exists() {
        std::os::unix::fs::symlink(fence_lab()?, &path)?;
    }
    Ok(path)
}

/// Has the agent ask those on `others` what they see, and answer them.
pub fn ask_peers<'a>(config: &mut Table, others: impl Iterator<Item = &'a Host>) {
    set(config, "agent", "listen", format!("0.0.0.0:{HTTP_PORT}"));
    let peer = |host: &Host| {
        let url = format!("http://{}:{HTTP_PORT}", host.address());
        table([("host", host.name()), ("url", &url)])
    };
    config.insert("peer".to_owned(), others.map(peer).collect::<Vec<_>>().into());
}

/// Has the agent write to the storage of the log dirs every now and then.
pub fn keep_canary(config: &mut Table, cluster: &Cluster) {
    let brokers: Vec<i64> = cluster.brokers().iter().map(|node| node.id().into()).collect();
    let mut canary = toml! {
        period = "1s"
        deadline = "1s"
    };
    canary.insert("dir".to_owned(), CANARY.into());
    canary.insert("brokers".to_owned(), brokers.into());
    config.insert("canary".to_owned(), vec![canary].into());
}

/// A `[[host]]` that the lab's switch can switch off.
pub(crate) fn fenced(lab: &Lab, name: &str) -> Result<Value> {
    let (agent, switch) = (fence_lab()?.display().to_string(), lab.switch().address());
    let (ip, port) = (switch.ip().to_string(), switch.port().to_string());
    let mut fence = toml! {
        driver = "fence_agent"
        timeout = "10s"
    };
    fence.insert("agent".to_owned(), agent.into());
    fence.insert("options".to_owned(), table([("ip", &ip), ("ipport", &port), ("plug", name)]));
    let mut host = Table::new();
    host.insert("name".to_owned(), name.into());
    host.insert("fence".to_owned(), vec![fence].into());
    Ok(host.into())
}

/// The `[[broker]]` of a node.
fn guarded(cluster: &Cluster, node: &Node) -> Value {
    let address = node.on_link();
    let mut broker = Table::new();
    broker.insert("id".to_owned(), i64::from(node.id()).into());
    broker.insert("home".to_owned(), node.home_name().into());
    broker.insert("listener".to_owned(), node.address().to_string().into());
    broker.insert("log_dirs".to_owned(), node.all_log_dirs().into());
    let address = table([("driver", "netlink"), ("address", &address), ("interface", "eth0")]);
    broker.insert("address".to_owned(), address);
    // A directory of this machine that the hosts share, mounted on itself.
    let storage = toml! {
        driver = "mounted"
        local = true
    };
    broker.insert("storage".to_owned(), storage.into());
    if let Ok(secured) = cluster.secured() {
        let own = secured.of_node(node.id()).into_iter().map(|(key, value)| (key, Value::from(value)));
        broker.insert("properties".to_owned(), Table::from_iter(own).into());
    }
    broker.into()
}

/// Has `server.properties` of a broker rendered with these properties instead of what it would have.
pub(crate) fn render_otherwise(config: &mut Table, broker: i32, properties: &[(&str, &str)]) {
    let is_it = |section: &&mut Value| section.get("id").and_then(Value::as_integer) == Some(broker.into());
    let sections = config.get_mut("broker").and_then(Value::as_array_mut);
    let section = sections.into_iter().flatten().find(is_it).and_then(Value::as_table_mut);
    if let Some(section) = section.filter(|_| !properties.is_empty()) {
        let own = properties.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value)));
        if let Value::Table(given) = section.entry("properties").or_insert_with(|| Table::new().into()) {
            given.extend(own);
        }
    }
}

fn table<const N: usize>(entries: [(&str, &str); N]) -> Value {
    let entries = entries.into_iter().map(|(key, value)| (key.to_owned(), Value::from(value)));
    Table::from_iter(entries).into()
}

/// Sets `key` of a section that a story wants otherwise.
pub fn set(config: &mut Table, section: &str, key: &str, value: impl Into<Value>) {
    let section = config.entry(section).or_insert_with(|| Table::new().into());
    if let Value::Table(section) = section {
        section.insert(key.to_owned(), value.into());
    }
}
