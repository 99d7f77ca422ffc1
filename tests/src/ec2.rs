//! An EC2 whose state drives the hosts of a story: each is an instance with one interface, in the subnet of its zone.
//! An instance that it stops loses its power, and packets go where it says that an address is or is routed to, and
//! nowhere else. A host that dies by itself stays `running` there, as a crashed instance does.

mod vpc;
pub mod zones;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::{Value, json};
use toml::{Table, toml};

use crate::host::Host;
use crate::http;
use crate::lab::{HUB, Lab};
use crate::ontap::tables;
use zones::{IDLE_TABLE, OTHER_ZONE, Zone};

/// Names the virtual environment with the simulator's parts.
const VENV: &str = "UNDERSTUDY_EC2_BED";
/// What every host's role may do, and nothing else: as a standby's of the guide.
const POLICY: &str = include_str!("../../deploy/aws/iam-standby.json");
/// The access key of every host.
const KEY: &str = "STORY";
/// What FSx knows the storage system by.
const SVM: &str = "svm-0123456789abcdef0";
/// How often hosts are made to follow. What EC2 tells of an instance waits for that.
const TICK: Duration = Duration::from_millis(30);
/// How long the simulator may take to answer the bed.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// An EC2, and the VPC of a story's hosts.
pub struct Ec2 {
    cloud: Arc<Cloud>,
    /// It ends with its standard input.
    simulator: Child,
}

struct Cloud {
    at: SocketAddr,
    hosts: Mutex<BTreeMap<String, Arc<Host>>>,
    /// Where packets went when hosts followed last.
    network: Mutex<Network>,
    /// Whether there are hosts in the other zone.
    zones: bool,
    /// What must never have been.
    wrongs: Mutex<Vec<String>>,
}

/// Where packets go, as the simulator tells it.
#[derive(Default, Deserialize)]
struct Network {
    /// The interface that has each address of the subnets.
    addresses: BTreeMap<String, String>,
    /// By route table: the interface that each address outside of the subnets is sent to.
    tables: BTreeMap<String, BTreeMap<String, String>>,
    /// The interfaces that take and send what is not theirs.
    open: BTreeSet<String>,
}

impl Network {
    /// The interfaces that take an address which a route table sends to them.
    fn taken(&self) -> BTreeSet<(&String, &String)> {
        let sent = self.tables.values().flatten();
        sent.filter(|(_, interface)| self.open.contains(*interface)).collect()
    }
}

impl Ec2 {
    /// Starts it for all hosts of a lab, each with the addresses that it has: the first one is its own. Those outside
    /// of the subnets are sent to it by the route tables of both zones.
    ///
    /// # Errors
    /// When it does not start, or the network cannot be made.
    pub fn start(lab: &Lab) -> Result<Self> {
        let (simulator, port) = simulate(lab.artifacts())?;
        let hosts = lab.hosts();
        let zones = hosts.values().any(|host| Zone::of(host) == OTHER_ZONE);
        let cloud = Cloud {
            at: SocketAddr::from((HUB, port)),
            hosts: Mutex::default(),
            network: Mutex::default(),
            zones,
            wrongs: Mutex::default(),
        };
        let ec2 = Self { cloud: Arc::new(cloud), simulator };
        let policy: Value = serde_json::from_str(POLICY).context("the policy of a standby is not JSON")?;
        let subnet = |zone: Zone| (zone.subnet.to_owned(), json!({"vpc": "vpc-1", "cidr": zone.cidr()}));
        let used = &Zone::BOTH[..if zones { 2 } else { 1 }];
        let subnets: Value = used.iter().copied().map(subnet).collect::<serde_json::Map<_, _>>().into();
        ec2.cloud.ask("PUT", "", &json!({"bed": true, "subnets": subnets, "policy": policy}))?;
        vpc::make()?;
        for host in hosts.values() {
            ec2.plug_in(host)?;
        }
        if zones {
            ec2.divide(&hosts)?;
        }
        vpc::close()?;
        for host in hosts.values() {
            // What they know of each other goes past the VPC.
            host.run(&["ip", "neigh", "flush", "dev", "eth0"])?;
        }
        let follower = Arc::downgrade(&ec2.cloud);
        thread::spawn(move || follow(&follower));
        lab.note(format!("EC2 at {}", ec2.endpoint()));
        Ok(ec2)
    }

