//! `server.properties` of a broker: the standby's template, with the broker's identity. Pure.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::drivers::broker_host::BrokerIdentity;
use crate::kafka::properties::Properties;
use crate::model::Endpoint;

/// Keys that say which broker this is. They come from the broker's own section, never from its overrides:
/// what is verified before the start must be what Kafka reads.
pub(super) const IDENTITY_KEYS: [&str; 4] = ["node.id", "broker.id", "log.dirs", "log.dir"];

/// Gives the template a broker's identity, and its overrides, which win over everything.
///
/// # Errors
/// In words: what the template lacks, and what to add.
pub(super) fn render(template: &Properties, broker: &BrokerIdentity) -> Result<Properties, String> {
    let mut file = template.clone();
    for (key, value) in &broker.properties {
        file.set(key, value);
    }
    check_mode(&file)?;
    set_id(&mut file, broker);
    file.set("log.dirs", &paths(&broker.log_dirs));
    file.remove("log.dir");
    set_listeners(&mut file, broker)?;
    Ok(file)
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

/// `NAME://host:port`, as Kafka writes listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listener {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) port: u16,
}

impl Listener {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (name, place) = text.split_once("://")?;
        let (host, port) = place.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        Some(Self { name: name.to_owned(), host: bare.to_owned(), port: port.parse().ok()? })
    }

    fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    fn binds_everywhere(&self) -> bool {
        self.host.is_empty() || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
    }

    pub(super) fn print(&self) -> String {
        let brackets = self.host.contains(':');
        let (open, close) = if brackets { ("[", "]") } else { ("", "") };
        format!("{}://{open}{}{close}:{}", self.name, self.host, self.port)
    }
}

/// Moves the listeners to the broker's own address; those of a controller are left alone.
///
/// The client listener gets the host and port of the broker's section. Every other one gets the host and
/// keeps its port. A key that the broker's overrides name is theirs.
fn set_listeners(file: &mut Properties, broker: &BrokerIdentity) -> Result<(), String> {
    let given = |key: &str| broker.properties.contains_key(key);
    let bound = listeners(file, "listeners")?.ok_or(
        "it has no `listeners`: add, for example, listeners=PLAINTEXT://:9092; names and protocols are taken \
         from it",
    )?;
    let controllers: Vec<String> =
        list(file.get("controller.listener.names").unwrap_or_default()).map(str::to_owned).collect();
    let is_controller = |l: &Listener| controllers.iter().any(|name| l.is_named(name));
    let advertised = match listeners(file, "advertised.listeners")? {
        Some(advertised) => advertised,
        None => bound.iter().filter(|l| !is_controller(l)).cloned().collect(),
    };
    if let Some(stray) = advertised.iter().find(|a| !bound.iter().any(|b| b.is_named(&a.name))) {
        return Err(format!("advertised.listeners names `{}` and listeners does not", stray.name));
    }
    if given("listeners") && given("advertised.listeners") {
        return Ok(());
    }
    let candidates = bound.iter().filter(|l| !is_controller(l)).collect::<Vec<_>>();
    let client = client_listener(&candidates, &advertised, &broker.listener)?;
    let move_one = |l: &Listener| {
        let port = if l.is_named(&client) { broker.listener.port } else { l.port };
        Listener { name: l.name.clone(), host: broker.listener.host.clone(), port }
    };
    let moved: Vec<Listener> =
        advertised.iter().map(|l| if is_controller(l) { l.clone() } else { move_one(l) }).collect();
    if !given("advertised.listeners") {
        file.set("advertised.listeners", &print(&moved));
    }
    if !given("listeners") {
        let rebound = bound
            .iter()
            .map(|l| if is_controller(l) { l.clone() } else { rebind(l, move_one(l), &advertised) });
        file.set("listeners", &print(&rebound.collect::<Vec<_>>()));
    }
    Ok(())
}

/// What to bind for a listener that is reached at `moved`.
fn rebind(bound: &Listener, mut moved: Listener, advertised: &[Listener]) -> Listener {
    // A name may stand for an address that is not on this host, such as that of a load balancer. An address
    // is bound, so that two brokers with the same port can run here side by side.
    let is_name = moved.host.parse::<IpAddr>().is_err();
    if is_name && bound.binds_everywhere() {
        moved.host.clone_from(&bound.host);
    }
    // Ports that differ in the template are mapped on the way, and that stays so.
    if advertised.iter().any(|l| l.is_named(&bound.name) && l.port != bound.port) {
        moved.port = bound.port;
    }
    moved
}

/// The name of the listener that the broker's section speaks of.
fn client_listener(
    candidates: &[&Listener],
    advertised: &[Listener],
    endpoint: &Endpoint,
) -> Result<String, String> {
    let reached_at = |l: &Listener| advertised.iter().find(|a| a.is_named(&l.name)).unwrap_or(l).port;
    let same_port: Vec<_> = candidates.iter().copied().filter(|l| reached_at(l) == endpoint.port).collect();
    match (candidates, &same_port[..]) {
        ([], _) => Err("`listeners` names no listener but the controller's: add one for clients".into()),
        ([only], _) | (_, [only]) => Ok(only.name.clone()),
        _ => Err(format!(
            "it has the listeners {}, and {} of them are reached at port {}, the port of the broker's \
             `listener`: give exactly one of them that port, or name `listeners` and `advertised.listeners` in \
             [broker.properties]",
            candidates.iter().map(|l| l.print()).collect::<Vec<_>>().join(", "),
            same_port.len(),
            endpoint.port
        )),
    }
}