    /// Gives each zone its route table, by which addresses outside of the subnets go to the hosts that have them.
    fn divide(&self, hosts: &BTreeMap<String, Arc<Host>>) -> Result<()> {
        let mut routes = serde_json::Map::new();
        for host in hosts.values() {
            let outside = host.addresses()?.into_iter().filter(|address| address.ends_with("/32"));
            routes.extend(outside.map(|address| (address, interface(host).into())));
        }
        let table = |id: &str, subnets: &[&str], routes: &serde_json::Map<String, Value>| {
            let tags = json!({"understudy": "kafka"});
            (id.to_owned(), json!({"vpc": "vpc-1", "subnets": subnets, "routes": routes, "tags": tags}))
        };
        let used = Zone::BOTH.map(|zone| table(zone.table, &[zone.subnet], &routes));
        let idle = table(IDLE_TABLE, &[], &serde_json::Map::new());
        let tables: serde_json::Map<_, _> = used.into_iter().chain([idle]).collect();
        vpc::divide()?;
        self.change(&json!({"tables": tables}))?;
        self.cloud.follow()
    }

    /// Makes an instance of a host that came later.
    ///
    /// # Errors
    /// When EC2 does not answer, or the host is off.
    pub(crate) fn plug_in(&self, host: &Arc<Host>) -> Result<()> {
        let addresses: Vec<String> =
            host.addresses()?.iter().filter_map(|one| Some(one.split_once('/')?.0.to_owned())).collect();
        let (primary, further) = addresses.split_first().context("a host without an address")?;
        let zones = self.cloud.zones;
        let secondary = if zones { &[] } else { further };
        let nic = json!({
            "subnet": Zone::of(host).subnet, "mac": host.hardware(), "primary": primary, "secondary": secondary,
            "instance": instance(host), "tags": {"understudy": "kafka"}, "checks": !zones,
        });
        let tags = json!({"Name": host.name(), "understudy": "kafka"});
        let of =
            json!({"state": "running", "tags": tags, "interface": interface(host), "recovery": "disabled"});
        let more = json!({"interfaces": {interface(host): nic}, "instances": {instance(host): of}});
        lock(&self.cloud.hosts).insert(host.name().to_owned(), Arc::clone(host));
        self.change(&more)?;
        vpc::place(host)?;
        self.cloud.boot(host)?;
        self.cloud.follow()
    }

    /// Has every host fenced by EC2 and by nothing else, every broker's address moved by it to `own` within `timeout`, and
    /// what it says of instances heard.
    pub(crate) fn configure(&self, config: &mut Table, own: &Host, timeout: &str) {
        let hosts = lock(&self.cloud.hosts);
        let mut asked = toml! { region = "eu-central-1" };
        asked.insert("endpoint".to_owned(), self.endpoint().into());
        let mut told = Table::new();
        for section in tables(config, "host") {
            let name = section.get("name").and_then(toml::Value::as_str).unwrap_or_default().to_owned();
            let Some(host) = hosts.get(&name) else { continue };
            let mut known = Table::new();
            known.insert("tag".to_owned(), format!("Name={name}").into());
            told.insert(name, known.clone().into());
            known.insert("id".to_owned(), instance(host).into());
            known.insert("private_address".to_owned(), host.address().to_string().into());
            let mut fence = toml! {
                driver = "ec2_stop"
                timeout = "100s"
            };
            fence.insert("instance".to_owned(), known.into());
            fence.insert("ec2".to_owned(), asked.clone().into());
            section.insert("fence".to_owned(), vec![toml::Value::from(fence)].into());
        }
        for section in tables(config, "broker") {
            let Some(toml::Value::Table(address)) = section.get_mut("address") else { continue };
            if self.cloud.zones {
                address.insert("driver".to_owned(), "ec2_route".into());
                let tables = Zone::BOTH.map(|zone| toml::Value::from(zone.table));
                address.insert("route_tables".to_owned(), tables.to_vec().into());
            } else {
                address.insert("driver".to_owned(), "ec2_secondary_ip".into());
            }
            address.insert("network_interface".to_owned(), interface(own).into());
            address.insert("timeout".to_owned(), timeout.into());
            address.insert("ec2".to_owned(), asked.clone().into());
        }
        let mut signal = Table::new();
        signal.insert("hosts".to_owned(), told.into());
        signal.insert("ec2".to_owned(), asked.into());
        config.insert("ec2_status".to_owned(), signal.into());
    }