fn listeners(file: &Properties, key: &str) -> Result<Option<Vec<Listener>>, String> {
    let Some(value) = file.get(key).filter(|value| !value.trim().is_empty()) else { return Ok(None) };
    let parse = |text: &str| {
        Listener::parse(text).ok_or_else(|| format!("`{text}` in {key}={value} is not NAME://host:port"))
    };
    list(value).map(parse).collect::<Result<_, _>>().map(Some)
}

/// What a rendered file tells clients, without the controllers'.
pub(super) fn advertised(file: &Properties) -> Result<Vec<Listener>, String> {
    let controllers = list(file.get("controller.listener.names").unwrap_or_default());
    let controllers: Vec<&str> = controllers.collect();
    let mut told = listeners(file, "advertised.listeners")?.unwrap_or_default();
    told.retain(|listener| !controllers.iter().any(|name| listener.is_named(name)));
    Ok(told)
}

fn print(listeners: &[Listener]) -> String {
    listeners.iter().map(Listener::print).collect::<Vec<_>>().join(",")
}

fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
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
    use crate::model::BrokerId;

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
        render(&Properties::parse(template.as_bytes()).unwrap(), broker)
    }

    #[track_caller]
    fn listeners_become(template: &str, listener: &str, bound: &str, advertised: &str) {
        let file = rendered(&format!("{KRAFT}{template}"), &broker(listener, &[])).unwrap();
        assert_eq!(file.get("listeners"), Some(bound));
        assert_eq!(file.get("advertised.listeners"), Some(advertised));
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
    fn one_listener_moves_whatever_its_port() {
        listeners_become(
            "listeners=PLAINTEXT://0.0.0.0:19092\nadvertised.listeners=PLAINTEXT://localhost:19092",
            "10.0.0.7:9092",
            "PLAINTEXT://10.0.0.7:9092",
            "PLAINTEXT://10.0.0.7:9092",
        );
        listeners_become(
            "listeners=SSL://:9092",
            "[fd00::7]:9092",
            "SSL://[fd00::7]:9092",
            "SSL://[fd00::7]:9092",
        );
    }

    #[test]
    fn a_name_leaves_a_wildcard_bound() {
        listeners_become(
            "listeners=SSL://0.0.0.0:9092",
            "kafka-7.example:9092",
            "SSL://0.0.0.0:9092",
            "SSL://kafka-7.example:9092",
        );
        listeners_become(
            "listeners=SSL://standby.example:9092",
            "kafka-7.example:9092",
            "SSL://kafka-7.example:9092",
            "SSL://kafka-7.example:9092",
        );
    }

    #[test]
    fn a_port_mapping_of_the_template_stays() {
        listeners_become(
            "listeners=SSL://:9092\nadvertised.listeners=SSL://standby:19092",
            "10.0.0.7:29092",
            "SSL://10.0.0.7:9092",
            "SSL://10.0.0.7:29092",
        );
    }

    #[test]
    fn of_several_listeners_the_one_with_the_port_is_the_clients() {
        listeners_become(
            "listeners=INTERNAL://:9091, EXTERNAL://:9092,CONTROLLER://localhost:9093\n\
             advertised.listeners=EXTERNAL://standby:9092,INTERNAL://standby:9091",
            "10.0.0.7:9092",
            "INTERNAL://10.0.0.7:9091,EXTERNAL://10.0.0.7:9092,CONTROLLER://localhost:9093",
            "EXTERNAL://10.0.0.7:9092,INTERNAL://10.0.0.7:9091",
        );
        let two = "listeners=INTERNAL://:9091,EXTERNAL://:9094\n";
        is_refused(&format!("{KRAFT}{two}"), "0 of them are reached at port 9092");
        let same = "listeners=A://x:9092,B://y:9092\n";
        is_refused(&format!("{KRAFT}{same}"), "2 of them are reached at port 9092");
    }

    #[test]
    fn overrides_win() {
        let template = format!("{KRAFT}listeners=A://:9091,B://:9094\n");
        let overrides = [("listeners", "A://:1,B://:2"), ("advertised.listeners", "A://x:3,B://y:4")];
        let file = rendered(&template, &broker("h:9092", &overrides)).unwrap();
        assert_eq!(file.get("listeners"), Some("A://:1,B://:2"));
        assert_eq!(file.get("advertised.listeners"), Some("A://x:3,B://y:4"));

        let file =
            rendered(&template, &broker("h:9092", &[("listeners", "A://10.0.0.1:9092,B://:2")])).unwrap();
        assert_eq!(file.get("listeners"), Some("A://10.0.0.1:9092,B://:2"));
        assert_eq!(file.get("advertised.listeners"), Some("A://h:9092,B://h:2"));
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
        is_refused(&format!("{KRAFT}listeners=CONTROLLER://:9093"), "no listener but the controller's");
        is_refused(&format!("{KRAFT}listeners=:9092"), "is not NAME://host:port");
        is_refused(
            &format!("{KRAFT}listeners=A://:9092\nadvertised.listeners=B://x:9092"),
            "names `B` and listeners does not",
        );
    }
}