    /// Has the storage system of a configuration found by FSx's API, in place of its address.
    ///
    /// # Errors
    /// When EC2 does not answer, or no storage system is configured.
    pub(crate) fn find_storage(&self, config: &mut Table) -> Result<()> {
        let mut place = toml! { region = "eu-central-1" };
        place.insert("svm".to_owned(), SVM.into());
        place.insert("endpoint".to_owned(), self.endpoint().into());
        let mut named = None;
        let fences = tables(config, "host").filter_map(|host| host.get_mut("fence")?.as_array_mut());
        let mut logins: Vec<&mut Table> = fences.flatten().filter_map(login).collect();
        logins.retain(|login| login.contains_key("url"));
        for login in logins {
            named = login.remove("url").or(named);
            login.insert("fsx".to_owned(), place.clone().into());
        }
        for broker in tables(config, "broker") {
            let grant = broker.get_mut("storage").and_then(|storage| storage.get_mut("grant"));
            let Some(login) = grant.and_then(login) else { continue };
            named = login.remove("url").or(named);
            login.insert("fsx".to_owned(), place.clone().into());
        }
        let named = named.as_ref().and_then(|url| url.as_str()?.strip_prefix("https://"));
        let management = named.context("no storage system is configured")?;
        let svm = json!({"system": "fs-0123456789abcdef0", "name": "svm1", "management": management});
        self.change(&json!({"svms": {SVM: svm}}))
    }

    /// Changes a part of its world, as the simulator's program describes.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn change(&self, more: &Value) -> Result<()> {
        self.cloud.ask("POST", "/state", more).map(drop)
    }

    /// Somebody else has EC2 move an address to the interface of `host`.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn reassign(&self, address: Ipv4Addr, host: &Host) -> Result<()> {
        self.change(&json!({"assign": {address.to_string(): interface(host)}}))
    }

    /// The next calls of `action` meet this fault: the address goes to `host` once it was moved.
    #[must_use]
    pub fn stolen(action: &str, address: Ipv4Addr, host: &Host) -> Value {
        json!({"action": action, "kind": "steal", "address": address.to_string(), "to": interface(host)})
    }

    /// It does not answer any more, and nothing there goes on.
    ///
    /// # Errors
    /// When it has ended.
    pub fn halt(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// It goes on.
    ///
    /// # Errors
    /// When it has ended.
    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.simulator.id()).ok().and_then(Pid::from_raw).context("no process")?;
        kill_process(pid, signal).context("the simulator of EC2 has ended")
    }

    /// The host whose interface has the address, by EC2.
    ///
    /// # Errors
    /// When it does not answer, or no host has it.
    pub fn owner(&self, address: Ipv4Addr) -> Result<String> {
        let state = self.cloud.ask("GET", "/state", &Value::Null)?;
        let has = |nic: &Value| {
            let listed = nic["secondary"].as_array().into_iter().flatten();
            listed.chain([&nic["primary"]]).any(|one| *one == address.to_string())
        };
        let interfaces = state["interfaces"].as_object().context("no interfaces")?;
        let having: Vec<&String> = interfaces.iter().filter(|(_, nic)| has(nic)).map(|(id, _)| id).collect();
        let [id] = having[..] else { anyhow::bail!("{address} is on {having:?}") };
        let host = self.cloud.at_interface(id).with_context(|| format!("no host has {id}"))?;
        Ok(host.name().to_owned())
    }

    /// The host that each route table sends the address to, by the table's id; none for one that has no route to it.
    ///
    /// # Errors
    /// When it does not answer, or one sends it to no host.
    pub fn sent(&self, address: Ipv4Addr) -> Result<BTreeMap<String, String>> {
        let state = self.cloud.ask("GET", "/state", &Value::Null)?;
        let mut sent = BTreeMap::new();
        for (table, told) in state["tables"].as_object().context("no tables")? {
            let Some(to) = told["routes"][format!("{address}/32")].as_str() else { continue };
            let host = self.cloud.at_interface(to).with_context(|| format!("no host has {to}"))?;
            sent.insert(table.clone(), host.name().to_owned());
        }
        Ok(sent)
    }

    /// The state of a host's instance, as EC2 tells it.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn state(&self, host: &Host) -> Result<String> {
        let state = self.cloud.ask("GET", "/state", &Value::Null)?;
        let said = state["instances"][instance(host)]["state"].as_str();
        said.map(str::to_owned).with_context(|| format!("{} is no instance", host.name()))
    }

    /// The calls of `action` so far, oldest first: `action`, `params`, `answer`.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn calls(&self, action: &str) -> Result<Vec<Value>> {
        Ok(self.log()?.into_iter().filter(|call| call["action"] == action).collect())
    }

    /// All calls so far, oldest first.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn log(&self) -> Result<Vec<Value>> {
        let mut told = self.cloud.ask("GET", "", &Value::Null)?;
        Ok(told["log"].as_array_mut().context("no log")?.drain(..).collect())
    }

    /// Where its API is asked.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.cloud.at)
    }

    /// Hosts could follow all that EC2 said.
    ///
    /// # Errors
    /// What they could not.
    pub fn ensure_followed(&self) -> Result<()> {
        let wrongs = lock(&self.cloud.wrongs);
        ensure!(wrongs.is_empty(), "{}", wrongs.join("; "));
        Ok(())
    }
}

impl Cloud {
    fn ask(&self, method: &str, part: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, said) =
            http::send(self.at, method, &format!("/world/{KEY}{part}"), &body, ANSWERS_WITHIN)?;
        ensure!(status == 200, "the simulator of EC2 answers {status} to {method} {part}");
        serde_json::from_str(&said).context("the simulator of EC2 does not answer with JSON")
    }

    fn at_interface(&self, id: &str) -> Option<Arc<Host>> {
        lock(&self.hosts).values().find(|host| interface(host) == id).cloned()
    }

    /// What the image of an instance would have: the key of its role, its own interfaces in `/sys`, and a way out of
    /// its subnet.
    fn boot(&self, host: &Host) -> Result<()> {
        host.set_environment(&[
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ]);
        let mounted = host.run(&["mount", "-t", "sysfs", "sysfs", "/sys"])?;
        ensure!(mounted.code == 0, "{} has no /sys: {}", host.name(), mounted.stderr);
        if self.zones { zones::join(host) } else { Ok(()) }
    }

    /// Has the hosts do as EC2 says.
    fn follow(&self) -> Result<()> {
        // One at a time: what is asked first is obeyed first.
        let mut network = lock(&self.network);
        let state = self.ask("GET", "/state", &Value::Null)?;
        self.obey(&state, &mut network).inspect_err(|error| {
            let (wrong, mut wrongs) = (format!("{error:#}"), lock(&self.wrongs));
            if !wrongs.contains(&wrong) {
                wrongs.push(wrong);
            }
        })
    }

    fn obey(&self, state: &Value, network: &mut Network) -> Result<()> {
        let hosts = lock(&self.hosts).clone();
        for host in hosts.values() {
            let wanted = &state["wanted"][instance(host)];
            match wanted.as_str() {
                Some("stopped") => host.power_off()?,
                Some("running") => host.power_on().and_then(|()| self.boot(host))?,
                _ => continue,
            }
            self.ask("POST", "/state", &json!({"done": {instance(host): wanted}}))?;
        }
        let told: Network = serde_json::from_value(state["network"].clone())?;
        changed(&network.addresses, &told.addresses, |address, before, now| {
            let at = |id: Option<&String>| id.and_then(|id| self.at_interface(id));
            vpc::carry(address, at(before).as_deref(), at(now).as_deref())
        })?;
        let none = BTreeMap::new();
        for zone in Zone::BOTH {
            let of = |network: &'_ Network| network.tables.get(zone.table).unwrap_or(&none).clone();
            changed(&of(network), &of(&told), |address, _, now| {
                vpc::route(zone, address, now.and_then(|id| self.at_interface(id)).as_deref())
            })?;
        }
        let open =
            |id: &String, is_open| self.at_interface(id).map_or(Ok(()), |host| vpc::open(&host, is_open));
        network.open.difference(&told.open).try_for_each(|id| open(id, false))?;
        told.open.difference(&network.open).try_for_each(|id| open(id, true))?;
        let take = |(address, id): &(&String, &String), takes| {
            self.at_interface(id).map_or(Ok(()), |host| vpc::take(address, &host, takes))
        };
        network.taken().difference(&told.taken()).try_for_each(|one| take(one, false))?;
        told.taken().difference(&network.taken()).try_for_each(|one| take(one, true))?;
        *network = told;
        Ok(())
    }
}

/// Calls `act` for each key whose value is another now, with what it was and what it is.
fn changed(
    before: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
    act: impl Fn(&str, Option<&String>, Option<&String>) -> Result<()>,
) -> Result<()> {
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let differ = keys.into_iter().filter(|key| before.get(*key) != now.get(*key));
    differ.into_iter().try_for_each(|key| act(key, before.get(key), now.get(key)))
}

/// For as long as the story lasts.
fn follow(cloud: &Weak<Cloud>) {
    while let Some(cloud) = cloud.upgrade() {
        // It may be halted; whatever it says then counts later.
        let _ = cloud.follow();
        drop(cloud);
        thread::sleep(TICK);
    }
}

/// How a fence or a grant reaches ONTAP.
fn login(section: &mut toml::Value) -> Option<&mut Table> {
    section.get_mut("ontap")?.as_table_mut()
}

/// The Python that has the simulator's parts, and AWS's SDK.
///
/// # Errors
/// When the environment names none.
pub fn python() -> Result<PathBuf> {
    let venv = std::env::var_os(VENV).map(PathBuf::from);
    let venv = venv.with_context(|| format!("{VENV} is not set: `cargo xtask setup` names the folder"))?;
    Ok(venv.join("bin/python"))
}

fn simulate(artifacts: &Path) -> Result<(Child, u16)> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/aws/bed/strict_ec2.py");
    let mut command = Command::new(python()?);
    command.arg(program).arg(HUB.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    fs::create_dir_all(artifacts.join("logs"))?;
    command.stderr(File::create(artifacts.join("logs/ec2.log"))?);
    let mut simulator = command.spawn().context("the simulator of EC2 does not start")?;
    let mut line = String::new();
    BufReader::new(simulator.stdout.take().context("no output")?).read_line(&mut line)?;
    let port =
        line.trim().parse().context("the simulator of EC2 does not tell its port; see logs/ec2.log")?;
    Ok((simulator, port))
}

/// The id of a host's instance.
#[must_use]
pub fn instance(host: &Host) -> String {
    format!("i-{:08x}", host.address().to_bits())
}

/// The id of a host's interface.
#[must_use]
pub fn interface(host: &Host) -> String {
    format!("eni-{:08x}", host.address().to_bits())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
